"""Starts the worker process of each library on one core and talks to it."""

import base64
import contextlib
import json
import os
import select
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.processes import ROOT, Cores, running_on

WITHIN_S = 120  # of one answer
# Libraries that read none of these get the number of their threads from their own options.
ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    **{"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "ORT_DISABLE_TELEMETRY": "1"},
}


class Missing(Exception):
    """A library cannot take part; the message says why, in one line."""


@dataclass(frozen=True)
class Contestant:
    """A library, and how its worker is started.

    Attributes:
        name: what tables call it.
        python: the interpreter of its environment.
        engine: module and class, as `worker` takes them.
        options: keyword arguments of that class.
        env: variables added to the environment.
    """

    name: str
    python: Path
    engine: tuple[str, str]
    options: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


class RunningWorker:
    """A worker that has loaded its library.

    Attributes:
        pid: of its process.
        versions: of the libraries in it.
        load_seconds: what the library needed for the model, its own import left out.
    """

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log
        self.pid = process.pid
        first = self._read()
        self.versions: dict[str, str] = first["versions"]
        self.load_seconds: float = first["load_seconds"]

    def seconds(self, texts: Sequence[str], seconds: float) -> list[float]:
        """Return the wall time of each of several calls with the same texts.

        Raises:
            Missing: the worker ended or takes too long.
        """
        taken: list[float] = self._ask({"texts": list(texts), "seconds": seconds})["seconds"]
        return taken

    def vectors(self, texts: Sequence[str], batches: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """Return the vectors of each batch, float32 (texts of the batch, width)."""
        answer = self._ask({"texts": list(texts), "batches": [list(batch) for batch in batches]})
        return [
            np.frombuffer(base64.b64decode(content), np.float32).reshape(rows, width)
            for rows, width, content in answer["vectors"]
        ]

    def _ask(self, order: Mapping[str, Any]) -> Any:
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._gone() from None
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], WITHIN_S)[0]:
            raise Missing(f"did not answer within {WITHIN_S} s")
        if line := self._process.stdout.readline():
            return json.loads(line)
        raise self._gone()

    def _gone(self) -> Missing:
        self._process.wait(10)
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return Missing(lines[-1].strip()[:200] if lines else "it ended and said nothing")


@contextlib.contextmanager
def started(contestant: Contestant, logs: Path, cores: Cores) -> Iterator[RunningWorker]:
    """Start a worker, wait until it has loaded its library, and end it afterwards.

    Raises:
        Missing: it did not start.
    """
    if not contestant.python.exists():
        raise Missing(f"{contestant.python.relative_to(ROOT)} is not there: run make bench ARGS=--encoders")
    log = logs / f"{contestant.name.replace('/', '-')}.log"
    command = [str(contestant.python), "-m", "loadtest.encoders.worker", *contestant.engine]
    env = {**os.environ, **ONE_THREAD, **contestant.env}
    with log.open("wb") as errors, running_on(cores):
        process = subprocess.Popen(
            [*command, json.dumps(dict(contestant.options))],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield RunningWorker(process, log)
    finally:
        process.kill()
        process.communicate()
