"""Detects changed files by their status, without a thread and without reading them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

LOOK_SECONDS = 1.0
Stamp = tuple[int, int, int]


class FileChanges:
    """Compares the status of files with the previous status, at most once a second.

    Args:
        paths: paths of the files.
        clock: returns seconds.
    """

    def __init__(self, paths: Sequence[Path], clock: Callable[[], float] = monotonic) -> None:
        self._paths = tuple(paths)
        self._clock = clock
        self._looked = clock()
        self._stamps = self.stamps()

    def since_last(self) -> bool:
        """Return True once after each change; False within a second of the last check."""
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return False
        self._looked = now
        stamps = self.stamps()
        changed, self._stamps = stamps != self._stamps, stamps
        return changed

    def stamps(self) -> tuple[Stamp | None, ...]:
        """Return time, size and inode of each file, links followed; None for a missing file."""
        return tuple([_stamp(path) for path in self._paths])


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
