"""How long a new request may be delayed by others, and when a refused one is to be sent again."""

from typing import Protocol

from service.errors import Overloaded

SLOWDOWN = 64  # a request may be delayed by this many times its own run time, and besides by a part of max_seconds:
CALM_FRACTION = 9  # this part, and
OVERLOADED_FRACTION = 90  # this part where the caller sends more than can be served,
HOLD_FRACTION = 15  # which it no longer does after this part of max_seconds without a refusal
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
    of it is served: a request may wait for 64 like it, and for a few seconds more, up to `max_seconds`. Where that is
    not enough, more arrives than can be served, and a long queue would only make every answer late. So from its first
    refusal until it has had none for a while, a caller's queue is kept short (as CoDel keeps a standing queue short;
    Nichols and Jacobson 2012), but never shorter than full batches need. In proportion to its own run time, since
    clients that send short requests give up sooner: with 45 s for all, a crowd of single texts that give up after 10 s
    would be computed for nothing.

    Args:
        max_seconds: how long others may delay a request, by the measured drain rate.
        full_cost: the cost of a full batch.
    """

    def __init__(self, max_seconds: float, full_cost: int) -> None:
        self._max_seconds = max_seconds
        self._full_cost = full_cost

    def check(self, caller: RefusedCaller, delay: float, cost: int, rate: float, now: float, callers: int = 1) -> None:
        """Check whether a request may wait.

        Args:
            delay: seconds that others would delay it.
            cost: its own.
            rate: cost a second, shared by `callers`.

        Raises:
            Overloaded: it would wait too long; the error says after how many seconds it would not.
        """
        if delay <= self._allowed(caller, cost, rate, now):
            return
        wait, allowed = self.refuse(caller, delay, cost, rate, now, callers)
        raise Overloaded(
            f"the tokens that are waiting would delay this request by {delay:.2g} s; this server lets one wait "
            f"{allowed:.2g} s: try again in a moment",
            wait,
        )

    def refuse(
        self,
        caller: RefusedCaller,
        delay: float,
        cost: int,
        rate: float,
        now: float,
        callers: int = 1,
        room_after: float = 0.0,
    ) -> tuple[float, float]:
        """Note that a request was refused, for its delay or because there is room only after `room_after` seconds.

        Returns:
            The seconds after which it is to be sent again, so that the retries of a crowd come one after the other,
            and the seconds that it may be delayed then.
        """
        caller.refused_at = now
        allowed = self._allowed(caller, cost, rate, now)
        seconds = max(room_after, delay - allowed, min(caller.next_retry - now, MOST_RETRY_SECONDS))
        caller.next_retry = now + seconds + callers * cost / rate
        return seconds, allowed

    def remembers(self, caller: RefusedCaller, now: float) -> bool:
        """Return whether a caller was refused lately."""
        return now - caller.refused_at < self._max_seconds / HOLD_FRACTION

    def _allowed(self, caller: RefusedCaller, cost: int, rate: float, now: float) -> float:
        """Return how long a new request may be delayed now."""
        fraction = OVERLOADED_FRACTION if self.remembers(caller, now) else CALM_FRACTION
        seconds = min(self._max_seconds, self._max_seconds / fraction + SLOWDOWN * cost / rate)
        return max(seconds, FULL_BATCHES * self._full_cost / rate)
