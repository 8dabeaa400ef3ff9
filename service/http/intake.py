"""Bounds request bodies: each one, and all that are being received or worked on."""

from functools import partial

from service.errors import BodyTooLarge, Overloaded
from service.request_context import RequestContext
from service.scheduling.memory_budget import HeldByCallers

RETRY_SECONDS = 1.0
SMALL_BYTES = 64  # of a part that is joined to one before it: an object of its own takes as much
UNCOUNTED_BYTES = 65536  # of a body that arrives in one piece
LAST_PART, LITTLE_BYTES = 8, 1 << 20  # the last eighth is for callers whose bodies have a MiB or less together


class Intake:
    """Counts the bytes of bodies until their requests are finished, since many clients may send large ones slowly.

    Args:
        most: bytes of one body.
        together: bytes of all bodies; a small one that arrives in one piece is not counted.
    """

    def __init__(self, most: int, together: int) -> None:
        self.most = most
        self._together = together
        self._callers = HeldByCallers(together - together // LAST_PART, LITTLE_BYTES)
        self.held = 0

    def take(self, size: int, caller: str) -> None:
        """Count bytes that arrived from a caller; raise Overloaded if there is no room for them."""
        if self.held + size > self._together or not self._callers.take(caller, size, self.held):
            raise Overloaded(
                f"bodies that are being received or worked on hold {self.held} bytes",
                RETRY_SECONDS,
                allowed=f"this server takes {self._together} of them at a time",
                remedy="send it again, or in smaller bodies",
            )
        self.held += size

    def give_back(self, size: int, caller: str) -> None:
        """Stop counting the bytes of a body that is complete or was abandoned."""
        self.held -= size
        self._callers.give_back(caller, size)


class IncomingBody:
    """The body of the request that one connection receives.

    Args:
        intake: counts the bytes of bodies that come in several parts.

    Attributes:
        size: bytes received so far.
    """

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._parts: list[bytes | bytearray] = []
        self._counted = 0
        self._caller = ""
        self.size = 0

    def add(self, part: bytes, declared: int | None, caller: str) -> None:
        """Add the next part of the body.

        Args:
            part: the bytes.
            declared: the content-length; None: the body comes in chunks.
            caller: who sends the body.

        Raises:
            BodyTooLarge: the body is longer than one may be.
            Overloaded: the incomplete bodies of all connections together are.
        """
        self.size += len(part)
        if self.size > self._intake.most:
            raise too_large(self.size, self._intake.most)
        if len(part) > SMALL_BYTES or not self._parts:
            self._parts.append(part)
        elif isinstance(self._parts[-1], bytearray):
            self._parts[-1] += part
        else:
            self._parts.append(bytearray(part))
        if self.size != declared or len(self._parts) > 1 or self.size > UNCOUNTED_BYTES:
            self._intake.take(len(part), caller)
            self._caller = caller
            self._counted += len(part)

    def complete(self, context: RequestContext) -> bytes:
        """Return the whole body, and begin the next one; its bytes count until the request's context is released."""
        parts = self._parts
        if not parts:
            return b""
        body = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        if self._counted:
            context.reservations = [(partial(self._intake.give_back, caller=self._caller), self._counted)]
            self._counted = 0
        self.drop()
        return body

    def drop(self) -> None:
        """Discard the received part, and begin the next body."""
        self._parts, self.size = [], 0
        if self._counted:
            self._intake.give_back(self._counted, self._caller)
            self._counted = 0


def too_large(size: int, allowed: int) -> BodyTooLarge:
    """Return the error for a body of `size` bytes or more."""
    return BodyTooLarge(
        f"the body has {size} bytes or more",
        allowed=f"this server takes {allowed}",
        remedy="send fewer inputs at a time",
    )
