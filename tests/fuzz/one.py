"""One target in a process of its own: `python -m tests.fuzz.one NAME --seconds 10 --found FOLDER --report FILE`.

Driven by coverage where atheris is installed, else by random mutations of the seeds. The report is JSON: engine, inputs
tried, how many of them were taken, seconds, and the fault that ended it, whose input is in FOLDER.
"""

import argparse
import hashlib
import importlib
import json
import logging
import os
import random
import resource
import sys
import time
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MEASURED = 64  # every so many inputs their memory is looked at
SPARE_BYTES = 2 << 30  # of address space beyond what the process has before the first input
LONGEST = 4096
HANGS_SECONDS = 20  # judging.SECONDS is for those that are slow
MEMORY = Path("/proc/self/statm")  # Linux alone
CODE = ["service", "models", "tests.fuzz"]


class Session:
    """Judges inputs and counts them until its time is over."""

    def __init__(self, name: str, engine: str, seconds: float, faults_folder: Path, report: Path) -> None:
        catalogue = importlib.import_module("tests.fuzz.catalogue")
        self._judge: Any = importlib.import_module("tests.fuzz.judging").judge
        self.target = catalogue.TARGETS[name]
        self.seeds: list[bytes] = [*self.target.seeds(), *catalogue.kept(name)]
        self._engine, self._found, self._report = engine, faults_folder, report
        self._inputs = self._taken = 0
        self._begun = time.monotonic()
        self._end = self._begun + seconds

    def try_one(self, data: bytes) -> None:
        """Try one input; the process ends with a fault, or when its time is over."""
        self._inputs += 1
        try:
            self._taken += self._judge(self.target, data, measured=self._inputs % MEASURED == 0)
        except BaseException as error:
            self._found.mkdir(parents=True, exist_ok=True)
            (self._found / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
            self._leave("".join(traceback.format_exception(error))[-3000:])
        if time.monotonic() > self._end:
            self._leave(None)

    def _leave(self, fault: str | None) -> None:
        """At once: libFuzzer ends processes without Python's farewell."""
        seconds = round(time.monotonic() - self._begun, 1)
        counts = {"engine": self._engine, "inputs": self._inputs, "taken": self._taken, "seconds": seconds}
        self._report.write_text(json.dumps(counts | {"fault": fault}))
        for name in ("files", "roads"):
            importlib.import_module(f"tests.fuzz.{name}").close()
        os._exit(1 if fault else 0)


def _bounded() -> None:
    """A lying length that is believed ends in MemoryError, not in a machine that swaps."""
    if not MEMORY.exists():
        return
    pages = int(MEMORY.read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + SPARE_BYTES, resource.RLIM_INFINITY))


def _mutate(session: Session) -> None:
    from tests.fuzz.mutating import mutated

    choose = random.Random()
    for seed in session.seeds:
        session.try_one(seed)
    while True:
        session.try_one(mutated(session.seeds, session.target.words, choose))


def _explore(session: Session, folder: Path) -> None:
    import atheris

    corpus, words = folder / "corpus", folder / "words"
    corpus.mkdir(parents=True)
    for index, seed in enumerate(session.seeds):
        (corpus / f"{index:04}").write_bytes(seed)
    words.write_text("".join([f'"{_escaped(word)}"\n' for word in session.target.words]))
    options = [f"-max_len={LONGEST}", f"-timeout={HANGS_SECONDS}", "-rss_limit_mb=4096"]
    options += [f"-dict={words}"] if session.target.words else []
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={folder}/", str(corpus)], session.try_one)
    atheris.Fuzz()


def _escaped(word: Sequence[int]) -> str:
    return "".join([f"\\x{byte:02x}" for byte in word])


def main() -> None:
    """Fuzz one target."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--found", type=Path, required=True)
    parser.add_argument("--report", type=Path, required=True)
    options = parser.parse_args()
    logging.getLogger("service").propagate = False  # faults come as exceptions, refusals are no news
    arguments = (options.seconds, options.found, options.report)
    if find_spec("atheris") is None:
        session = Session(options.name, "random", *arguments)
        _bounded()
        _mutate(session)
        return
    import atheris

    with atheris.instrument_imports(include=CODE):
        session = Session(options.name, "atheris", *arguments)
    _bounded()
    _explore(session, options.report.parent / "atheris")


if __name__ == "__main__":
    main()
