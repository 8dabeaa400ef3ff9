"""How long a new request may be delayed by others, and when a refused one is to be sent again."""

from typing import Protocol

from service.errors import Overloaded

OVERLOADED_FRACTION = 90  # `max_seconds` is divided by it for a caller that sends more than can be served
HOLD_FRACTION = 15  # of `max_seconds`: without a refusal for so long, a caller no longer counts as such
SLOWDOWN = 64  # then still, a request may be delayed by this many times its own run time, up to max_seconds
FULL_BATCHES = 1.5  # may always be queued, so that the next run is a full one
MOST_RETRY_SECONDS = 10.0  # for the sake of others that retry: many of them may never do


class RefusedCaller(Protocol):
    """What is remembered of a caller's refusals.

    Attributes:
        refused_at: when a request of it was last refused for want of room.
        next_retry: when the next refused request is to be sent again.
    """

    refused_at: float
    next_retry: float


class Patience:
    """The time that a request without a deadline may wait.

    A caller that sends a bulk from several threads waits for each answer, so its queue stops growing by itself, and all
    of it is served. If `max_seconds` are not enough, more arrives than can be served, and a long queue would only make
    every answer late. So from its first refusal until it has had none for a while, a caller's queue is kept short (as
    CoDel keeps a standing queue short; Nichols and Jacobson 2012), but never shorter than full batches need, nor than
    SLOWDOWN requests like the new one: a request that takes long by itself may wait longer.

    Args:
        max_seconds: how long others may delay a request, by the measured drain rate.
        full_cost: the cost of a full batch.
    """

    def __init__(self, max_seconds: float, full_cost: int) -> None:
        self._max_seconds = max_seconds
        self._full_cost = full_cost

    def check(self, caller: RefusedCaller, delay: float, cost: int, rate: float, now: float) -> None:
        """Check whether a request may wait.

        Args:
            delay: seconds that others would delay it.
            cost: its own.
            rate: cost a second.

        Raises:
            Overloaded: it would wait too long; the error says after how many seconds it would not.
        """
        if delay <= self._allowed(caller, cost, rate, now):
            return
        caller.refused_at = now
        allowed = self._allowed(
            caller, cost, rate, now
        )  # from now on, so that a retry after the given time is admitted
        raise Overloaded(
            f"the tokens that are waiting would delay this request by {delay:.2g} s; this server lets one wait "
            f"{allowed:.2g} s: try again in a moment",
            _retry_after(caller, delay - allowed, cost / rate, now),
        )

    def remembers(self, caller: RefusedCaller, now: float) -> bool:
        """Return whether a caller was refused lately."""
        return now - caller.refused_at < self._max_seconds / HOLD_FRACTION

    def _allowed(self, caller: RefusedCaller, cost: int, rate: float, now: float) -> float:
        """Return how long a new request may be delayed now."""
        seconds = self._max_seconds
        if self.remembers(caller, now):
            seconds = min(seconds, seconds / OVERLOADED_FRACTION + SLOWDOWN * cost / rate)
        return max(seconds, FULL_BATCHES * self._full_cost / rate)


def _retry_after(caller: RefusedCaller, room_after: float, own_seconds: float, now: float) -> float:
    """Return the seconds to the retry of a refused request, so that the retries of a crowd come one after the other."""
    seconds = max(room_after, min(caller.next_retry - now, MOST_RETRY_SECONDS))
    caller.next_retry = now + seconds + own_seconds
    return seconds
