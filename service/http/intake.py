"""The bound on request bodies: of one, and of all that are still being received."""

from service.errors import Overloaded

RETRY_SECONDS = 1.0


class Intake:
    """Counts the bytes of incomplete bodies, since many clients may send large bodies slowly.

    Args:
        most: bytes of one body.
        together: bytes of all incomplete bodies; a body that arrives in one piece is not counted.
    """

    def __init__(self, most: int, together: int) -> None:
        self.most = most
        self._together = together
        self.held = 0

    def take(self, size: int) -> None:
        """Count bytes that arrived; raise Overloaded if there is no room for them."""
        if self.held + size > self._together:
            raise Overloaded(
                f"bodies that are still being received hold {self.held} bytes",
                RETRY_SECONDS,
                allowed=f"this server takes {self._together} of them at a time",
                remedy="send it again, or in smaller bodies",
            )
        self.held += size

    def give_back(self, size: int) -> None:
        """Stop counting the bytes of a body that is complete or was given up."""
        self.held -= size
