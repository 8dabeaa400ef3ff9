"""What waits for one graph: who may join, who goes next, how fast it drains. Runs nothing, knows no model.

Callers share the graph evenly: an item's turn is the virtual time at which its caller, given an equal share, would be
served (start-time fair queueing; Goyal, Vin and Cheng 1996). A caller of a thousand texts delays a caller of one by the
one's own share, not by the thousand.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Generic, NamedTuple, TypeVar

from service.errors import DeadlineExceeded, Overloaded

LOOK_AHEAD = 4  # batches of items, by turn, among which those of like cost are sought
RATE_WEIGHT = 0.2  # of the newest full batch in the drain rate
OVERLOADED_PART = 8  # of the time that may be waited is left while more comes than can be done
FULL_BATCHES = 1.5  # always wait, so that the next run is a full one
SLOWDOWN = 4  # a caller may be delayed by so many times what its own work takes, however little may be waited
Item = TypeVar("Item")
Result = TypeVar("Result")


class Spent:
    """One caller's: seconds its items waited and ran; each item of a batch counts its whole run."""

    __slots__ = ("items", "queued", "ran")

    def __init__(self) -> None:
        self.items, self.queued, self.ran = 0, 0.0, 0.0

    def add(self, queued: float, ran: float) -> None:
        """One item is done."""
        self.items += 1
        self.queued += queued
        self.ran += ran


class Waiting(NamedTuple, Generic[Item, Result]):
    """One item and the future its caller holds.

    spent      told how long it took; tells the items of one caller from another's
    turn       virtual time at which it is due
    number     of all that came before it, for those of one turn
    deadline   on the clock of `since`; after it nobody wants the result
    """

    item: Item
    cost: int
    since: float
    future: "asyncio.Future[Result]"
    spent: Spent
    turn: float
    number: int
    deadline: float | None


