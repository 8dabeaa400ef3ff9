"""The queue of one graph: decides which requests may join and which items run next, and measures the drain rate.

Callers share the graph evenly: a caller's turn is the virtual time at which it would be served if it got an equal share
(start-time fair queueing, Goyal, Vin and Cheng 1996). Of one caller's requests the one with the least work left goes
first, those of like size in the order of arrival, and its oldest request gets a fixed part of what the caller gets. A
text is so computed in the next run, beside a flood of another caller or of its own; requests of a flood end one after
the other and not all at the end, and none starves (`tests/service/scheduling/test_overload.py`).

Bulk callers, whose names begin with BULK, run while no others wait, and get a share of the cost while others do
(`tests/service/scheduling/test_priority.py`). They share among themselves as the others do.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic

from service.errors import DeadlineExceeded, Overloaded
from service.request_context import BULK
from service.scheduling.callers import Caller, Item, ItemTimes, QueuedItem, Request, Result

NEVER = float("-inf")
RATE_WEIGHT = 0.2  # weight of the newest full batch in the drain rate
LOOK_AHEAD = 4  # full batches of a request's items that run by their cost: padded graphs compute 10 to 20 % fewer rows
MAX_REMEMBERED = 1024  # callers without queued work that had more than their share
SMALL_SHARE = 8  # a caller that holds less than this part of the queue ...
HEADROOM = 1.25  # ... may join until the queue is this much over its bound: the others cannot fill it alone
SLOWDOWN = 64  # a request may be delayed by this many times its own run time, and besides by a part of max_seconds:
CALM_FRACTION = 6  # this part, and
OVERLOADED_FRACTION = 60  # this part after a refusal, until there was none
HOLD_FRACTION = 10  # for this part of max_seconds
OWN_WORK = 2  # a request without a deadline has max_seconds and this many times its own run time
BULK_PART = 3 / 4  # of the queue's bounds, for bulk callers together
FULL_BATCHES = 1.5  # full batches that may always be queued, so that the next run is a full one
MAX_RETRY_SECONDS = 10.0  # most seconds that other refused requests add to a retry: many of them may never come


Head = tuple[float, int, Caller[Item, Result], deque[Request[Item, Result]]]
"""Of a heap of callers: turn, place in the order of arrival, the caller and its requests, smallest first."""


class FairQueue(Generic[Item, Result]):
    """The queued items of one graph.

    If nothing else is queued, a request is admitted whatever the drain rate says, since only runs correct a rate that
    is too low.

    A request without a deadline may wait for 64 requests like it and for some seconds more, in all `max_seconds`, so
    that a caller who sends a bulk from several threads is served. Where that is not enough, more arrives than can be
    computed, and a long queue would make every answer late: from a refusal until there was none for a while the queue
    is kept short, as CoDel does (Nichols and Jacobson 2012). At four times the capacity a text then waits 0.8 s and
    not 5.3 s. Refused requests are told to come again one after the other: a crowd is served in 1.7 tries each, and
    two thirds of it never if all are told the same time (`tests/service/scheduling/test_overload.py`).

    Args:
        max_cost: the cost that may be queued, reservations included.
        max_seconds: how long others may delay a new request, by the measured drain rate; None: any time.
        full_cost: the cost of a full batch.
        max_requests: the requests that may be queued, reservations included; None: any number.
        bulk_share: the part of the cost that bulk callers get while others wait too, below 1.

    Attributes:
        requests: the number of requests with something queued or reserved.
        items: the number of queued items, cancelled ones included until their turn.
        cost: cost of these items.
        reserved: cost of admitted requests that are still being tokenized.
        rate: the cost a second of full batches; None until one has been timed.
    """

    def __init__(
        self,
        max_cost: int,
        max_seconds: float | None,
        full_cost: int = 0,
        max_requests: int | None = None,
        bulk_share: float = 0.1,
    ) -> None:
        self._max_cost, self._max_requests = max_cost, max_requests
        self._max_seconds, self._full_cost, self._bulk_share = max_seconds, full_cost, bulk_share
        self._patience = float("inf") if max_seconds is None else max_seconds
        self._callers: dict[str, Caller[Item, Result]] = {}  # callers with queued or reserved work
        self._turns: dict[str, float] = {}  # turns of callers that left after more than their share, the oldest first
        self._number = 0  # of the newest item
        # of callers that are not bulk, and of those that are:
        self._now = [0.0, 0.0]  # virtual time
        self._costs = [0, 0]  # queued and reserved
        self._refused_at, self._next_retry = [NEVER, NEVER], [NEVER, NEVER]
        self._owed = 0.0  # cost that bulk callers should have got beside others, and have not
        self.requests = self.items = self.cost = self.reserved = 0
        self.rate: float | None = None

    @property
    def remembered(self) -> int:
        """The number of callers with any state."""
        return len(self._callers) + len(self._turns)

    def reserve(self, cost: int, caller: str = "") -> None:
        """Count an admitted request that is still being tokenized."""
        active = self._active(caller)
        active.cost += cost
        active.reservations += 1
        self._costs[active.is_bulk] += cost
        self.reserved += cost
        self.requests += 1

    def release(self, cost: int, caller: str = "") -> None:
        """Stop counting a reserved request, which joins now or has failed."""
        active = self._callers[caller]
        active.cost -= cost
        active.reservations -= 1
        self._costs[active.is_bulk] -= cost
        self.reserved -= cost
        self.requests -= 1
        self._retire((active,))

    def _active(self, name: str) -> Caller[Item, Result]:
        """Return the state of a caller that joins."""
        if name not in self._callers:
            self._callers[name] = Caller(name, self._turns.pop(name, 0.0), name.startswith(BULK))
        return self._callers[name]

    def _retire(self, callers: Iterable[Caller[Item, Result]]) -> None:
        """Forget callers without queued or reserved work, and all shares if nothing is queued.

        The turn of those that had more than their share is kept while something is.
        """
        for caller in callers:
            if not caller.requests and not caller.reservations:
                del self._callers[caller.name]
                if caller.turn > self._now[caller.is_bulk]:
                    self._turns[caller.name] = caller.turn
        while len(self._turns) > MAX_REMEMBERED:
            del self._turns[next(iter(self._turns))]
        if not self.items:
            self._turns.clear()
            self._owed = 0.0
            for caller in self._callers.values():
                caller.turn = caller.owed = 0.0

    # ---- which requests may join

    def check(self, cost: int, now: float, deadline: float | None, caller: str = "") -> None:
        """Check whether a request of this cost may join.

        Raises:
            Overloaded: the queue has no room; the error says after how many seconds it should.
            DeadlineExceeded: the request could not be done in time.
        """
        if deadline is not None and now >= deadline:
            raise DeadlineExceeded("the time allowed was over before this could wait", remedy="allow more time")
        if not self.requests:
            return
        delay = self.delay(cost, caller)
        if deadline is not None and now + (needed := delay + self._run_seconds(cost)) > deadline:
            raise DeadlineExceeded(
                f"{deadline - now:.3g} s are left and this needs about {needed:.3g} s",
                remedy="allow more time or try again later",
            )
        bulk = caller.startswith(BULK)
        self._check_room(cost, now, caller, delay)
        if delay <= self._allowed(cost, now, bulk):
            return
        wait = self._retry_after(cost, now, delay, 0.0, bulk)
        raise Overloaded(
            f"the tokens that are waiting would delay this request by {delay:.2g} s",
            wait,
            allowed=f"this server lets one wait {self._allowed(cost, now, bulk):.2g} s",
            remedy="try again in a moment",
        )

    def delay(self, cost: int, caller: str = "") -> float:
        """Return the seconds that others would delay a caller's work of this cost; 0 while the rate is unknown."""
        if self.rate is None:
            return 0.0
        held, requests = self._held(caller)
        before = min(held, cost * requests)
        bulk, others = caller.startswith(BULK), len(self._callers) - (caller in self._callers)
        if not self._costs[1]:
            return (before + min(self._costs[0] - held, (before + cost) * others)) / self.rate
        others -= sum([each.is_bulk != bulk for each in self._callers.values()])
        ahead = before + min(self._costs[bulk] - held, (before + cost) * others)
        return (ahead + self._costs[0] if bulk else ahead / (1 - self._bulk_share)) / self.rate

    def _held(self, name: str) -> tuple[int, int]:
        """Return the cost and the number of the requests that a caller has queued or reserved."""
        caller = self._callers.get(name)
        return (caller.cost, len(caller.requests) + caller.reservations) if caller else (0, 0)

    def _run_seconds(self, cost: int) -> float:
        """Return the seconds that work of this cost takes if nothing else is queued."""
        return cost / self.rate if self.rate else 0.0

    def _check_room(self, cost: int, now: float, caller: str, delay: float) -> None:
        ahead, (held, requests), bulk = self.cost + self.reserved, self._held(caller), caller.startswith(BULK)
        part = BULK_PART if bulk else 1
        over = ahead + cost - part * _bound(self._max_cost, self._max_cost if bulk else held + cost)
        if over > 0:
            raise Overloaded(
                f"{ahead} tokens are waiting and this request brings {cost}",
                self._retry_after(cost, now, delay, over, bulk),
                allowed=f"the queue holds {self._max_cost * part:.0f}",
                remedy="try again in a moment",
            )
        if self._max_requests is not None and self.requests >= part * _bound(
            self._max_requests, self._max_requests if bulk else requests + 1
        ):
            raise Overloaded(
                f"{self.requests} requests are waiting",
                self._retry_after(cost, now, delay, ahead / self.requests, bulk),
                allowed=f"the queue holds {self._max_requests * part:.0f}",
                remedy="try again in a moment",
            )

    def _allowed(self, cost: int, now: float, bulk: bool = False) -> float:
        """Return the seconds that others may delay a request of this cost."""
        if self._max_seconds is None or self.rate is None:
            return float("inf")
        refuses = now - self._refused_at[bulk] < self._max_seconds / HOLD_FRACTION
        patience = self._max_seconds / (OVERLOADED_FRACTION if refuses else CALM_FRACTION)
        seconds = min(self._max_seconds, patience + SLOWDOWN * cost / self.rate)
        return max(seconds, FULL_BATCHES * self._full_cost / self.rate)

    def _retry_after(self, cost: int, now: float, delay: float, over: float, bulk: bool) -> float | None:
        """Return the seconds after which a refused request should be sent again; refused requests are spread over time.

        Args:
            over: the cost that has to go before there is room for it.
        """
        if self.rate is None:
            return None
        self._refused_at[bulk] = now
        others = min(self._next_retry[bulk] - now, MAX_RETRY_SECONDS)
        wait = max(over / self.rate, delay - self._allowed(cost, now, bulk), others)
        self._next_retry[bulk] = now + wait + cost / self.rate
        return wait

    # ---- which items run next

    def add(
        self,
        item: Item,
        cost: int,
        future: "asyncio.Future[Result]",
        now: float,
        times: ItemTimes,
        deadline: float | None,
    ) -> None:
        """Queue one item of a request."""
        self._number += 1
        caller = self._callers.get(times.caller) or self._active(times.caller)
        if not caller.requests:
            caller.turn = max(caller.turn, self._now[caller.is_bulk])
        request = caller.requests.get(times)
        if request is None:
            request = caller.requests[times] = Request()
            self.requests += 1
        window = request.added // (LOOK_AHEAD * self._full_cost or 1)
        heappush(request.items, QueuedItem(window, cost, self._number, item, now, future, times, deadline))
        request.added += cost
        request.cost += cost
        caller.cost += cost
        self._costs[caller.is_bulk] += cost
        self.items += 1
        self.cost += cost

    def take(
        self, max_cost: int, now: float, light: bool = False, small_cost: int = 0
    ) -> list[QueuedItem[Item, Result]]:
        """Return the next batch, at most `max_cost` in cost unless one item alone costs more; refuse late items.

        Where more waits than one batch, an item that a full batch would make late is refused: at twice the capacity
        1.03 of it is then answered in time, and 0.53 if only the item's own run time counts.

        Args:
            light: take only requests of up to `max_cost`, of callers whose turn is at most a full batch away.
            small_cost: what a batch may cost whose last request costs up to `max_cost`, where that is more.
        """
        full_cost = max(max_cost, small_cost)
        costs = max_cost, full_cost
        batch: list[QueuedItem[Item, Result]] = []
        fits = light or self.cost <= full_cost or self.items == 1
        full = None if fits else full_cost
        callers = [caller for caller in self._callers.values() if caller.requests]
        if not self._costs[1]:
            self._take_of(callers, batch, costs, now, full, light)
        else:
            bulk = [caller for caller in callers if caller.is_bulk]
            others = [caller for caller in callers if not caller.is_bulk]
            if bulk and others and not light:
                self._owed -= self._take_of(bulk, batch, costs, now, full, light, self._owed)
            taken = self._take_of(others, batch, costs, now, full, light)
            if bulk:
                self._owed += taken * self._bulk_share / (1 - self._bulk_share)
            if not batch:
                self._take_of(bulk, batch, costs, now, full, light)
        self._retire(callers)
        return batch

    def _take_of(
        self,
        callers: Sequence[Caller[Item, Result]],
        batch: list[QueuedItem[Item, Result]],
        costs: tuple[int, int],
        now: float,
        full: int | None,
        light: bool,
        most: float | None = None,
    ) -> int:
        """Add items of callers, all bulk or none, to a batch as `take` says; return their cost.

        Args:
            costs: what the batch may cost, and if its last request costs no more than that.
            full: as for `_due`.
            most: their cost at most; None: that of the batch decides.
        """
        if not callers:
            return 0
        taken, held = 0, sum([item.cost for item in batch])
        first_turn, bulk = min([caller.turn for caller in callers]), callers[0].is_bulk
        heads = [
            (each.turn, place, each, each.smallest_first(costs[0] if light else None))
            for place, each in enumerate(callers)
            if not light or each.turn <= first_turn + self._full_cost
        ]
        heapify(heads)
        while request := self._due(heads, now, full):
            item, (_, place, caller, smallest) = request.items[0], heads[0]
            bound = costs[request.added <= costs[0]]
            if (batch and held + taken + item.cost > bound) or (most is not None and taken + item.cost > most):
                break
            taken += item.cost
            batch.append(item)
            caller.charge(item.cost, request)
            self._remove(item, caller, request)
            heapreplace(heads, (caller.turn, place, caller, smallest))
        self._now[bulk] = max(self._now[bulk], first_turn) + taken / len(callers)
        return taken

    def _due(self, heads: list[Head[Item, Result]], now: float, full: int | None) -> Request[Item, Result] | None:
        """Return the request whose item runs next, of the first caller of a heap; refuse late items before it.

        Args:
            full: cost of the batch, which an item ends with; None: it begins at once.
        """
        while heads:
            caller, smallest = heads[0][2:]
            request = caller.next_request(smallest)
            if request is None:
                heappop(heads)
                continue
            item = request.items[0]
            done = now if full is None else now + self._run_seconds(max(item.cost, full))
            if not item.future.done():
                waited = now - item.since
                if waited <= self._patience if item.deadline is None else done <= item.deadline:
                    return request
                late = self._lateness(item, waited, caller, request.added)
                if late is None:
                    return request
                item.future.set_exception(late)
            self._remove(item, caller, request)
        return None

    def _lateness(
        self, item: QueuedItem[Item, Result], waited: float, caller: Caller[Item, Result], cost: int
    ) -> DeadlineExceeded | None:
        """Return the error of an item that came too late to its turn, in a request of this cost.

        None: its request names no deadline and is bulk, or long enough to take more time by itself.
        """
        if item.deadline is not None:
            late = f"the time allowed was over after {waited:.3g} s of waiting"
            return DeadlineExceeded(late, remedy="allow more or try again later")
        if caller.is_bulk or self.rate is None or waited <= self._patience + OWN_WORK * self._run_seconds(cost):
            return None
        return DeadlineExceeded(
            f"this waited {waited:.3g} s and is not done",
            allowed=f"a request that names no deadline has {self._patience:g} s and the time of its own work",
            remedy="name a longer one, such as inlay-timeout-ms, send fewer inputs, or try again later",
        )

    def _remove(
        self, item: QueuedItem[Item, Result], caller: Caller[Item, Result], request: Request[Item, Result]
    ) -> None:
        """Remove the first item of a request."""
        heappop(request.items)
        request.cost -= item.cost
        caller.cost -= item.cost
        self._costs[caller.is_bulk] -= item.cost
        self.items -= 1
        self.cost -= item.cost
        if not request.items:
            del caller.requests[item.times]
            self.requests -= 1

    def drained(self, cost: int, seconds: float, full: bool) -> None:
        """Record that a batch of `cost` took `seconds`; a batch that is not full can only raise the rate."""
        if seconds <= 0:
            return
        rate = cost / seconds
        if full:
            self.rate = rate if self.rate is None else self.rate + RATE_WEIGHT * (rate - self.rate)
        elif self.rate is not None and rate > self.rate:
            self.rate = rate


def _bound(most: int, held: int) -> float:
    """Return the bound of the queue for a caller that would hold `held` of it."""
    return most * HEADROOM if held * SMALL_SHARE <= most else most
