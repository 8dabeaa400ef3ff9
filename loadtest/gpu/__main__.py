"""Inlay on a GPU: is it right, does it serve, how fast is it; `make gpu`.

    python -m loadtest.gpu [--device cpu] [--quick] [--models NAMES] [--rounds N] [--python PATH] [--save]

Each model is created with random weights, exported, and run on CUDA in float32, float16 and bfloat16. Its vectors are
compared with Inlay's float64 reference; those of a MiniLM, a bge-large, a bge-m3 and a Qwen3 of 0.6 B are timed at 16,
128 and 512 tokens a text, in interleaved rounds beside transformers with scaled_dot_product_attention in the same type.
Then a server on the device runs several models, exchanges one while it answers, and gets a batch beyond its memory.
--save writes loadtest/results/gpu.json, .md and .svg. Exits with 1 if something is wrong, with 3 without CUDA.

--device cpu runs the same on a CPU, in float32; --quick takes two tiny models and a second of each case.
"""

import argparse
import importlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from loadtest.architectures.cases import Model
from loadtest.architectures.prepare import Prepared, prepare
from loadtest.encoders.contestants import MODEL, PEERS_PYTHON, NotPrepared
from loadtest.encoders.workers import Missing
from loadtest.facts import facts
from loadtest.gpu import report, serving
from loadtest.gpu.cases import QUICK, Load, chosen
from loadtest.gpu.measure import Row, measure
from loadtest.processes import RESULTS, end_on_sigterm


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="two tiny models, one short round")
    parser.add_argument("--models", default="", help="names, separated by commas; all if there are none")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds; figures are their medians")
    parser.add_argument("--seconds", type=float, default=2, help="of each case of each library in a round")
    parser.add_argument("--python", type=Path, default=PEERS_PYTHON, help="interpreter that has torch and transformers")
    parser.add_argument("--own", action="store_true", help="Inlay alone, without torch")
    parser.add_argument("--save", action="store_true", help="write loadtest/results/gpu.*")
    options = parser.parse_args(words)
    options.models = [name for name in options.models.split(",") if name]
    if options.quick:
        options.rounds, options.seconds = 1, 0.1
    return options


def fault(device: str) -> str | None:
    """Return why nothing can be run on the device; None if it is there."""
    if device == "cpu":
        return None
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=60).stdout
    except OSError:
        return "there is no nvidia-smi, so no NVIDIA driver"
    if "GPU" not in listed:
        return "nvidia-smi lists no GPU"
    if "CUDAExecutionProvider" not in importlib.import_module("onnxruntime").get_available_providers():
        return "this onnxruntime is the CPU build: EXTRA=gpu make gpu installs the other one"
    return None


def run(options: argparse.Namespace) -> int:
    """Measure, check, print and perhaps save; return the exit code."""
    if reason := fault(options.device):
        print(f"no CUDA device: {reason}; nothing was run. `--device cpu --quick` tries the script itself on a CPU")
        return 3
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        stores: list[Prepared] = []
        for model in chosen(options.models, options.quick, place):
            own = place / model.name
            own.mkdir()
            try:
                prepared = prepare(model, own)
                rows += _measured(model, prepared, options, own)
                shutil.rmtree(prepared.checkpoint)
                stores.append(prepared)
            except (NotPrepared, Missing) as reason:
                rows.append(Row(model.name, "Inlay", "float32", str(reason)))
            print(report.table(rows[-6:], ()), flush=True)
        checks = serving.check(_store(stores, place), options.device) if len(stores) > 1 else []
    print("\n" + report.table(rows, checks))
    if options.save:
        report.save(rows, checks, {**facts(), **_gpu()}, RESULTS / "gpu")
    return int(not all(right for _, _, right in checks) or any(_is_wrong(row) for row in rows))


def _measured(model: Model, prepared: Prepared, options: argparse.Namespace, logs: Path) -> list[Row]:
    peers = None if options.own else options.python.absolute()
    load = QUICK if options.quick else Load()
    return measure(model, prepared, options.device, load, options.rounds, options.seconds, peers, logs)


def _is_wrong(row: Row) -> bool:
    """Whether it is Inlay's, and took no part or gave other vectors: bfloat16 alone may lack kernels."""
    return row.library == "Inlay" and not row.is_right and not (row.missing and row.dtype == "bfloat16")


def _store(prepared: Sequence[Prepared], place: Path) -> Path:
    """Return a store of the two smallest models, called a and b."""
    small = sorted(prepared, key=lambda each: each.megabytes)[:2]
    for name, each in zip("ab", small, strict=True):
        (place / "served").mkdir(exist_ok=True)
        (each.store / MODEL).rename(place / "served" / name)
        card = place / "served" / name / "card.json"
        card.write_text(card.read_text(encoding="utf-8").replace(f'"name": "{MODEL}"', f'"name": "{name}"'), "utf-8")
    return place / "served"


def _gpu() -> dict[str, str]:
    """Return the GPU's name and driver."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"GPU": listed.splitlines()[0]}


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(run(arguments()))
