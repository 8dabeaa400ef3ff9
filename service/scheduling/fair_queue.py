"""The queue of one graph: decides which requests may join and which items run next, and measures the drain rate.

Requests share the graph evenly: an item's turn is the virtual time at which its request, given an equal share, would be
served (start-time fair queueing; Goyal, Vin and Cheng 1996). A request of a thousand texts delays a request of one text
by that text's own share, not by the thousand.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from typing import Generic, NamedTuple, TypeVar

from service.errors import DeadlineExceeded, Overloaded

LOOK_AHEAD = 4  # batches of items, by turn, among which those of like cost are chosen
RATE_WEIGHT = 0.2  # of the newest full batch in the drain rate
OVERLOADED_FRACTION = 8  # `max_seconds` is divided by it while more arrives than can be served
FULL_BATCHES = 1.5  # may always be queued, so that the next run is a full one
SLOWDOWN = 4  # a request may be delayed by this many times its own run time, even if that exceeds max_seconds
Item = TypeVar("Item")
Result = TypeVar("Result")


class ItemTimes:
    """Seconds that the items of one request waited and ran; each item of a batch counts the batch's whole run."""

    __slots__ = ("items", "queued", "ran")

    def __init__(self) -> None:
        self.items, self.queued, self.ran = 0, 0.0, 0.0

    def add(self, queued: float, ran: float) -> None:
        """Add one finished item."""
        self.items += 1
        self.queued += queued
        self.ran += ran


class QueuedItem(NamedTuple, Generic[Item, Result]):
    """One item and the future that its request awaits.

    Args:
        times: collects the request's times; items of one request share it.
        turn: the virtual time at which it is due.
        number: its place in the order of arrival, for items of one turn.
        deadline: on the clock of `since`; after it the caller no longer waits.
    """

    item: Item
    cost: int
    since: float
    future: "asyncio.Future[Result]"
    times: ItemTimes
    turn: float
    number: int
    deadline: float | None