class Line(Generic[Item, Result]):
    """The waiting items of one graph.

    max_cost      what may wait, promised work included
    max_seconds   how long others may delay a newcomer, measured by the drain rate; None: any time
    full_cost     of a full batch

    A crowd that comes at once, or always the same callers, may fill the line to max_seconds. Where that is not enough,
    more comes than can be done, and a long line would only make everyone late: from the first refusal until none was
    needed for max_seconds, the line is kept to a part of them (as CoDel keeps a standing queue short; Nichols and
    Jacobson 2012), though never too short for full batches.

    Whom the drain rate condemns is run all the same where nothing else waits: a rate that is too low is corrected by
    runs alone.
    """

    def __init__(self, max_cost: int, max_seconds: float | None, full_cost: int = 0) -> None:
        self._max_cost = max_cost
        self._max_seconds = max_seconds
        self._full_cost = full_cost
        self._refused_at = float("-inf")  # for being late
        self._callers: dict[Spent, deque[Waiting[Item, Result]]] = {}  # items of each by turn, never none
        self._number = 0  # of the newest item
        self._hurry = False  # an item that waits may have a deadline
        self._now = 0.0  # virtual time
        self._promises = 0
        self.items = 0  # those that left included, until their caller's turn is next looked at
        self.cost = 0
        self.promised = 0  # cost of requests let in that are still being tokenised
        self.rate: float | None = None  # cost a second; None until a full batch has been timed

    def promise(self, cost: int) -> None:
        """Count a request that was let in and is still being prepared."""
        self.promised += cost
        self._promises += 1

    def redeem(self, cost: int) -> None:
        """It joins now, or will not."""
        self.promised -= cost
        self._promises -= 1

    def delay(self, cost: int) -> float:
        """Seconds that others would delay work of this cost; 0 while the rate is not known."""
        if self.rate is None:
            return 0.0
        return min(self.cost + self.promised, cost * (len(self._callers) + self._promises)) / self.rate

    def check(self, cost: int, now: float, deadline: float | None) -> None:
        """Whether a request of this cost may join.

        raises   Overloaded with the time after which there should be room; DeadlineExceeded if it would come too late
        """
        if deadline is not None and now >= deadline:
            raise DeadlineExceeded("the time allowed was over before this could wait: allow more time")
        if not self.items and not self.promised:
            return
        if deadline is not None and now + (needed := self.delay(cost) + self._alone(cost)) > deadline:
            raise DeadlineExceeded(
                f"{deadline - now:.3g} s are left and this needs about {needed:.3g} s: allow more time or try again "
                "later"
            )
        self._check_room(cost)
        if self._max_seconds is not None and self.rate is not None:
            self._check_delay(cost, now, self._max_seconds, self.rate)

    def _alone(self, cost: int) -> float:
        """Seconds that work of this cost takes if nothing else waits."""
        return cost / self.rate if self.rate else 0.0

    def _check_room(self, cost: int) -> None:
        ahead = self.cost + self.promised
        if (over := ahead + cost - self._max_cost) > 0:
            raise Overloaded(
                f"{ahead} tokens are waiting and this request brings {cost}; the queue holds "
                f"{self._max_cost}: try again in a moment",
                None if self.rate is None else over / self.rate,
            )

    def _check_delay(self, cost: int, now: float, seconds: float, rate: float) -> None:
        delay, own = self.delay(cost), SLOWDOWN * cost / rate
        if delay <= self._patience(seconds, rate, now) + own:
            return
        self._refused_at = now
        most = self._patience(seconds, rate, now) + own  # what holds from here on, so that who waits for it is let in
        raise Overloaded(
            f"{self.cost + self.promised} tokens are waiting, which would delay this request by {delay:.2g} s; this "
            f"server lets one wait {most:.2g} s: try again in a moment",
            delay - most,
        )

    def overloaded(self, now: float) -> bool:
        """Whether somebody was refused for being late, not longer ago than one may wait."""
        return self._max_seconds is not None and now - self._refused_at < self._max_seconds

    def _patience(self, seconds: float, rate: float, now: float) -> float:
        """How long a newcomer may be delayed now."""
        if now - self._refused_at < seconds:
            seconds /= OVERLOADED_PART
        return max(seconds, FULL_BATCHES * self._full_cost / rate)

    def add(
        self,
        items: Sequence[Item],
        costs: Sequence[int],
        futures: "Sequence[asyncio.Future[Result]]",
        now: float,
        spent: Spent,
        deadline: float | None,
    ) -> None:
        """The items of one caller, each due when its share of the graph comes to it."""
        own, turn = self._callers.get(spent), self._now
        if own:
            turn = max(turn, own[-1].turn + own[-1].cost)
        else:
            own = self._callers[spent] = deque()
        for item, cost, future in zip(items, costs, futures, strict=True):
            self._number += 1
            own.append(Waiting(item, cost, now, future, spent, turn, self._number, deadline))
            turn += cost
            self.cost += cost
        self.items += len(items)
        self._hurry = self._hurry or deadline is not None

    def take(self, most: int, now: float) -> list[Waiting[Item, Result]]:
        """The next batch, at most `most` in cost unless one item alone is dearer; late items are refused here."""
        if self.cost > most:
            self._drop_gone()
        if self.cost <= most:
            every = [each for own in self._callers.values() for each in own if not each.future.done()]
            hurry, self._hurry = self._hurry, False
            self._callers.clear()
            self.items, self.cost, self._now = 0, 0, 0.0
            return self._timely(every, now) if hurry else every
        callers, due = len(self._callers), self._next(LOOK_AHEAD * most, now)
        if not due:
            return []
        chosen, taken = _like(due, most)
        self._now = max(self._now, due[0].turn) + taken / callers
        self._put_back([each for each in due if each.number not in chosen])
        return [each for each in due if each.number in chosen]

    def _drop_gone(self) -> None:
        """Forget callers that left, who leave with all their items."""
        for spent, own in list(self._callers.items()):
            while own and own[0].future.done():
                self.items -= 1
                self.cost -= own.popleft().cost
            if not own:
                del self._callers[spent]

    def _next(self, reach: int, now: float) -> list[Waiting[Item, Result]]:
        """The item whose turn it is and those behind it, till their cost passes `reach`; taken off, late ones too."""
        due: list[Waiting[Item, Result]] = []
        for each in self._in_turn():
            if each.future.done() or not self._in_time(each, now, self._alone(each.cost)):
                continue
            reach -= each.cost if due else 0
            due.append(each)
            if reach < 0:
                break
        return due

    def _in_turn(self) -> Iterator[Waiting[Item, Result]]:
        """Every item, taken off in its turn."""
        heads = [(own[0].turn, own[0].number, own) for own in self._callers.values()]
        heapify(heads)
        while heads:
            _, _, own = heads[0]
            each = own.popleft()
            self.items -= 1
            self.cost -= each.cost
            if own:
                heapreplace(heads, (own[0].turn, own[0].number, own))
            else:
                heappop(heads)
                del self._callers[each.spent]
            yield each

    def _put_back(self, left: list[Waiting[Item, Result]]) -> None:
        for each in reversed(left):
            self._callers.setdefault(each.spent, deque()).appendleft(each)
            self.items += 1
            self.cost += each.cost

    def _timely(self, every: list[Waiting[Item, Result]], now: float) -> list[Waiting[Item, Result]]:
        """Those that can be in time, of all that wait; where none can, those whose time is not over yet."""
        hope = any([each.deadline is None or now + self._alone(each.cost) <= each.deadline for each in every])
        return [each for each in every if self._in_time(each, now, self._alone(each.cost) if hope else 0.0)]

    def _in_time(self, each: Waiting[Item, Result], now: float, needed: float) -> bool:
        """Whether it can be, if it takes so long; else its caller is told."""
        if each.deadline is None or now + needed <= each.deadline:
            return True
        each.future.set_exception(
            DeadlineExceeded(
                f"the time allowed was over after {now - each.since:.3g} s of waiting: allow more or try again later"
            )
        )
        return False

    def drained(self, cost: int, seconds: float, full: bool) -> None:
        """A batch of `cost` took `seconds`; one that is not full says only what can be done at the least."""
        if seconds <= 0:
            return
        rate = cost / seconds
        if full:
            self.rate = rate if self.rate is None else self.rate + RATE_WEIGHT * (rate - self.rate)
        elif self.rate is not None and rate > self.rate:
            self.rate = rate


def _like(due: list[Waiting[Item, Result]], most: int) -> tuple[set[int], int]:
    """Numbers of the item whose turn it is and of those nearest to its cost that fit beside it; and their cost."""
    head, *near = due
    chosen, taken = {head.number}, head.cost
    for each in sorted(near, key=lambda other: abs(other.cost - head.cost)):
        if taken + each.cost <= most:
            chosen.add(each.number)
            taken += each.cost
    return chosen, taken
