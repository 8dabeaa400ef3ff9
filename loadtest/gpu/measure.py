"""Vectors and tokens a second of one model in Inlay and in torch, on one device."""

import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from loadtest.architectures.cases import Model
from loadtest.architectures.prepare import ENGINE, WITHOUT_SDPA, Prepared
from loadtest.encoders.contestants import MODEL
from loadtest.encoders.workers import Contestant, Missing, RunningWorker, started
from loadtest.gpu.cases import DTYPES, JUDGED_LENGTHS, TIMED, Load, texts

INLAY, TORCH = "Inlay", "torch"
LEAST_COSINE = {"float32": 0.99999, "float16": 0.999, "bfloat16": 0.99}


@dataclass(frozen=True)
class Row:
    """What was measured of one library with one model in one type.

    Attributes:
        missing: why it took no part, or no longer.
        cosine: the least to Inlay's float64 reference.
        megabytes: of the device's memory behind the last case; None: it is not known.
        tokens_per_second: by the length of the texts, of each round.
    """

    model: str
    library: str
    dtype: str
    missing: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    cosine: float | None = None
    megabytes: float | None = None
    tokens_per_second: Mapping[int, Sequence[float]] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        """Whether its vectors are as near as its type allows."""
        return self.cosine is not None and self.cosine >= LEAST_COSINE[self.dtype]


def contestants(model: Model, prepared: Prepared, device: str, peers_python: Path | None) -> list[Contestant]:
    """Return Inlay and torch in every type; on a CPU in float32 alone, and Inlay in the engine of CPUs."""
    listed = []
    for dtype in DTYPES if device == "cuda" else DTYPES[:1]:
        settings = {"store": str(prepared.store), "model": MODEL, "device": device, "gpu_dtype": dtype}
        listed.append(Contestant(f"{INLAY} {dtype}", Path(sys.executable), _inlay(), settings))
        if peers_python:
            attention = "eager" if model.name in WITHOUT_SDPA else "sdpa"
            options = {"checkpoint": str(prepared.checkpoint), "threads": "8", "attention": attention}
            options |= {"batch_tokens": "0", "device": device, "dtype": dtype}
            listed.append(Contestant(f"{TORCH} {dtype}", peers_python, ENGINE, options))
    return listed


def measure(
    model: Model,
    prepared: Prepared,
    device: str,
    load: Load,
    rounds: int,
    seconds: float,
    peers_python: Path | None,
    logs: Path,
) -> list[Row]:
    """Return the rows of one model: each library's vectors, and interleaved rounds of those models that are TIMED.

    A library whose type does not fit beside the others in the device's memory has the reason in its row.
    """
    judged = texts(JUDGED_LENGTHS)
    listed = contestants(model, prepared, device, peers_python)
    cores = frozenset(os.sched_getaffinity(0))
    rows = []
    with contextlib.ExitStack() as stack:
        expected = _reference(prepared, judged, logs)
        running: list[tuple[Contestant, RunningWorker]] = []
        for contestant in listed:
            try:
                running.append((contestant, stack.enter_context(started(contestant, logs, cores))))
            except Missing as reason:
                rows.append(_row(model, contestant, missing=str(reason)))
        speeds = _timed(running, load if model.name in TIMED else Load(()), rounds, seconds)
        rows += [_finished(model, contestant, worker, judged, expected, speeds) for contestant, worker in running]
    order = [contestant.name for contestant in listed]
    return sorted(rows, key=lambda row: order.index(f"{row.library} {row.dtype}"))


def _inlay() -> tuple[str, str]:
    return "loadtest.encoders.inlay_engine", "InlayOnIds"


def _reference(prepared: Prepared, judged: list[str], logs: Path) -> np.ndarray:
    """Return the float64 reference's vectors."""
    settings = {"store": str(prepared.store), "model": MODEL, "engine": "reference"}
    contestant = Contestant("reference", Path(sys.executable), _inlay(), settings)
    with started(contestant, logs, frozenset(os.sched_getaffinity(0))) as worker:
        (vectors,) = worker.vectors(judged, [range(len(judged))])
    return vectors.astype(np.float64)


def _timed(
    running: Sequence[tuple[Contestant, RunningWorker]], load: Load, rounds: int, seconds: float
) -> dict[str, dict[int, list[float]]]:
    """Return the tokens a second of each library, by the length of the texts, of each round."""
    found: dict[str, dict[int, list[float]]] = {contestant.name: {} for contestant, _ in running}
    for _ in range(rounds):
        for length in load.lengths:
            batch = load.texts(length)
            for contestant, worker in running:
                try:
                    taken = statistics.median(worker.seconds(batch, seconds))
                except Missing:  # its row says so, where its vectors are asked for
                    continue
                found[contestant.name].setdefault(length, []).append(len(batch) * length / taken)
    return found


def _finished(
    model: Model,
    contestant: Contestant,
    worker: RunningWorker,
    judged: list[str],
    expected: np.ndarray,
    speeds: Mapping[str, Mapping[int, Sequence[float]]],
) -> Row:
    try:
        (vectors,) = worker.vectors(judged, [range(len(judged))])
    except Missing as reason:
        return _row(model, contestant, missing=str(reason))
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
    cosine = float(((vectors * expected).sum(axis=1) / lengths).min())
    library, _, dtype = contestant.name.partition(" ")
    memory = gpu_megabytes(worker.pid)
    return Row(model.name, library, dtype, None, worker.versions, cosine, memory, speeds[contestant.name])


def _row(model: Model, contestant: Contestant, missing: str) -> Row:
    library, _, dtype = contestant.name.partition(" ")
    return Row(model.name, library, dtype, missing)


def gpu_megabytes(pid: int) -> float | None:
    """Return the GPU memory of a process in 10^6 bytes, by nvidia-smi; None where there is none."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = [line.split(",") for line in listed.splitlines()]
    return next((float(used) * 1.048576 for own, used in found if int(own) == pid), None)
