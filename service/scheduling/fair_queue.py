"""The queue of one graph: decides which requests may join and which items run next, and measures the drain rate.

Callers share the graph evenly, and so do the requests of one caller: an item's turn is the virtual time at which it
would be served if its request had an equal share of its caller's share (start-time fair queueing, Goyal, Vin and Cheng
1996, at two levels as in hierarchical packet fair queueing, Bennett and Zhang 1997). A caller with a hundred requests,
or a request of a thousand texts, delays another caller's text by that text's own share.
"""

import asyncio
from collections import Counter
from heapq import heapify, heappop, heapreplace
from typing import Generic

from service.errors import DeadlineExceeded, Overloaded
from service.scheduling.caller_queue import NEVER, CallerQueue, Item, ItemTimes, QueuedItem, Result
from service.scheduling.patience import Patience

LOOK_AHEAD = 4  # batches of items, by turn, among which those of like cost are chosen
RATE_WEIGHT = 0.2  # of the newest full batch in the drain rate
MOST_IDLE = 1024  # callers without queued work whose turn or refusal is remembered
SMALL_SHARE = 8  # a caller that holds less than this part of the queue ...
HEADROOM = 1.25  # ... may join until the queue is this much over its bound: the others cannot fill it alone


class FairQueue(Generic[Item, Result]):
    """The queued items of one graph.

    If nothing else is queued, a request is admitted whatever the drain rate says, since only runs correct a rate that
    is too low.

    Args:
        max_cost: the cost that may be queued, reservations included.
        max_seconds: how long others may delay a new request, by the measured drain rate; None: any time.
        full_cost: the cost of a full batch.
        max_requests: the requests that may be queued, reservations included; None: any number.
    """

    def __init__(
        self, max_cost: int, max_seconds: float | None, full_cost: int = 0, max_requests: int | None = None
    ) -> None:
        self._max_cost, self._max_requests = max_cost, max_requests
        self._patience = None if max_seconds is None else Patience(max_seconds, full_cost)
        self._callers: dict[str, CallerQueue[Item, Result]] = {}  # with something queued or reserved
        self._idle: dict[str, CallerQueue[Item, Result]] = {}  # the oldest first
        self._newcomer: CallerQueue[Item, Result] = CallerQueue("", 0)  # stands for all callers that are in neither
        self._number = 0  # of the newest item
        self._has_deadlines = False  # a queued item may have one
        self._now = 0.0  # virtual time
        self.requests = 0  # with something queued or reserved
        self.items = 0  # cancelled ones included, until they are next looked at
        self.cost = 0
        self.reserved = 0  # cost of admitted requests that are still being tokenized
        self.rate: float | None = None  # cost a second; None until a full batch has been timed

    @property
    def remembered(self) -> int:
        """The number of callers of which something is kept."""
        return len(self._callers) + len(self._idle)

    def reserve(self, cost: int, caller: str = "") -> None:
        """Count an admitted request that is still being tokenized."""
        queue = self._active(caller)
        queue.reserved += cost
        queue.reservations += 1
        self.reserved += cost
        self.requests += 1

    def release(self, cost: int, caller: str = "") -> None:
        """Stop counting a reserved request, which joins now or has failed."""
        queue = self._callers[caller]
        queue.reserved -= cost
        queue.reservations -= 1
        self.reserved -= cost
        self.requests -= 1
        self._retire(queue)

    def _active(self, name: str) -> CallerQueue[Item, Result]:
        """Return the queue of a caller that joins."""
        queue = self._callers.get(name)
        if queue is None:
            self._number += 1
            queue = self._idle.pop(name) if name in self._idle else CallerQueue(name, self._number)
            self._callers[name] = queue
        return queue

    def _retire(self, queue: CallerQueue[Item, Result]) -> None:
        """Drop a caller that has nothing queued; keep its turn if it had more than its share, and its refusal."""
        if queue.requests or queue.reservations:
            return
        del self._callers[queue.name]
        if queue.turn > self._now or queue.refused_at > NEVER:
            self._idle[queue.name] = queue
            if len(self._idle) > MOST_IDLE:
                del self._idle[next(iter(self._idle))]

    def delay(self, cost: int, caller: str = "") -> float:
        """Return the seconds that others would delay a caller's work of this cost; 0 while the rate is not known."""
        if self.rate is None:
            return 0.0
        queue = self._callers.get(caller, self._newcomer)
        own = queue.cost + queue.reserved
        before = min(own, cost * (len(queue.requests) + queue.reservations))
        other_callers = len(self._callers) - (queue is not self._newcomer)
        return (before + min(self.cost + self.reserved - own, (before + cost) * other_callers)) / self.rate

    def check(self, cost: int, now: float, deadline: float | None, caller: str = "") -> None:
        """Check whether a request of this cost may join.

        Raises:
            Overloaded: there is no room; the error says after how many seconds there should be.
            DeadlineExceeded: the request could not be done in time.
        """
        if deadline is not None and now >= deadline:
            raise DeadlineExceeded("the time allowed was over before this could wait: allow more time")
        if not self.requests:
            return
        if deadline is not None and now + (needed := self.delay(cost, caller) + self._run_seconds(cost)) > deadline:
            raise DeadlineExceeded(
                f"{deadline - now:.3g} s are left and this needs about {needed:.3g} s: allow more time or try again "
                "later"
            )
        queue = self._callers.get(caller) or self._idle.get(caller, self._newcomer)
        self._check_room(cost, now, queue)
        if self._patience is not None and self.rate is not None:
            self._patience.check(queue, self.delay(cost, caller), cost, self.rate, now, len(self._callers))

    def _run_seconds(self, cost: int) -> float:
        """Return the seconds that work of this cost takes if nothing else is queued."""
        return cost / self.rate if self.rate else 0.0

    def _check_room(self, cost: int, now: float, queue: CallerQueue[Item, Result]) -> None:
        ahead = self.cost + self.reserved
        over = ahead + cost - _bound(self._max_cost, queue.cost + queue.reserved + cost)
        if over > 0:
            raise Overloaded(
                f"{ahead} tokens are waiting and this request brings {cost}; the queue holds "
                f"{self._max_cost}: try again in a moment",
                self._retry_after(over, cost, now, queue),
            )
        if self._max_requests is None:
            return
        if self.requests >= _bound(self._max_requests, len(queue.requests) + queue.reservations + 1):
            raise Overloaded(
                f"{self.requests} requests are waiting; the queue holds {self._max_requests}: try again in a moment",
                self._retry_after(ahead / self.requests, cost, now, queue),
            )

    def _retry_after(self, over: float, cost: int, now: float, queue: CallerQueue[Item, Result]) -> float | None:
        """Return the seconds until there is room for a request, of which `over` has to go first."""
        if self.rate is None:
            return None
        if self._patience is None:
            return over / self.rate
        delay = self.delay(cost, queue.name)
        return self._patience.refuse(queue, delay, cost, self.rate, now, len(self._callers), over / self.rate)[0]

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
        self._number += 1
        caller = self._callers.get(times.caller) or self._active(times.caller)
        if not caller.requests:
            caller.turn = max(caller.turn, self._now)  # it may have reserved long ago
        self.requests += caller.add(item, cost, future, now, times, self._number, deadline)
        self.items += 1
        self.cost += cost
        if deadline is not None:
            self._has_deadlines = True

    def take(self, max_cost: int, now: float) -> list[QueuedItem[Item, Result]]:
        """Return the next batch, at most `max_cost` in cost unless one item alone costs more; refuse late items."""
        if self.cost > max_cost:
            self._drop_cancelled()
        if self.cost <= max_cost:
            return self._take_all(now)
        callers = [caller for caller in self._callers.values() if caller.requests]
        due = self._next(callers, LOOK_AHEAD * max_cost, now)
        if due:
            self._now = max(self._now, min([self._callers[item.times.caller].turn for item in due]))
            due = self._chosen(due, max_cost, len(callers))
        for caller in callers:
            self._retire(caller)
        return due

    def _take_all(self, now: float) -> list[QueuedItem[Item, Result]]:
        """Return all items; refuse late ones."""
        waiting = [
            item
            for caller in self._callers.values()
            for queued in caller.requests.values()
            for item in queued
            if not item.future.done()
        ]
        have_deadlines, self._has_deadlines = self._has_deadlines, False
        self._clear(now)
        return self._in_time_or_refused(waiting, now) if have_deadlines else waiting

    def _clear(self, now: float) -> None:
        """Remove all items; callers that had more than their share are forgotten, since the queue is empty."""
        remembered = [*self._idle.values(), *self._callers.values()]
        self.items, self.cost, self.requests, self._now = 0, 0, 0, 0.0
        self._callers, self._idle = {}, {}
        for caller in remembered:
            if caller.reservations:
                caller.clear()
                self._callers[caller.name] = caller
                self.requests += caller.reservations
            elif caller.refused_at > NEVER and self._patience is not None and self._patience.remembers(caller, now):
                caller.clear()
                self._idle[caller.name] = caller

    def _drop_cancelled(self) -> None:
        """Forget the items of requests that were cancelled."""
        for caller in list(self._callers.values()):
            self.requests -= len(caller.requests)
            items, cost = caller.drop_cancelled()
            self.requests += len(caller.requests)
            self.items -= items
            self.cost -= cost
            self._retire(caller)

    def _next(self, callers: list[CallerQueue[Item, Result]], reach: int, now: float) -> list[QueuedItem[Item, Result]]:
        """Remove and return the items due next, until their cost passes `reach`; late ones are refused."""
        due: list[QueuedItem[Item, Result]] = []
        heads = [(caller.turn, caller.number, caller, caller.in_turn()) for caller in callers]
        heapify(heads)
        while heads and reach >= 0:
            turn, number, caller, items = heads[0]
            requests = len(caller.requests)
            item = next(items, None)
            if item is None:
                heappop(heads)
                continue
            self.items -= 1
            self.cost -= item.cost
            self.requests -= requests - len(caller.requests)
            if item.future.done() or not self._in_time(item, now, self._run_seconds(item.cost)):
                continue
            reach -= item.cost if due else 0
            due.append(item)
            heapreplace(heads, (turn + item.cost, number, caller, items))
        return due

    def _chosen(
        self, due: list[QueuedItem[Item, Result]], max_cost: int, callers: int
    ) -> list[QueuedItem[Item, Result]]:
        """Return the items of the next batch, charged to their callers; queue the others again."""
        numbers, taken = _of_like_cost(due, max_cost)
        chosen = [item for item in due if item.number in numbers]
        self._now += taken / callers
        costs, first_turns = Counter[str](), dict[str, float]()
        for item in due:
            first_turns.setdefault(item.times.caller, item.turn)
        for item in chosen:
            costs[item.times.caller] += item.cost
        for name, cost in costs.items():
            self._callers[name].charge(cost, first_turns[name])
        for item in reversed(due):
            if item.number not in numbers:
                caller = self._callers[item.times.caller]
                self.requests += item.times not in caller.requests
                caller.put_back(item)
                self.items += 1
                self.cost += item.cost
        return chosen

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


def _bound(most: int, own: int) -> float:
    """Return the bound of the queue for a caller that would hold `own` of it."""
    return most * HEADROOM if own * SMALL_SHARE <= most else most


def _of_like_cost(due: list[QueuedItem[Item, Result]], max_cost: int) -> tuple[set[int], int]:
    """Return the numbers of the first item and of those nearest to its cost that fit beside it, and their cost."""
    first, *others = due
    chosen, taken = {first.number}, first.cost
    for item in sorted(others, key=lambda item: abs(item.cost - first.cost)):
        if taken + item.cost <= max_cost:
            chosen.add(item.number)
            taken += item.cost
    return chosen, taken
