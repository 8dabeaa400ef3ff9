"""How long a 131,072 x 128 RoPE table takes to make, beside the bare float32 formula in numpy, round by round.

    python -m loadtest.making [--save]

The one stranger here that looks inside: it times functions, so it imports models/positions. The table is cos and sin of
64 channel pairs for 131,072 positions, made block by block and rounded once to float32; the formula is
cos(p * w) and sin(p * w) with p and w in float32, written down whole. Prints medians and ratios; --save writes
loadtest/results/making.json.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from loadtest import facts
from loadtest.processes import ROOT
from models.positions.rope.frequencies import Rope
from models.positions.rope.table import tabulate

POSITIONS, HEAD_DIM, THETA = 131_072, 128, 10_000.0
ROUNDS = 21
TARGET = 1.3
RESULT = ROOT / "loadtest/results/making.json"


def bare() -> Any:
    """The formula, once through."""
    frequency = 1.0 / THETA ** (np.arange(0, HEAD_DIM, 2, dtype=np.float32) / np.float32(HEAD_DIM))
    angles = np.arange(POSITIONS, dtype=np.float32)[:, None] * frequency.astype(np.float32)
    return np.cos(angles), np.sin(angles)


def ours(arithmetic: Any) -> Any:
    """The same table as it is served."""
    table = tabulate(Rope(THETA, HEAD_DIM), range(POSITIONS), arithmetic=arithmetic)
    return [output.made("float32") for output in table.outputs.values()]


def seconds(make: Callable[[], Any]) -> float:
    """Wall time of one run."""
    started = time.perf_counter()
    make()
    return time.perf_counter() - started


def main() -> None:
    """Measure, print, and keep where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help=f"write {RESULT.relative_to(ROOT)}")
    given = parser.parse_args()
    makers: dict[str, Callable[[], Any]] = {
        "formula": bare,
        "exact": lambda: ours("exact"),
        "parity": lambda: ours("parity"),
    }
    for make in makers.values():
        make()
    taken: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(ROUNDS):
        for name, make in makers.items():
            taken[name].append(seconds(make))
    ratios = {
        name: statistics.median(own / plain for own, plain in zip(taken[name], taken["formula"], strict=True))
        for name in ("exact", "parity")
    }
    found = {
        "table": f"{POSITIONS} x {HEAD_DIM}: cos and sin of {HEAD_DIM // 2} pairs, float32",
        "milliseconds": {name: round(1000 * statistics.median(values), 1) for name, values in taken.items()},
        "of_the_formula": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "target": TARGET,
        "rounds": ROUNDS,
    }
    print(json.dumps(found, indent=1))
    if given.save:
        RESULT.write_text(json.dumps(found | {"machine": facts.facts()}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
