"""How long a 131,072 x 128 RoPE table takes to compute, beside the bare float32 formula in numpy, round by round.

    python -m loadtest.table_generation [--save]

This module times functions, so it alone in this package imports models/positions. The table is cos and sin of 64
channel pairs for 131,072 positions, computed block by block and rounded once to float32; the formula is cos(p * w) and
sin(p * w) in float32 in one piece. Prints medians and ratios; --save writes loadtest/results/table_generation.json.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from loadtest.facts import facts
from loadtest.processes import RESULTS
from models.positions.rope.frequencies import Rope
from models.positions.rope.table import tabulate

POSITIONS, HEAD_DIM, THETA = 131_072, 128, 10_000.0
ROUNDS = 21
MOST_RATIO = 1.3


def formula() -> Any:
    """Return cos and sin by the bare formula, float32 (POSITIONS, HEAD_DIM / 2) each."""
    frequency = 1.0 / THETA ** (np.arange(0, HEAD_DIM, 2, dtype=np.float32) / np.float32(HEAD_DIM))
    angles = np.arange(POSITIONS, dtype=np.float32)[:, None] * frequency.astype(np.float32)
    return np.cos(angles), np.sin(angles)


def table(arithmetic: Any) -> Any:
    """Return the same table as the service computes it."""
    outputs = tabulate(Rope(THETA, HEAD_DIM), range(POSITIONS), arithmetic=arithmetic).outputs
    return [output.whole().astype(np.float32) for output in outputs.values()]


def seconds(compute: Callable[[], Any]) -> float:
    """Return the wall time of one call."""
    started = time.perf_counter()
    compute()
    return time.perf_counter() - started


def main() -> None:
    """Measure, print and perhaps save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="write loadtest/results/table_generation.json")
    options = parser.parse_args()
    timed: dict[str, Callable[[], Any]] = {
        "formula": formula,
        "exact": lambda: table("exact"),
        "parity": lambda: table("parity"),
    }
    for compute in timed.values():
        compute()
    taken: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(ROUNDS):
        for name, compute in timed.items():
            taken[name].append(seconds(compute))
    ratios = {
        name: statistics.median(ours / bare for ours, bare in zip(taken[name], taken["formula"], strict=True))
        for name in ("exact", "parity")
    }
    figures = {
        "table": f"{POSITIONS} x {HEAD_DIM}: cos and sin of {HEAD_DIM // 2} pairs, float32",
        "milliseconds": {name: round(1000 * statistics.median(values), 1) for name, values in taken.items()},
        "of_the_formula": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "target": MOST_RATIO,
        "rounds": ROUNDS,
    }
    print(json.dumps(figures, indent=1))
    if options.save:
        document = json.dumps(figures | {"facts": facts()}, indent=1)
        (RESULTS / "table_generation.json").write_text(document + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
