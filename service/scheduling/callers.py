"""What callers have queued for one graph: their requests and the items of these."""

import asyncio
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


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
