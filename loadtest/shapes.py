"""Memory and speed of models of well-known shapes, with random weights: the table of docs/models/which.md.

    python -m loadtest.shapes [--only NAME...] [--rounds 7] [--save]

One model at a time is created from its shape in shapes.json, exported, served, and asked over HTTP for the vectors of
16 texts of 128 token ids. The speed is texts for each second of the server's processor time, a median over the rounds:
it is that of one core, and other work on the machine changes it less than the wall clock. Memory is the server's
proportional set size after the rounds.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from loadtest.facts import facts
from loadtest.process_memory import MB, footprint
from loadtest.processes import RESULTS, cpu_seconds, free_port, inlay, server, wait_for

SHAPES = Path(__file__).with_suffix(".json")
TEXTS, TOKENS = 16, 128
IDS = 1000, 20_000  # in every vocabulary
WITHIN_S = 300.0


def measure(shape: dict[str, Any], folder: Path, rounds: int) -> dict[str, Any]:
    """Return size, memory and speed of a model of one shape."""
    checkpoint, store, config = folder / "checkpoint", folder / "store", folder / "config.json"
    config.write_text(json.dumps({"dtype": "float32"} | shape))
    for command in (
        inlay("create", str(checkpoint), "--config", str(config), "--whole"),
        inlay("export", str(checkpoint), str(store / "model"), "--pooling", "mean"),
    ):
        subprocess.run(command, check=True, capture_output=True)
    card = json.loads((store / "model/card.json").read_text())
    port, log = free_port(), folder / "inlay.log"
    command = inlay("serve", "--store", str(store), "--port", str(port), "--grpc-port", str(free_port()))
    draw, speeds = random.Random(7), []
    with log.open("wb") as file, server(command, file) as process:
        wait_for(process, log, port, "/health", WITHIN_S)
        for turn in range(rounds + 1):
            began = cpu_seconds(process.pid)
            ask(port, [[draw.randint(*IDS) for _ in range(TOKENS)] for _ in range(TEXTS)])
            if turn:  # the first round warms up
                speeds.append(TEXTS / (cpu_seconds(process.pid) - began))
        memory = footprint(process.pid).proportional
    return {
        "parameters": card["parameters"],
        "weights_megabytes": round(card["bytes"] / MB),
        "memory_megabytes": round(memory),
        "texts_a_core_second": round(statistics.median(speeds), 1),
        "spread": [round(min(speeds), 1), round(max(speeds), 1)],
    }


def ask(port: int, texts: list[list[int]]) -> None:
    """Embed token ids once."""
    headers = {"Content-Type": "application/json", "Accept": "application/vnd.safetensors"}
    body = json.dumps({"inputs": texts}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/embed", body, headers, method="POST")
    with urllib.request.urlopen(request, timeout=WITHIN_S) as response:
        response.read()


def main() -> int:
    """Measure the shapes, print each when it is done, and perhaps save it beside those that were saved before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shapes = json.loads(SHAPES.read_text(encoding="utf-8"))
    parser.add_argument("--only", nargs="*", choices=shapes, default=list(shapes), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--save", action="store_true", help="write loadtest/results/shapes.json")
    options = parser.parse_args()
    saved = RESULTS / "shapes.json"
    figures = json.loads(saved.read_text(encoding="utf-8"))["models"] if saved.exists() else {}
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            figures[name] = measure(shapes[name], Path(folder), options.rounds)
        print(name, json.dumps(figures[name]), flush=True)
        if options.save:
            document = json.dumps({"models": figures, "facts": facts()}, indent=1)
            saved.write_text(document + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
