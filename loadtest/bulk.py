"""`inlay embed` over a million short texts: speed, memory, kills, Ray.

    python -m loadtest.bulk [--rows N] [--encoder-rows N] [--rounds N] [--ray] [--save]

It makes a static model (random rows of 256 columns for the demo model's tokenizer) and texts of random words, then
measures:

    speed    rows/s of the whole command, from its start to its end, beside the engine alone: the same threads over the
             same texts in memory, with the model loaded and nothing read or written; round by round, the other order in
             every second one. Beside both a plain loop: as many threads with tokenizers and onnxruntime alone.
    memory   the largest resident size of the command at 1 %, 10 % and all of the rows, and at three times as many
    kills    three SIGKILLs at random moments, then to the end: are all bytes those of an undisturbed run
    encoder  the same speed with the demo model, an encoder, over the first --encoder-rows texts

--ray measures instead, of both models, rows/s of one and of two actors on a cluster of this machine, between the first
part that was written and the last, and whether the bytes are those of a run without Ray.

--save writes loadtest/results/bulk.json, or bulk_ray.json.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

from loadtest.facts import facts
from loadtest.processes import RESULTS, ROOT, inlay
from service.bulk import inputs, job
from service.bulk.embedder import Embedder
from service.embedding.requests import EmbedOptions
from service.settings import Settings

WIDTH = 256
WORDS = (8, 3)  # mean and spread of a text's
DEMO = ROOT / "models/store/all-MiniLM-L6-v2"
STATIC = "static"
ENCODER = DEMO.name
ENCODER_PART = 4096  # rows; a cluster's actors share whole parts
LOOP_TEXTS = 512  # of one run of the plain loop
KILLS = 3


def create_model(folder: Path) -> Path:
    """Export a static model of random rows; return a store that has the demo model too."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    tokenizer = (DEMO / "tokenizer.json").read_text(encoding="utf-8")
    (checkpoint / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    rows = len(json.loads(tokenizer)["model"]["vocab"])
    table = np.random.default_rng(0).normal(size=(rows, WIDTH)).astype(np.float32)
    save_file({"embeddings": table}, checkpoint / "model.safetensors")
    (checkpoint / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": True}))
    subprocess.run(inlay("export", str(checkpoint), str(folder / "store" / STATIC)), check=True, capture_output=True)
    (folder / "store" / ENCODER).symlink_to(DEMO)
    return folder / "store"


def create_texts(path: Path, rows: int) -> Path:
    """Write texts of random words of the vocabulary."""
    vocabulary = json.loads((DEMO / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    words, draw = [word for word in vocabulary if word.isalpha()], random.Random(0)

    def texts(count: int) -> list[str]:
        return [" ".join(draw.choices(words, k=max(1, round(draw.gauss(*WORDS))))) for _ in range(count)]

    with pq.ParquetWriter(path, pa.schema([("id", pa.int64()), ("text", pa.string())])) as writer:
        for start in range(0, rows, 50_000):
            count = min(50_000, rows - start)
            writer.write_table(pa.table({"id": range(start, start + count), "text": texts(count)}))
    return path


def command(source: Path, output: Path, *words: str, model: str = STATIC) -> list[str]:
    """Return the command that embeds a file."""
    part = ("--part-rows", str(ENCODER_PART)) if model == ENCODER else ()
    return inlay("embed", str(source), str(output), "--model", model, "--keep", "id", *part, *words)


def run(call: Sequence[str]) -> tuple[float, int]:
    """Run a command; return its seconds and the largest resident size in bytes."""
    started = time.perf_counter()
    process = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    assert process.stderr is not None
    if status:
        raise SystemExit(process.stderr.read().decode())
    process.stderr.close()
    process.returncode = 0
    return seconds, usage.ru_maxrss * 1024


def batches(path: Path) -> Iterator[list[str]]:
    """Yield the texts of a file, as many at a time as the command's window holds."""
    for batch in pq.ParquetFile(path).iter_batches(inputs.WINDOW_ROWS, columns=["text"]):
        yield batch.column("text").to_pylist()


def engine_alone(path: Path, model: str) -> float:
    """Return the seconds that the engine takes for all texts, which are in memory."""
    store = Path(os.environ["INLAY_STORE"])
    embedder = Embedder(EmbedOptions(), store / model, Settings.model_validate({}))
    windows = list(batches(path))
    started, ahead = time.perf_counter(), deque[Any]()
    for texts in windows:
        ahead.append(embedder.submit(texts))
        if len(ahead) > job.WINDOWS_AHEAD:
            embedder.collect(ahead.popleft())
    for tasks in ahead:
        embedder.collect(tasks)
    return time.perf_counter() - started


def plain_loop(path: Path, model: str) -> float:
    """Return the seconds of a loop over tokenizers and onnxruntime, with as many threads as cores."""
    import onnxruntime as ort
    import tokenizers

    folder = Path(os.environ["INLAY_STORE"]) / model
    words = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    words.no_padding()
    words.no_truncation()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    graph = json.loads((folder / "card.json").read_text())["graphs"]["sentences"]["file"]
    session = ort.InferenceSession(str(folder / graph), options, providers=["CPUExecutionProvider"])

    def vectors(texts: list[str]) -> Any:
        ids = [encoding.ids for encoding in words.encode_batch_fast(texts)]
        lengths = np.array([len(each) for each in ids])
        flat = np.concatenate([np.array(each, np.int64) for each in ids])
        feeds = {"ids": flat, "mask": np.ones(len(flat), bool), "lengths": lengths}
        feeds["segments"] = np.repeat(np.arange(len(ids)), lengths)
        (rows,) = session.run(["sentence_embedding"], feeds)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    texts = [text for window in batches(path) for text in window]
    started = time.perf_counter()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        for _ in threads.map(vectors, [texts[at : at + LOOP_TEXTS] for at in range(0, len(texts), LOOP_TEXTS)]):
            pass
    return time.perf_counter() - started


def apart(function: str, path: Path, model: str) -> float:
    """Return what one of the functions above returns in a process of its own."""
    code = (
        f"import sys, pathlib; from loadtest import bulk; print(bulk.{function}(pathlib.Path(sys.argv[1]), {model!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return float(done.stdout)


def speed(path: Path, rows: int, folder: Path, rounds: int, model: str) -> dict[str, Any]:
    """Compare the command with the engine alone, and with a plain loop where the model is static."""
    names = ["inlay embed", "engine alone"] + ["plain loop"] * (model == STATIC)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        measures = {
            "inlay embed": lambda: run(command(path, folder / f"{model}{number}", model=model))[0],  # noqa: B023
            "engine alone": lambda: apart("engine_alone", path, model),
            "plain loop": lambda: apart("plain_loop", path, model),
        }
        for name in sorted(seconds, reverse=number % 2 == 1):
            seconds[name].append(measures[name]())
    shares = [alone / whole for alone, whole in zip(seconds["engine alone"], seconds["inlay embed"], strict=True)]
    return {
        "rows": rows,
        "rows_per_s": {name: round(rows / statistics.median(taken)) for name, taken in seconds.items()},
        "of_engine_alone": round(statistics.median(shares), 3),
        "of_engine_alone_by_round": [round(share, 3) for share in shares],
    }


def digest(folder: Path) -> str:
    """Return the hash of all parts of a folder."""
    whole = hashlib.sha256()
    for part in sorted(folder.glob("part-*.parquet")):
        whole.update(part.name.encode() + hashlib.sha256(part.read_bytes()).digest())
    return whole.hexdigest()


def killed(path: Path, output: Path, seconds: float, expected: str) -> dict[str, Any]:
    """Kill the command at random moments of the time that it needs, then let it end."""
    draw, moments = random.Random(1), []
    for _ in range(KILLS):
        moments.append(round(draw.uniform(0.1, 0.5) * seconds, 1))
        process = subprocess.Popen(command(path, output), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(moments[-1])
        process.send_signal(signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            raise SystemExit(f"the command ended within {moments[-1]} s: use more rows")
    kept = len(list(output.glob("part-*.parquet")))
    run(command(path, output))
    return {"killed_after_s": moments, "parts_kept": kept, "equal_bytes": digest(output) == expected}


def on_ray(path: Path, folder: Path, expected: str, model: str) -> dict[str, Any]:
    """Compare one actor with two, each of one thread."""
    rates: dict[int, float] = {}
    equal = True
    for actors in (1, 2):
        output = folder / f"ray-{model}{actors}"
        run(command(path, output, "--ray", "local", "--ray-actors", str(actors), model=model))
        parts = sorted(output.glob("part-*.parquet"), key=lambda part: part.stat().st_mtime)
        rows = [pq.read_metadata(part).num_rows for part in parts]
        rates[actors] = sum(rows[1:]) / (parts[-1].stat().st_mtime - parts[0].stat().st_mtime)
        equal = equal and digest(output) == expected
    return {
        "rows_per_s": {str(actors): round(rate) for actors, rate in rates.items()},
        "two_of_one": round(rates[2] / rates[1], 2),
        "equal_bytes": equal,
    }


def measure(folder: Path, rows: int, encoder_rows: int, rounds: int) -> dict[str, Any]:
    """Return speed, memory and what kills change."""
    path = create_texts(folder / "texts.parquet", rows)
    some = create_texts(folder / "some.parquet", encoder_rows)
    figures: dict[str, Any] = {
        "width": WIDTH,
        "speed": speed(path, rows, folder, rounds, STATIC),
        "encoder": speed(some, encoder_rows, folder, rounds, ENCODER),
    }
    peaks = {}
    for count in (rows // 100, rows // 10):
        peaks[count] = run(command(create_texts(folder / f"{count}.parquet", count), folder / f"peak{count}"))[1]
    seconds, peaks[rows] = run(command(path, folder / "peak"))
    (folder / "thrice").mkdir()
    for number in range(3):
        (folder / "thrice" / f"{number}.parquet").hardlink_to(path)
    peaks[3 * rows] = run(command(folder / "thrice", folder / "peak_thrice"))[1]
    figures["peak_mib"] = {str(count): round(size / 2**20) for count, size in peaks.items()}
    figures["kills"] = killed(path, folder / "killed", seconds, digest(folder / "peak"))
    return figures


def measure_ray(folder: Path, rows: int, encoder_rows: int) -> dict[str, Any]:
    """Return the rates of one and of two actors with both models."""
    figures = {}
    for model, count in ((STATIC, rows), (ENCODER, encoder_rows)):
        path = create_texts(folder / f"{model}.parquet", count)
        run(command(path, folder / model, model=model))
        figures[model] = {"rows": count} | on_ray(path, folder, digest(folder / model), model)
    return figures


def main() -> None:
    """Measure, print and perhaps save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--encoder-rows", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ray", action="store_true", help="measure Ray instead")
    parser.add_argument("--save", action="store_true", help="write loadtest/results/bulk.json, or bulk_ray.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["INLAY_STORE"] = str(create_model(folder))
        os.environ["PYTHONPATH"] = str(ROOT)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # in all of them
        if options.ray:
            figures = measure_ray(folder, options.rows, options.encoder_rows)
        else:
            figures = measure(folder, options.rows, options.encoder_rows, options.rounds)
    print(json.dumps(figures, indent=1))
    if options.save:
        document = json.dumps(figures | {"facts": facts()}, indent=1)
        (RESULTS / ("bulk_ray.json" if options.ray else "bulk.json")).write_text(document + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
