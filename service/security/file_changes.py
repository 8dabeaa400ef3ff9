"""Whether files have changed, without a thread: asked, it looks at most once a second. Reads none of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

LOOK_SECONDS = 1.0
Stamp = tuple[int, int, int]


class Changes:
    """What a few files were when last looked at.

    clock   seconds
    """

    def __init__(self, paths: Sequence[Path], clock: Callable[[], float] = monotonic) -> None:
        self._paths = tuple(paths)
        self._clock = clock
        self._looked = clock()
        self._seen = self.stamps()

    def since_last(self) -> bool:
        """True once after each change that can be seen; False within a second of the last look."""
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return False
        self._looked = now
        seen = self.stamps()
        changed, self._seen = seen != self._seen, seen
        return changed

    def stamps(self) -> tuple[Stamp | None, ...]:
        """Time, size and identity of each file, links followed; None where there is none."""
        return tuple([_stamp(path) for path in self._paths])


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
