"""The queued items of one caller, in the order in which its requests share what the caller gets."""

import asyncio
from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from typing import Generic, NamedTuple, TypeVar

NEVER = float("-inf")
Item = TypeVar("Item")
Result = TypeVar("Result")


class ItemTimes:
    """Seconds that the items of one request waited and ran; each item of a batch counts the batch's whole run.

    Args:
        caller: who asks; callers share a graph evenly.

    Attributes:
        joined: items that were answered by the run of an equal one.
    """

    __slots__ = ("caller", "items", "joined", "queued", "ran")

    def __init__(self, caller: str = "") -> None:
        self.caller = caller
        self.items, self.joined, self.queued, self.ran = 0, 0, 0.0, 0.0

    def add(self, queued: float, ran: float) -> None:
        """Add one finished item."""
        self.items += 1
        self.queued += queued
        self.ran += ran


class QueuedItem(NamedTuple, Generic[Item, Result]):
    """One item and the future that its request awaits.

    Args:
        times: collects the request's times; items of one request share it.
        turn: the virtual time of its caller at which it is due.
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


class CallerQueue(Generic[Item, Result]):
    """What one caller has queued and reserved.

    Attributes:
        turn: the virtual time of the graph at which its next item is due.
        number: the place of the caller in the order of arrival, for callers of one turn.
        requests: the items of each request by turn, never empty.
        cost: of its queued items.
        reserved: cost of its admitted requests that are still being tokenized.
        reservations: the number of those.
        refused_at: when a request of the caller was last refused for want of room.
        next_retry: when the next refused request is to be sent again.
    """

    # the class's defaults, since one is made for each caller of each batch: 0.3 µs less
    turn = _now = 0.0
    _sharing = 1  # requests when the present batch was begun
    cost = reserved = reservations = 0
    refused_at = next_retry = NEVER

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number
        self.requests: dict[ItemTimes, deque[QueuedItem[Item, Result]]] = {}

    def add(
        self,
        item: Item,
        cost: int,
        future: "asyncio.Future[Result]",
        since: float,
        times: ItemTimes,
        number: int,
        deadline: float | None,
    ) -> bool:
        """Queue one item of a request; return whether it is the request's first."""
        queued, turn = self.requests.get(times), self._now
        is_first = queued is None
        if queued is None:
            queued = self.requests[times] = deque()
        else:
            turn = max(turn, queued[-1].turn + queued[-1].cost)
        queued.append(QueuedItem(item, cost, since, future, times, turn, number, deadline))
        self.cost += cost
        return is_first

    def in_turn(self) -> Iterator[QueuedItem[Item, Result]]:
        """Remove and yield every item in its turn."""
        self._sharing = len(self.requests)
        heads = [(queued[0].turn, queued[0].number, queued) for queued in self.requests.values()]
        heapify(heads)
        while heads:
            _, _, queued = heads[0]
            item = queued.popleft()
            self.cost -= item.cost
            if queued:
                heapreplace(heads, (queued[0].turn, queued[0].number, queued))
            else:
                heappop(heads)
                del self.requests[item.times]
            yield item

    def put_back(self, item: QueuedItem[Item, Result]) -> None:
        """Queue an item again that `in_turn` yielded; of several the last first."""
        self.requests.setdefault(item.times, deque()).appendleft(item)
        self.cost += item.cost

    def charge(self, cost: int, turn: float) -> None:
        """Count items of this cost as served, of which the first was due at `turn`: the next ones are due later."""
        self.turn += cost
        self._now = max(self._now, turn) + cost / self._sharing

    def drop_cancelled(self) -> tuple[int, int]:
        """Forget the items of requests that were cancelled; return their number and cost."""
        items, before = 0, self.cost
        for times, queued in list(self.requests.items()):
            while queued and queued[0].future.done():
                items += 1
                self.cost -= queued.popleft().cost
            if not queued:
                del self.requests[times]
        return items, before - self.cost

    def clear(self) -> None:
        """Forget all items; turns begin at 0 again."""
        self.requests.clear()
        self.cost, self.turn, self._now = 0, 0.0, 0.0
