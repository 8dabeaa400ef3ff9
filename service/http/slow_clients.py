"""How long a client may hold something up: sending a request, taking an answer. Knows no protocol and sets no timer."""

from typing import Any

SLOWEST = 4096  # bytes a second that count as going on
HEAD_BYTES = 64 * 1024  # of all that a request sends beside its body


class Patience:
    """Judges one client by what it holds up and how many bytes of that have passed.

    seconds   without SLOWEST bytes in each of them, after which nobody waits any longer
    """

    __slots__ = ("_at", "_bytes", "_seconds", "_what")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._what: Any = None
        self._bytes, self._at = 0, 0.0

    def over(self, what: Any, passed: int, now: float) -> bool:
        """Whether the client has held up this very thing for too long; `what` is None while it holds up nothing."""
        moved = passed - self._bytes
        if what is not self._what or (moved > 0 and moved >= SLOWEST * (now - self._at)):
            self._what, self._bytes, self._at = what, passed, now
            return False
        return what is not None and now - self._at >= self._seconds


def unframed(raw: int, body: int) -> bool:
    """Whether a request of `raw` bytes so far, of them `body` of its body, is more frame than anyone needs."""
    return raw > HEAD_BYTES + 2 * body
