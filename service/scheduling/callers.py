"""What callers have queued for one graph: their requests and the items of these, and which item of a caller is next."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from service.request_context import StageTimes

Item = TypeVar("Item")
Result = TypeVar("Result")
OLDEST_SHARE = 4  # a caller's oldest request gets 1 for each 4 that its others get


@dataclass(slots=True, eq=False)
class ItemTimes:
    """Seconds that the items of one request waited and ran; each item of a batch counts the batch's whole run.

    Args:
        caller: the caller's name; callers share a graph evenly.

    Attributes:
        batched: the items of those batches.
    """

    caller: str = ""
    items: int = 0
    queued: float = 0.0
    ran: float = 0.0
    batched: int = 0

    def means(self, tokenization: float) -> tuple[StageTimes, float]:
        """Return the seconds of each stage, and the items of a batch, as means over the items."""
        items = self.items or 1
        return StageTimes(tokenization, self.queued / items, self.ran / items), self.batched / items


class QueuedItem(NamedTuple, Generic[Item, Result]):
    """One item and the future that its request awaits. The items of a request run in this order.

    Args:
        window: number of the full batches of its request before it, in steps of LOOK_AHEAD.
        number: number of the item in the order of arrival.
        times: collects the request's times; items of one request share it.
        deadline: time on the clock of `since` after which the caller no longer waits.
    """

    window: int
    cost: int
    number: int
    item: Item
    since: float
    future: "asyncio.Future[Result]"
    times: ItemTimes
    deadline: float | None


@dataclass(slots=True, eq=False)
class Request(Generic[Item, Result]):
    """The queued items of one request.

    Attributes:
        items: a heap of its queued items.
        cost: their cost.
        added: cost of all its items so far.
    """

    items: list[QueuedItem[Item, Result]] = field(default_factory=list)
    cost: int = 0
    added: int = 0


@dataclass(slots=True, eq=False)
class Caller(Generic[Item, Result]):
    """What one caller has queued and reserved.

    Args:
        is_bulk: whether it gives way to others.

    Attributes:
        turn: the virtual time of the graph at which its next item is due.
        requests: its requests that have queued items, the oldest first.
        cost: cost of the queued items and the reservations.
        reservations: the number of admitted requests that are still being tokenized.
        owed: cost that its oldest request should have got and has not.
    """

    name: str
    turn: float
    is_bulk: bool
    requests: dict[ItemTimes, Request[Item, Result]] = field(default_factory=dict)
    cost: int = 0
    reservations: int = 0
    owed: float = 0.0

    def smallest_first(self, most: int | None = None) -> deque[Request[Item, Result]]:
        """Return its requests by the work that is left, to a factor of two, then by arrival.

        Args:
            most: cost of a request that is returned, with its items that have run; None: any.
        """
        requests = [request for request in self.requests.values() if most is None or request.added <= most]
        return deque(sorted(requests, key=lambda request: request.cost.bit_length()))

    def next_request(self, smallest: deque[Request[Item, Result]]) -> Request[Item, Result] | None:
        """Return the request whose item runs next; None if nothing is queued.

        Args:
            smallest: its requests when the batch was begun, smallest first.
        """
        while smallest and not smallest[0].items:
            smallest.popleft()
        if not smallest:
            return None
        oldest = next(iter(self.requests.values()))
        return oldest if self.owed >= oldest.items[0].cost and oldest in smallest else smallest[0]

    def charge(self, cost: int, request: Request[Item, Result]) -> None:
        """Count an item of a request as served, which makes the caller's next one due later."""
        self.turn += cost
        is_oldest = request is next(iter(self.requests.values()))
        self.owed = max(0.0, self.owed - cost) if is_oldest else self.owed + cost / OLDEST_SHARE
