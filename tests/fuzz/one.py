"""One target in a process of its own, for so many seconds: `python -m tests.fuzz.one NAME --seconds 10 --found FOLDER`.

Driven by coverage where atheris is installed, else by random mutations of the seeds. The last line it prints is JSON:
engine, inputs tried, how many were taken, features seen. A fault ends it: its input is in FOLDER, its trace on stderr.
"""

import argparse
import hashlib
import importlib
import json
import logging
import random
import resource
import sys
import tempfile
import time
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MEASURED = 64  # every so many inputs their memory is looked at
SPARE_BYTES = 2 << 30  # of address space beyond what the process has before the first input
LONGEST = 4096
TIMEOUT_SECONDS = 20  # an input that hangs; judging.SECONDS is for those that are slow


class Tried:
    """Judges inputs and counts them; a fault is kept as a file."""

    def __init__(self, name: str, found: Path) -> None:
        catalogue = importlib.import_module("tests.fuzz.catalogue")
        self.judge: Any = importlib.import_module("tests.fuzz.judging").judge
        self.target = catalogue.TARGETS[name]
        self.seeds = [*self.target.seeds(), *catalogue.kept(name)]
        self.found = found
        self.inputs = self.taken = 0

    def __call__(self, data: bytes) -> None:
        """Try one input."""
        self.inputs += 1
        try:
            self.taken += self.judge(self.target, data, measured=self.inputs % MEASURED == 0)
        except BaseException:
            self.found.mkdir(parents=True, exist_ok=True)
            (self.found / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
            raise


def _bounded() -> None:
    """A lying length that is believed ends in MemoryError, not in a machine that swaps."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        most = pages * resource.getpagesize() + SPARE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def _mutate(tried: Tried, seconds: float) -> None:
    from tests.fuzz.mutating import mutated

    end, choose = time.monotonic() + seconds, random.Random()
    for seed in tried.seeds:
        tried(seed)
    while time.monotonic() < end:
        tried(mutated(tried.seeds, tried.target.words, choose))


def _explore(tried: Tried, seconds: float, corpus: Path) -> None:
    """atheris, which never returns: the report is written by what it calls last."""
    import atheris  # type: ignore[import-not-found, unused-ignore]

    for index, seed in enumerate(tried.seeds):
        (corpus / f"{index:04}").write_bytes(seed)
    words = corpus.with_suffix(".words")
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in tried.target.words))
    options = [f"-max_total_time={int(seconds)}", f"-max_len={LONGEST}", f"-timeout={TIMEOUT_SECONDS}", f"-dict={words}"]
    options += ["-rss_limit_mb=4096", "-print_final_stats=0", "-verbosity=1", "-artifact_prefix=/dev/null/"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], tried)
    atheris.Fuzz()


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def main() -> int:
    """0: no fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--found", type=Path, required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--engine", choices=("atheris", "random"), default="atheris")
    asked = parser.parse_args()
    logging.getLogger("service").propagate = False  # faults come as exceptions, refusals are no news
    engine = asked.engine if find_spec("atheris") else "random"
    if engine == "atheris":
        import atheris

        with atheris.instrument_imports(include=["service", "models", "tests.fuzz"]):
            tried = Tried(asked.name, asked.found)
    else:
        tried = Tried(asked.name, asked.found)
    _bounded()
    begun, fault = time.monotonic(), None

    def report() -> None:
        seconds = time.monotonic() - begun
        told = {"engine": engine, "inputs": tried.inputs, "taken": tried.taken, "seconds": seconds, "fault": fault}
        asked.report.write_text(json.dumps(told))

    def one(data: bytes) -> None:
        nonlocal fault
        try:
            tried(data)
        except BaseException as error:
            fault = "".join(traceback.format_exception(error)[-3:])[-2000:]
            report()
            raise
        if tried.inputs % 256 == 0:
            report()

    if engine == "random":
        end, choose = begun + asked.seconds, random.Random()
        from tests.fuzz.mutating import mutated

        for seed in tried.seeds:
            one(seed)
        while time.monotonic() < end:
            one(mutated(tried.seeds, tried.target.words, choose))
        report()
    return 0


if __name__ == "__main__":
    sys.exit(main())
