"""What waits for one graph: who may join, who goes next, how fast it drains. Runs nothing, knows no model.

Callers share the graph evenly: an item's turn is the virtual time at which its caller, given an equal share, would be
served (start-time fair queueing; Goyal, Vin and Cheng 1996). A caller of a thousand texts delays a caller of one by the
one's own share, not by the thousand.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

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


@dataclass(slots=True)
class Waiting(Generic[Item, Result]):
    """One item and the future its caller holds.

    spent      told how long it took; tells the items of one caller from another's
    turn       virtual time at which it is due
    deadline   on the clock of `since`; after it nobody wants the result
    """

    item: Item
    cost: int
    since: float
    future: "asyncio.Future[Result]"
    spent: Spent
    turn: float
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
    """

    def __init__(self, max_cost: int, max_seconds: float | None, full_cost: int = 0) -> None:
        self._max_cost = max_cost
        self._max_seconds = max_seconds
        self._full_cost = full_cost
        self._refused_at = float("-inf")  # for being late
        self.items: list[Waiting[Item, Result]] = []
        self._callers = 0  # of waiting items, those that left not yet taken off
        self._now = 0.0  # virtual time
        self.cost = 0
        self.promised = 0  # cost of requests let in that are still being tokenised
        self.rate: float | None = None  # cost a second; None until a full batch has been timed

    def delay(self, cost: int) -> float:
        """Seconds that others would delay work of this cost; 0 while the rate is not known."""
        if self.rate is None:
            return 0.0
        return min(self.cost + self.promised, cost * self._callers) / self.rate

    def check(self, cost: int, now: float, deadline: float | None) -> None:
        """Whether a request of this cost may join.

        raises   Overloaded with the time after which there should be room; DeadlineExceeded if it would come too late
        """
        if deadline is not None and now + self.delay(cost) + cost / (self.rate or float("inf")) > deadline:
            raise DeadlineExceeded(
                f"{max(0.0, deadline - now):.3g} s are left and this needs about "
                f"{self.delay(cost) + cost / (self.rate or float('inf')):.3g} s: allow more time or try again later"
            )
        if not self.items:
            return
        ahead = self.cost + self.promised
        if ahead + cost > self._max_cost:
            over = ahead + cost - self._max_cost
            raise Overloaded(
                f"{ahead} tokens are waiting and this request brings {cost}; the queue holds "
                f"{self._max_cost}: try again in a moment",
                None if self.rate is None else over / self.rate,
            )
        if self._max_seconds is None or self.rate is None:
            return
        most = self._patience(self._max_seconds, self.rate, now) + SLOWDOWN * cost / self.rate
        if (delay := self.delay(cost)) > most:
            self._refused_at = now
            raise Overloaded(
                f"{ahead} tokens are waiting, which would delay this request by {delay:.2g} s; this server lets "
                f"one wait {most:.2g} s: try again in a moment",
                delay - most,
            )

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
        turn = self._now
        for item, cost, future in zip(items, costs, futures, strict=True):
            self.items.append(Waiting(item, cost, now, future, spent, turn, deadline))
            turn += cost
            self.cost += cost
        self._callers += 1

    def take(self, most: int, now: float) -> list[Waiting[Item, Result]]:
        """The next batch, at most `most` in cost unless one item alone is dearer; late items are refused here."""
        alive = [
            each
            for each in self.items
            if not each.future.done() and (each.deadline is None or self._in_time(each, each.deadline, now))
        ]
        if self.cost <= most or sum([each.cost for each in alive]) <= most:
            self.items, self.cost, self._callers, self._now = [], 0, 0, 0.0
            return alive
        alive.sort(key=_turn)
        chosen, taken = _like(alive, most)
        callers = len({id(each.spent) for each in alive})
        self._now = max(self._now, alive[0].turn) + taken / callers
        self.items = [each for each in alive if id(each) not in chosen]
        self.cost = sum([each.cost for each in self.items])
        self._callers = len({id(each.spent) for each in self.items})
        return [each for each in alive if id(each) in chosen]

    def _in_time(self, each: Waiting[Item, Result], deadline: float, now: float) -> bool:
        """Whether it can be; else its caller is told."""
        if now + each.cost / (self.rate or float("inf")) <= deadline:
            return True
        each.future.set_exception(
            DeadlineExceeded(f"the time allowed was over after {now - each.since:.3g} s of waiting")
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


def _turn(each: Waiting[Item, Result]) -> float:
    return each.turn


def _like(alive: list[Waiting[Item, Result]], most: int) -> tuple[set[int], int]:
    """The item whose turn it is and those nearest to its cost among the next in turn; and their cost."""
    head = alive[0]
    chosen, taken = {id(head)}, head.cost
    near, reach = [], 0
    for each in alive[1:]:
        reach += each.cost
        near.append(each)
        if reach > LOOK_AHEAD * most:
            break
    for each in sorted(near, key=lambda other: abs(other.cost - head.cost)):
        if taken + each.cost <= most:
            chosen.add(id(each))
            taken += each.cost
    return chosen, taken
