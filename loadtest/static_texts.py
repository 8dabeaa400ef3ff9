"""Texts a second of a static embedding model over HTTP, beside Model2Vec's own encode() of the same texts.

    python -m loadtest.static_texts TOKENIZER.JSON [--save]

Needs model2vec. It creates a Model2Vec checkpoint of the tokenizer and a random table of 256 columns, exports and
serves it, and sends texts of random words to POST /embed for raw floats, tokenizing included. Round by round, the same
texts go through StaticModel.encode in this process. The service and encode() use the same core, the client another.
Prints medians and ratios; --save writes loadtest/results/static_texts.json.
"""

import argparse
import http.client
import importlib
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from loadtest.facts import facts
from loadtest.processes import RESULTS, ROOT, free_port, inlay, running_on, server, split_cores, wait_for

WIDTH = 256
LOADS = ((1, 12), (32, 12), (1000, 12), (1000, 100))  # texts a request, words a text
ROUNDS = 15


def create_checkpoint(tokenizer: Path, folder: Path) -> Any:
    """Save a Model2Vec model of random rows to `folder` and return it."""
    model2vec, tokenizers = importlib.import_module("model2vec"), importlib.import_module("tokenizers")
    words = tokenizers.Tokenizer.from_file(str(tokenizer))
    table = np.random.default_rng(0).normal(size=(words.get_vocab_size(), WIDTH)).astype(np.float32)
    model2vec.StaticModel(table, words, normalize=True).save_pretrained(folder)
    return model2vec.StaticModel.from_pretrained(folder)


def texts(model: Any, count: int, words: int) -> list[str]:
    """Return `count` texts of about `words` random words of the vocabulary."""
    draw = random.Random(count + words)
    known = [token for token in model.tokens if token.isalpha()]
    return [" ".join(draw.choices(known, k=max(1, int(draw.gauss(words, words / 3))))) for _ in range(count)]


def embed(connection: http.client.HTTPConnection, inputs: list[str]) -> Any:
    """Send one request and return its vectors, float32 (len(inputs), WIDTH)."""
    body = orjson.dumps({"inputs": inputs, "truncate": True})
    headers = {"content-type": "application/json", "accept": "application/octet-stream"}
    connection.request("POST", "/embed", body, headers)
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise SystemExit(content.decode())
    return np.frombuffer(content, np.float32).reshape(len(inputs), WIDTH)


def seconds(call: Callable[[], Any]) -> float:
    """Return the wall time of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def compare(model: Any, connection: http.client.HTTPConnection, core: frozenset[int]) -> list[dict[str, Any]]:
    """Return texts a second of both, and the largest difference of their vectors, for each load."""
    rows = []
    for count, words in LOADS:
        chosen = texts(model, count, words)
        difference = float(np.abs(embed(connection, chosen) - model.encode(chosen)).max())
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(seconds(lambda: embed(connection, chosen)))  # noqa: B023  # called at once
            with running_on(core):
                theirs.append(seconds(lambda: model.encode(chosen)))  # noqa: B023
        inlay_seconds, plain = statistics.median(ours), statistics.median(theirs)
        rows.append(
            {
                "texts": count,
                "words": words,
                "texts_per_s": {"inlay": round(count / inlay_seconds), "model2vec": round(count / plain)},
                "of_model2vec": round(statistics.median(b / a for a, b in zip(ours, theirs, strict=True)), 2),
                "largest_difference": difference,
            }
        )
    return rows


def measure(tokenizer: Path, folder: Path) -> list[dict[str, Any]]:
    """Create a checkpoint, export it, serve it and compare."""
    model = create_checkpoint(tokenizer, folder / "checkpoint")
    export = inlay("export", str(folder / "checkpoint"), str(folder / "store/static"))
    subprocess.run(export, cwd=ROOT, check=True, capture_output=True)
    core, client = split_cores(pin=True)
    port, log = free_port(), folder / "service.log"
    env = {"INLAY_STORE": str(folder / "store"), "INLAY_PORT": str(port), "INLAY_GRPC_PORT": str(free_port())}
    with log.open("wb") as file, server(inlay("serve"), file, core, env) as process:
        wait_for(process, log, port, "/health/ready")
        with running_on(client):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            return compare(model, connection, core)


def main() -> None:
    """Measure, print and perhaps save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--save", action="store_true", help="write loadtest/results/static_texts.json")
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core each
    with tempfile.TemporaryDirectory() as folder:
        figures = {"width": WIDTH, "rounds": ROUNDS, "loads": measure(options.tokenizer, Path(folder))}
    print(json.dumps(figures, indent=1))
    if options.save:
        document = json.dumps(figures | {"facts": facts()}, indent=1)
        (RESULTS / "static_texts.json").write_text(document + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
