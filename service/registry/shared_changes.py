"""Makes a load or an unload that one worker is asked for in all workers of a service.

The worker that is asked adds a line to a file of the folder that the workers share. Each looks at its size ten times a
second, makes the changes that it has not made, and notes how far it has come; one that replaces another makes them all.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from service.errors import BadRequest, InlayError, NotFound
from service.observability.metric_store import is_held

LOOK_SECONDS = 0.1
Verb = Literal["load", "unload"]


class SharedChanges:
    """The changes of one worker's models, in step with those of the others.

    Args:
        changes: make a change in this process.
        directory: the folder that all workers share, in which each locks `N.lock`.
        worker: the supervisor's number for this worker.
    """

    def __init__(self, changes: Mapping[str, Callable[[str], Awaitable[None]]], directory: Path, worker: int) -> None:
        self._make, self._directory = changes, directory
        self._changes, self._note = directory / "changes", directory / f"changes-{worker}"
        self._made = 0  # bytes of the file whose changes this worker has made
        self._faults: dict[str, str] = {}  # why the last load of a model failed
        self._looking = asyncio.Lock()
        self._write_note()

    async def make(self, verb: Verb, name: str) -> None:
        """Load or unload a model in all workers; return when each that is alive has done so.

        Raises:
            BadRequest: a worker cannot load it.
        """
        with self._changes.open("ab", buffering=0) as file:
            file.write(json.dumps([verb, name]).encode() + b"\n")
            end = file.tell()
        await self.look()
        notes = self._notes()
        while any(note["made"] < end for note in notes):
            await asyncio.sleep(LOOK_SECONDS)
            notes = self._notes()
        if fault := next((note["faults"][name] for note in notes if name in note["faults"]), None):
            raise BadRequest(fault)

    async def look(self) -> None:
        """Make the changes that other workers were asked for, of several of one model the last."""
        async with self._looking:
            if not self._changes.exists() or self._changes.stat().st_size == self._made:
                return
            with self._changes.open("rb") as file:
                file.seek(self._made)
                lines = file.read()
            for name, verb in {name: verb for verb, name in map(json.loads, lines.splitlines())}.items():
                self._faults.pop(name, None)
                try:
                    await self._make[verb](name)
                except NotFound:  # it is not loaded here, or gone from the store
                    pass
                except InlayError as error:
                    self._faults[name] = error.received
            self._made += len(lines)
            self._write_note()

    def _write_note(self) -> None:
        written = self._note.with_suffix(".new")
        written.write_text(json.dumps({"made": self._made, "faults": self._faults}))
        written.replace(self._note)

    def _notes(self) -> list[dict[str, Any]]:
        """Return how far each living worker is; one that still starts makes all changes once it has started."""
        notes = [self._directory / f"changes-{path.stem}" for path in self._directory.glob("*.lock") if is_held(path)]
        return [json.loads(note.read_bytes()) for note in {*notes, self._note} if note.exists()]
