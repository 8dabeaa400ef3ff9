"""Creates and exports a model with Inlay's own commands, and names the libraries that run it."""

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.architectures.cases import Model
from loadtest.architectures.comparison import Contender
from loadtest.encoders.contestants import MODEL, NotPrepared
from loadtest.encoders.workers import Contestant
from loadtest.processes import ROOT, inlay

WITHIN_S = 600  # of one command
ENGINE = "loadtest.architectures.torch_engine", "Torch"
WITHOUT_SDPA = ("mpnet-base",)  # in transformers 5.23
LIKE_LENGTHS = 512  # padded tokens of a batch of texts of like length


@dataclass(frozen=True)
class Prepared:
    """A model on disk.

    Attributes:
        checkpoint: folder of the random weights.
        store: folder of the exported model MODEL.
        create_seconds, export_seconds: of the two commands.
        megabytes: of the checkpoint's weights, 10^6 bytes.
    """

    checkpoint: Path
    store: Path
    create_seconds: float
    export_seconds: float
    megabytes: float


def prepare(model: Model, folder: Path) -> Prepared:
    """Write a model's checkpoint and its export to a folder.

    Raises:
        NotPrepared: a command failed, or took too long.
    """
    checkpoint, store = folder / "checkpoint", folder / "store"
    create_seconds = _run(inlay("create", str(checkpoint), "--config", str(model.config), "--whole"))
    export_seconds = _run(inlay("export", str(checkpoint), str(store / MODEL), "--pooling", "mean"))
    megabytes = (checkpoint / "model.safetensors").stat().st_size / 1e6
    return Prepared(checkpoint, store, create_seconds, export_seconds, megabytes)


def _run(command: Sequence[str]) -> float:
    """Return the seconds that a command took."""
    begun = time.perf_counter()
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    except subprocess.TimeoutExpired:
        raise NotPrepared(f"inlay {command[1]} took over {WITHIN_S} s") from None
    if done.returncode:
        raise NotPrepared(f"inlay {command[1]}: {(done.stderr + done.stdout).strip()[-300:]}")
    return time.perf_counter() - begun


def contenders(model: Model, prepared: Prepared, threads: int, peers_python: Path | None) -> list[Contender]:
    """Return Inlay, and torch with one padded batch and with batches of texts of like length.

    Args:
        model: its name says whether it has sdpa.
        prepared: its files.
        threads: of each.
        peers_python: the interpreter that has torch and transformers; None: Inlay alone.
    """
    env = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    inlay = {"store": str(prepared.store), "model": MODEL, "engine": "onnx"}
    engine = "loadtest.encoders.inlay_engine", "InlayOnIds"
    listed = [Contender(Contestant("Inlay", Path(sys.executable), engine, inlay, env))]
    if peers_python:
        attention = "eager" if model.name in WITHOUT_SDPA else "sdpa"
        torch = {"checkpoint": str(prepared.checkpoint), "threads": str(threads), "attention": attention}
        padded, like = {**torch, "batch_tokens": "0"}, {**torch, "batch_tokens": str(LIKE_LENGTHS)}
        listed.append(Contender(Contestant(f"torch {attention}", peers_python, ENGINE, padded, env)))
        listed.append(Contender(Contestant(f"torch {attention}, like lengths", peers_python, ENGINE, like, env), True))
    return listed