class FairQueue(Generic[Item, Result]):
    """The queued items of one graph.

    A burst may fill the queue up to `max_seconds`. If that is not enough, more arrives than can be served, and a long
    queue would make every request late. So from the first refusal until `max_seconds` have passed without one, the
    queue is limited to a fraction of `max_seconds` (as CoDel keeps a standing queue short; Nichols and Jacobson 2012),
    but always has room for full batches. If nothing else is queued, a request is admitted whatever the drain rate
    says, since only runs correct a rate that is too low.

    Args:
        max_cost: the cost that may be queued, reservations included.
        max_seconds: how long others may delay a new request, by the measured drain rate; None: any time.
        full_cost: the cost of a full batch.
    """

    def __init__(self, max_cost: int, max_seconds: float | None, full_cost: int = 0) -> None:
        self._max_cost = max_cost
        self._max_seconds = max_seconds
        self._full_cost = full_cost
        self._refused_at = float("-inf")  # for being late
        self._requests: dict[ItemTimes, deque[QueuedItem[Item, Result]]] = {}  # items of each by turn, never empty
        self._number = 0  # of the newest item
        self._has_deadlines = False  # a queued item may have one
        self._now = 0.0  # virtual time
        self._reservations = 0
        self.items = 0  # cancelled ones included, until they are next looked at
        self.cost = 0
        self.reserved = 0  # cost of admitted requests that are still being tokenized
        self.rate: float | None = None  # cost a second; None until a full batch has been timed

    def reserve(self, cost: int) -> None:
        """Count an admitted request that is still being tokenized."""
        self.reserved += cost
        self._reservations += 1

    def release(self, cost: int) -> None:
        """Stop counting a reserved request, which joins now or has failed."""
        self.reserved -= cost
        self._reservations -= 1

    def delay(self, cost: int) -> float:
        """Return the seconds that others would delay work of this cost; 0 while the rate is not known."""
        if self.rate is None:
            return 0.0
        return min(self.cost + self.reserved, cost * (len(self._requests) + self._reservations)) / self.rate

    def check(self, cost: int, now: float, deadline: float | None) -> None:
        """Check whether a request of this cost may join.

        Raises:
            Overloaded: there is no room; the error says after how many seconds there should be.
            DeadlineExceeded: the request could not be done in time.
        """
        if deadline is not None and now >= deadline:
            raise DeadlineExceeded("the time allowed was over before this could wait: allow more time")
        if not self.items and not self.reserved:
            return
        if deadline is not None and now + (needed := self.delay(cost) + self._run_seconds(cost)) > deadline:
            raise DeadlineExceeded(
                f"{deadline - now:.3g} s are left and this needs about {needed:.3g} s: allow more time or try again "
                "later"
            )
        self._check_room(cost)
        if self._max_seconds is not None and self.rate is not None:
            self._check_delay(cost, now, self._max_seconds, self.rate)

    def _run_seconds(self, cost: int) -> float:
        """Return the seconds that work of this cost takes if nothing else is queued."""
        return cost / self.rate if self.rate else 0.0

    def _check_room(self, cost: int) -> None:
        ahead = self.cost + self.reserved
        if (over := ahead + cost - self._max_cost) > 0:
            raise Overloaded(
                f"{ahead} tokens are waiting and this request brings {cost}; the queue holds "
                f"{self._max_cost}: try again in a moment",
                None if self.rate is None else over / self.rate,
            )

    def _check_delay(self, cost: int, now: float, seconds: float, rate: float) -> None:
        delay, own_delay = self.delay(cost), SLOWDOWN * cost / rate
        if delay <= self._allowed_delay(seconds, rate, now) + own_delay:
            return
        self._refused_at = now
        # what is allowed from this refusal on, so that a retry after the given time is admitted
        allowed = self._allowed_delay(seconds, rate, now) + own_delay
        raise Overloaded(
            f"{self.cost + self.reserved} tokens are waiting, which would delay this request by {delay:.2g} s; this "
            f"server lets one wait {allowed:.2g} s: try again in a moment",
            delay - allowed,
        )

    def _allowed_delay(self, seconds: float, rate: float, now: float) -> float:
        """Return how long a new request may be delayed now."""
        if now - self._refused_at < seconds:
            seconds /= OVERLOADED_FRACTION
        return max(seconds, FULL_BATCHES * self._full_cost / rate)

    def add(
        self,
        item: Item,
        cost: int,
        future: "asyncio.Future[Result]",
        now: float,
        times: ItemTimes,
        deadline: float | None,
    ) -> None:
        """Queue one item of a request, due when the request's share of the graph comes to it."""
        queued, turn = self._requests.get(times), self._now
        if queued:
            turn = max(turn, queued[-1].turn + queued[-1].cost)
        else:
            queued = self._requests[times] = deque()
        self._number += 1
        queued.append(QueuedItem(item, cost, now, future, times, turn, self._number, deadline))
        self.items += 1
        self.cost += cost
        if deadline is not None:
            self._has_deadlines = True

    def take(self, max_cost: int, now: float) -> list[QueuedItem[Item, Result]]:
        """Return the next batch, at most `max_cost` in cost unless one item alone costs more; refuse late items."""
        if self.cost > max_cost:
            self._drop_cancelled()
        if self.cost <= max_cost:
            waiting = [item for queued in self._requests.values() for item in queued if not item.future.done()]
            have_deadlines, self._has_deadlines = self._has_deadlines, False
            self._requests.clear()
            self.items, self.cost, self._now = 0, 0, 0.0
            return self._in_time_or_refused(waiting, now) if have_deadlines else waiting
        requests, due = len(self._requests), self._next(LOOK_AHEAD * max_cost, now)
        if not due:
            return []
        chosen, taken = _of_like_cost(due, max_cost)
        self._now = max(self._now, due[0].turn) + taken / requests
        self._requeue([item for item in due if item.number not in chosen])
        return [item for item in due if item.number in chosen]

    def _drop_cancelled(self) -> None:
        """Forget the items of requests that were cancelled."""
        for times, queued in list(self._requests.items()):
            while queued and queued[0].future.done():
                self.items -= 1
                self.cost -= queued.popleft().cost
            if not queued:
                del self._requests[times]

    def _next(self, reach: int, now: float) -> list[QueuedItem[Item, Result]]:
        """Remove and return the items due next, until their cost passes `reach`; late ones are refused."""
        due: list[QueuedItem[Item, Result]] = []
        for item in self._in_turn():
            if item.future.done() or not self._in_time(item, now, self._run_seconds(item.cost)):
                continue
            reach -= item.cost if due else 0
            due.append(item)
            if reach < 0:
                break
        return due

    def _in_turn(self) -> Iterator[QueuedItem[Item, Result]]:
        """Remove and yield every item in its turn."""
        heads = [(queued[0].turn, queued[0].number, queued) for queued in self._requests.values()]
        heapify(heads)
        while heads:
            _, _, queued = heads[0]
            item = queued.popleft()
            self.items -= 1
            self.cost -= item.cost
            if queued:
                heapreplace(heads, (queued[0].turn, queued[0].number, queued))
            else:
                heappop(heads)
                del self._requests[item.times]
            yield item

    def _requeue(self, items: list[QueuedItem[Item, Result]]) -> None:
        for item in reversed(items):
            self._requests.setdefault(item.times, deque()).appendleft(item)
            self.items += 1
            self.cost += item.cost

    def _in_time_or_refused(
        self, waiting: list[QueuedItem[Item, Result]], now: float
    ) -> list[QueuedItem[Item, Result]]:
        """Return the items that can be done in time, or if none can, those before their deadline; refuse the others."""
        some_in_time = any(
            [item.deadline is None or now + self._run_seconds(item.cost) <= item.deadline for item in waiting]
        )
        return [
            item for item in waiting if self._in_time(item, now, self._run_seconds(item.cost) if some_in_time else 0.0)
        ]

    def _in_time(self, item: QueuedItem[Item, Result], now: float, needed: float) -> bool:
        """Return whether an item that needs `needed` seconds can be done in time; refuse it otherwise."""
        if item.deadline is None or now + needed <= item.deadline:
            return True
        item.future.set_exception(
            DeadlineExceeded(
                f"the time allowed was over after {now - item.since:.3g} s of waiting: allow more or try again later"
            )
        )
        return False

    def drained(self, cost: int, seconds: float, full: bool) -> None:
        """Note that a batch of `cost` took `seconds`; a batch that is not full can only raise the rate."""
        if seconds <= 0:
            return
        rate = cost / seconds
        if full:
            self.rate = rate if self.rate is None else self.rate + RATE_WEIGHT * (rate - self.rate)
        elif self.rate is not None and rate > self.rate:
            self.rate = rate


def _of_like_cost(due: list[QueuedItem[Item, Result]], max_cost: int) -> tuple[set[int], int]:
    """Return the numbers of the first item and of those nearest to its cost that fit beside it, and their cost."""
    first, *others = due
    chosen, taken = {first.number}, first.cost
    for item in sorted(others, key=lambda item: abs(item.cost - first.cost)):
        if taken + item.cost <= max_cost:
            chosen.add(item.number)
            taken += item.cost
    return chosen, taken
