"""`inlay` with a fault in it that no client can cause. Each is asked for by a variable, MEDDLING_<NAME>.

BLOCK   SIGUSR2 makes the event loop stand still
RAISE   a run that holds this token id raises
NAN     the rows of this token id are not numbers
HANG    a run that holds this token id does not end
SLOW    every run of an encoder takes so many seconds more
BROKEN  once this file is there, every run raises

Workers are spawned and import this file again, so each of them is meddled with.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from service.cli.main import main
from service.runtime import onnx

ASKED = {name.removeprefix("MEDDLING_"): value for name, value in os.environ.items() if name.startswith("MEDDLING_")}
run = onnx.OnnxEngine.run


def meddled(engine: Any, graph: str, feeds: Mapping[str, Any], outputs: Any) -> Any:
    ids = feeds.get("ids", feeds.get("input_ids", np.zeros(0)))
    if "BROKEN" in ASKED and Path(ASKED["BROKEN"]).exists():
        raise RuntimeError("the graph is broken")
    if "SLOW" in ASKED and graph == "encoder":
        time.sleep(float(ASKED["SLOW"]))
    if "RAISE" in ASKED and int(ASKED["RAISE"]) in ids:
        raise RuntimeError("the engine raised")
    if "HANG" in ASKED and int(ASKED["HANG"]) in ids:
        threading.Event().wait()
    arrays = run(engine, graph, feeds, outputs)
    if "NAN" in ASKED:
        bad = ids == int(ASKED["NAN"])
        for array in arrays:
            if len(array) == len(bad):
                array[bad] = np.nan
    return arrays


def stand_still(number: int, frame: Any) -> None:
    threading.Event().wait()


onnx.OnnxEngine.run = meddled  # type: ignore[method-assign, assignment]
if "BLOCK" in ASKED:
    signal.signal(signal.SIGUSR2, stand_still)

if __name__ == "__main__":
    sys.exit(main())
