"""The workers of one service move models together: what one is asked for, all do before it is answered. Loads nothing.

Workers share a directory that goes with their supervisor. Its journal has a line for every wish, and for every worker
that fulfilled it or could not; all read the same lines in the same order. A worker that joins later begins with what
the journal comes to. Who lives is told by locks, which end with their processes.
"""

import asyncio
import errno
import fcntl
import json
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, Literal, NamedTuple

from service.errors import BadRequest, InlayError, Unavailable

LOOK_SECONDS = 0.05
WISH_SECONDS = 120.0  # that workers may take; opening a model cold from a slow disk is what takes longest
DEFAULT = "default"  # the file whose text is the name of the default model
Verb = Literal["load", "unload"]
Fulfil = Mapping[str, Callable[[str], Awaitable[None]]]
log = logging.getLogger(__name__)


class Wish(NamedTuple):
    """Something all workers are to do."""

    number: str
    verb: Verb
    name: str


class Crew:
    """This worker among the workers of a directory; joins it.

    worker   what it is called there; by default by its process
    clock    seconds
    """

    def __init__(self, directory: Path, worker: str | None = None, clock: Callable[[], float] = monotonic) -> None:
        self._directory = directory
        self.worker = worker or str(os.getpid())
        self._clock = clock
        self._numbers = count()
        self._at = 0
        self._wishes: dict[str, Wish] = {}
        self._told: dict[str, dict[str, str]] = {}  # wish → worker → its fault, empty where there was none
        self._late: dict[str, set[str]] = {}  # wish → workers that joined after it and open the store as it is since
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = (directory / f"worker-{self.worker}").open("ab")
        fcntl.flock(self._held, fcntl.LOCK_EX)
        self._write({"joined": self.worker})
        self._read()

    def close(self) -> None:
        """Leave, as the end of the process does."""
        self._held.close()

    @property
    def moved_on(self) -> bool:
        """Some worker had opened its models before."""
        return (self._directory / DEFAULT).exists()

    def agreed(self) -> dict[str, Verb]:
        """The last wish about each model that any worker fulfilled, or may still fulfil."""
        return {
            wish.name: wish.verb
            for wish in self._wishes.values()
            if not self._told[wish.number] or "" in self._told[wish.number].values()
        }

    def default(self, name: str | None) -> str | None:
        """The default model that the first worker to ask here had; so that one which joins later has no other."""
        path, own = self._directory / DEFAULT, self._directory / f"{DEFAULT}-{self.worker}"
        own.write_text(name or "")
        with suppress(FileExistsError):
            os.link(own, path)
        own.unlink()
        return path.read_text() or None

    async def ask(self, verb: Verb, name: str, seconds: float = WISH_SECONDS) -> None:
        """Have every living worker do it.

        raises   BadRequest with the reasons, naming the workers where only some failed
                 Unavailable where some did not answer in time, or the wish cannot be written
        """
        wish = Wish(f"{self.worker}-{next(self._numbers)}", verb, name)
        try:
            self._write({"wish": wish})
        except OSError as error:
            raise Unavailable(f"{verb} of {name} cannot be passed on now: {error.strerror}: ask again") from error
        until, missing = self._clock() + seconds, {self.worker}
        while missing:
            if self._clock() > until:
                raise Unavailable(
                    f"{verb} of {name}: no word from {_workers(missing)} within {seconds:g} s; they do it when they can"
                )
            await asyncio.sleep(LOOK_SECONDS)
            with suppress(OSError):  # who lives cannot be known while no file can be opened
                missing = self._missing(wish)
        told = self._told[wish.number]
        if faults := {worker: fault for worker, fault in told.items() if fault}:
            raise BadRequest(_faults(wish, faults, len(told)))

    async def run(self, fulfil: Fulfil) -> None:
        """Do what anyone asks for, for ever; what is asked about one model is begun in the order of the journal."""
        while True:
            await _at_last("read", partial(self.look, fulfil))
            await asyncio.sleep(LOOK_SECONDS)

    def look(self, fulfil: Fulfil) -> None:
        """Begin what was asked for since the last look."""
        for wish in self._read():
            task = asyncio.create_task(self._fulfil(wish, fulfil[wish.verb]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _fulfil(self, wish: Wish, move: Callable[[str], Awaitable[None]]) -> None:
        fault = ""
        try:
            await move(wish.name)
        except InlayError as error:
            fault = error.message
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        line = {"told": wish.number, "worker": self.worker, "fault": fault}
        await _at_last("written", partial(self._write, line))

    def _missing(self, wish: Wish) -> set[str]:
        if wish.number not in self._wishes:  # not even this worker has read of it
            return {self.worker}
        return self._living() - self._told[wish.number].keys() - self._late[wish.number]

    def _read(self) -> list[Wish]:
        """The wishes written since the last time; none that came before this worker joined."""
        path = self._directory / "motions"
        if path.stat().st_size == self._at:
            return []
        with path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        *lines, half = data.split(b"\n")  # behind the last newline: nothing, or what is still being written
        self._at += len(data) - len(half)
        found: list[Wish] = []
        for line in lines:
            with suppress(ValueError):  # empty, or cut short by a full disk
                self._take(json.loads(line), found)
        return found

    def _take(self, line: dict[str, Any], found: list[Wish]) -> None:
        if "wish" in line:
            wish = Wish(*line["wish"])
            self._wishes[wish.number] = wish
            self._told[wish.number], self._late[wish.number] = {}, set()
            found.append(wish)
        elif "told" in line:
            self._told[line["told"]][line["worker"]] = line["fault"]
        else:
            for late in self._late.values():
                late.add(line["joined"])
            if line["joined"] == self.worker:
                found.clear()

    def _write(self, line: dict[str, Any]) -> None:
        """One write to the end of a file is never mixed with another's; the newline before ends what was cut short."""
        data = b"\n" + json.dumps(line).encode() + b"\n"
        descriptor = os.open(self._directory / "motions", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.write(descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)

    def _living(self) -> set[str]:
        names = [path.name.removeprefix("worker-") for path in self._directory.glob("worker-*")]
        return {name for name in names if name == self.worker or self._is_held(name)}

    def _is_held(self, worker: str) -> bool:
        with (self._directory / f"worker-{worker}").open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


async def _at_last(what: str, step: Callable[[], None]) -> None:
    """Do a step on the journal, again while it fails: without files left to open, or on a full disk."""
    told = ""
    while True:
        try:
            return step()
        except Exception as error:  # whatever it is must not end this worker's following
            trouble = f"{type(error).__name__}: {error}"
        if trouble != told:
            log.error("the journal of the workers cannot be %s now, which is tried again: %s", what, trouble)
        told = trouble
        await asyncio.sleep(LOOK_SECONDS)


def _workers(names: set[str]) -> str:
    return f"worker{'s' * (len(names) > 1)} {', '.join(sorted(names))}"


def _faults(wish: Wish, faults: dict[str, str], asked: int) -> str:
    reasons = set(faults.values())
    if len(faults) == asked and len(reasons) == 1:
        return reasons.pop()
    told = "; ".join(f"worker {worker}: {fault}" for worker, fault in sorted(faults.items()))
    return f"{wish.verb} of {wish.name} failed in {len(faults)} of {asked} workers, which now differ: {told}"
