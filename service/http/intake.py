"""How many bytes this process takes in: of one body, and of all that are still coming. Reads none itself."""

from service.errors import Overloaded

RETRY_SECONDS = 1.0


class Intake:
    """Counts what has come of bodies that are not whole yet: thousands of callers may send large ones slowly.

    most       bytes of one body
    together   of all that are still coming; one that comes in one piece is never among them
    """

    def __init__(self, most: int, together: int) -> None:
        self.most = most
        self._together = together
        self.held = 0

    def take(self, size: int) -> None:
        """So many bytes came; raises Overloaded where there is no room for them."""
        if self.held + size > self._together:
            raise Overloaded(
                f"bodies that are still coming hold {self.held} bytes; this server takes {self._together} of them at a "
                "time: send it again, or in smaller bodies",
                RETRY_SECONDS,
            )
        self.held += size

    def give_back(self, size: int) -> None:
        """So many of them are a whole body's now, or will not be."""
        self.held -= size
