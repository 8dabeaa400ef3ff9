"""Bounds the memory that requests hold together while they are computed and their answers are sent.

What a request needs is known once it is validated, and is reserved before anything is computed. It is given back when
its answer has left, however slowly its client reads.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from service.errors import Overloaded, TooLarge
from service.request_context import CURRENT_CALL, RequestContext

RETRY_SECONDS = 1.0
SMALL_BYTES = 1 << 20  # requests up to this size may use the whole budget
LARGE_SHARE = 7 / 8  # share of the budget for larger requests: slow readers of large answers leave room for small ones
LAST_PART = 16  # of the budget, for callers that hold no more than SMALL_BYTES


class HeldByCallers:
    """What each caller holds of something that all share; the last part of it is for callers that hold little.

    Args:
        common: what all together may hold before the last part begins.
        little: what a caller may hold, of the last part included.
    """

    def __init__(self, common: int, little: int) -> None:
        self._common, self._little = common, little
        self._amounts: dict[str, int] = {}

    def take(self, caller: str, amount: int, held: int) -> bool:
        """Count what a caller takes, and return whether it may; one that is unknown, or the first, always may.

        Args:
            held: what all callers hold.
        """
        taken = self._amounts.get(caller, 0) + amount
        if caller and held and held + amount > self._common and taken > self._little:
            return False
        self._amounts[caller] = taken
        return True

    def give_back(self, caller: str, amount: int) -> None:
        """Stop counting an amount."""
        left = self._amounts.get(caller, 0) - amount
        if left > 0:
            self._amounts[caller] = left
        else:
            self._amounts.pop(caller, None)


class MemoryBudget:
    """The bytes that the requests of one process hold. Reservations may come from any thread.

    Args:
        together: bytes of all requests.
        setting: the setting that says so, for error messages.
    """

    def __init__(self, together: int, setting: str = "INLAY_MAX_ANSWERING_BYTES") -> None:
        self._together = together
        self._large = int(together * LARGE_SHARE)
        self._setting = setting
        self._callers = HeldByCallers(together - together // LAST_PART, SMALL_BYTES)
        self._lock = threading.Lock()
        self.held = 0

    @property
    def has_room(self) -> bool:
        """Whether small requests would be admitted."""
        return self.held < self._together

    def reserve(self, size: int, context: RequestContext) -> None:
        """Reserve bytes for a call until its context is released.

        Raises:
            TooLarge: the request alone needs more than there is.
            Overloaded: there is no room for it beside the others.
        """
        caller = context.caller
        self._take(size, caller)
        if context.reservations is None:
            context.reservations = []
        context.reservations.append((partial(self.give_back, caller=caller), size))

    def reserved(self, size: int, context: RequestContext) -> bool:
        """Reserve bytes as `reserve` does; return False where there is no room."""
        try:
            self.reserve(size, context)
        except (Overloaded, TooLarge):
            return False
        return True

    @contextmanager
    def held_for(self, size: int) -> Iterator[None]:
        """Reserve bytes for the length of a block; raise as `reserve` does."""
        caller = CURRENT_CALL.get().caller
        self._take(size, caller)
        try:
            yield
        finally:
            self.give_back(size, caller)

    def add(self, size: int) -> None:
        """Count bytes whether there is room or not."""
        with self._lock:
            self.held += size

    def give_back(self, size: int, caller: str = "") -> None:
        """Stop counting bytes."""
        with self._lock:
            self.held -= size
            self._callers.give_back(caller, size)

    def _take(self, size: int, caller: str) -> None:
        if size > self._together:
            raise TooLarge(
                f"this needs {size} bytes of memory",
                allowed=f"this server has {self._together} for all requests",
                remedy=f"send fewer or shorter inputs, or have {self._setting} raised",
            )
        most = self._together if size <= SMALL_BYTES else self._large
        with self._lock:
            held = self.held
            fits = not held or not size or held + size <= most
            if fits and self._callers.take(caller, size, held if size else 0):
                self.held += size
                return
        raise Overloaded(
            f"requests under way hold {held} bytes and this one needs {size}",
            RETRY_SECONDS,
            allowed=f"this server has {self._together} for them",
            remedy="try again in a moment, or with fewer inputs",
        )
