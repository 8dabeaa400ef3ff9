"""What several outputs of one pass cost: a model of BGE-M3's shape asked for its dense vectors, and for all it gives.

    python -m loadtest.bge_m3 [--layers 24] [--width 384] [--texts 16] [--rounds 7] [--save]

The model is an XLM-RoBERTa of random weights with BGE-M3's heads and its 24 layers, of 384 columns instead of 1024: the
shares of the heads are those of the published one.
Requests of equal texts are sent one after the other over HTTP, the kinds in turn; answers are safetensors. The
processor time is the server's. A kind that the server does not give is left out.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from safetensors.numpy import save_file

from loadtest.facts import facts
from loadtest.processes import RESULTS, TICKS_PER_SECOND, free_port, inlay, server, wait_for

DENSE, SEVERAL, SPARSE = "sentence_embedding", "multi_vector_embedding", "sparse_embedding"
KINDS = ((DENSE,), (DENSE, SEVERAL), (DENSE, SPARSE), (DENSE, SPARSE, SEVERAL))
VOCABULARY = 2000
SPECIAL = "<s>", "<pad>", "</s>", "<unk>"
LENGTHS = 32, 256  # tokens of a text
BAR = 1.1


def create_model(folder: Path, layers: int, width: int) -> Path:
    """Write a random checkpoint in BGE-M3's layout, export it, and return the store."""
    source, config = folder / "bge", folder / "config.json"
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": width // 64}
    sizes |= {"intermediate_size": 4 * width, "vocab_size": VOCABULARY, "max_position_embeddings": 514}
    config.write_text(json.dumps(sizes))
    words = ("--model-type", "xlm-roberta", "--whole", "--config", str(config))
    subprocess.run(inlay("create", str(source), *words), check=True, capture_output=True)
    words_of = tokenizers.models.WordLevel({word: id_ for id_, word in enumerate(_vocabulary())}, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(words_of)
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(source / "tokenizer.json"))
    names = dict(zip(("cls_token", "pad_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    (source / "tokenizer_config.json").write_text(json.dumps(names))
    draw = np.random.default_rng(0)
    for name, rows in (("colbert_linear", width), ("sparse_linear", 1)):
        weight = draw.normal(0, width**-0.5, (rows, width)).astype(np.float32)
        save_file({"weight": weight, "bias": np.zeros(rows, np.float32)}, source / f"{name}.safetensors")
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    chain = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (source / "modules.json").write_text(json.dumps(chain))
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    export = subprocess.run(inlay("export", str(source), str(folder / "store/bge")), capture_output=True, text=True)
    if export.returncode:
        sys.exit(export.stderr)
    return folder / "store"


def _vocabulary() -> list[str]:
    return [*SPECIAL, *(f"w{number}" for number in range(VOCABULARY - len(SPECIAL)))]


def ask(port: int, texts: list[list[int]], outputs: tuple[str, ...]) -> tuple[float, int]:
    """Return the seconds of one request, and the bytes of its answer."""
    body = json.dumps({"inputs": texts, "outputs": outputs}).encode()
    headers = {"Content-Type": "application/json", "Accept": "application/vnd.safetensors"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/embed", body, headers, method="POST")
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=300) as response:
        size = len(response.read())
    return time.perf_counter() - began, size


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def measure(folder: Path, layers: int, width: int, texts: int, rounds: int) -> dict[str, Any]:
    """Return the time of each kind, and its share of the dense vectors' alone."""
    store, port, log = create_model(folder, layers, width), free_port(), folder / "inlay.log"
    command = inlay("serve", "--store", str(store), "--port", str(port), "--grpc-port", str(free_port()))
    draw = random.Random(7)
    with log.open("wb") as file, server(command, file) as process:
        wait_for(process, log, port, "/health")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/models/bge") as response:
            given = json.load(response)["outputs"]
        kinds = [kind for kind in KINDS if set(kind) <= set(given)]
        seconds: dict[tuple[str, ...], list[float]] = {kind: [] for kind in kinds}
        processor: dict[tuple[str, ...], list[float]] = {kind: [] for kind in kinds}
        sizes: dict[tuple[str, ...], int] = {}
        for turn in range(rounds + 1):
            tokens = [draw.randint(*LENGTHS) for _ in range(texts)]
            chosen = [[draw.randrange(10, VOCABULARY) for _ in range(count)] for count in tokens]
            for kind in draw.sample(kinds, len(kinds)):
                began = processor_seconds(process.pid)
                taken, sizes[kind] = ask(port, chosen, kind)
                if turn:  # the first round warms up
                    seconds[kind].append(taken)
                    processor[kind].append(processor_seconds(process.pid) - began)
    dense = kinds[0]
    return {
        "layers": layers,
        "width": width,
        "texts": texts,
        "kinds": {
            " + ".join(kind): {
                "seconds": round(statistics.median(seconds[kind]), 4),
                "of_dense": _share(seconds[kind], seconds[dense]),
                "processor_of_dense": _share(processor[kind], processor[dense]),
                "bytes": sizes[kind],
            }
            for kind in kinds
        },
    }


def _share(measured: list[float], dense: list[float]) -> float:
    """Return the median over the rounds of one kind's time divided by that of the dense vectors."""
    return round(statistics.median(one / other for one, other in zip(measured, dense, strict=True)), 3)


def main() -> int:
    """Measure, print and perhaps save; return 1 if all outputs together cost too much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 24), ("width", 384), ("texts", 16), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--save", action="store_true", help="write loadtest/results/bge_m3.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), options.layers, options.width, options.texts, options.rounds)
    print(json.dumps(figures, indent=1))
    if options.save:
        document = json.dumps(figures | {"facts": facts()}, indent=1)
        (RESULTS / "bge_m3.json").write_text(document + "\n", encoding="utf-8")
    return int(list(figures["kinds"].values())[-1]["processor_of_dense"] > BAR)


if __name__ == "__main__":
    sys.exit(main())
