"""A simulated replica: the service's own queue on a virtual clock, and measured times in place of runs.

Batches are formed as service/scheduling/batcher.py does: a run begins at once when a core is idle, what arrives while
all cores run forms the next batch, and a batch is bounded in tokens. Which requests are refused, with which
Retry-After, is decided by the service's FairQueue itself.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from service.errors import Overloaded
from service.scheduling.callers import ItemTimes, QueuedItem
from service.scheduling.fair_queue import FairQueue

BATCH_TOKENS = 512  # service/registry/loading.py, ENCODER_TOKENS on CPU
MOST_TOKENS = 1 << 20  # INLAY_MAX_QUEUE_TOKENS, and so on: the defaults of service/settings.py
MOST_SECONDS = 45.0
MOST_REQUESTS = 1024
CALLER = "balancer"  # without API keys a caller is an address, and behind a balancer that is the balancer's
FULL_SECONDS = 1.0  # Retry-After of a replica that serves MOST_REQUESTS (service/error_status.py)


class Clock:
    """The virtual time, in seconds, and what is to happen at it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._number = 0
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []

    def later(self, seconds: float, function: Callable[[Any], None], argument: Any) -> None:
        """Call a function with an argument after some seconds."""
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, function, argument))

    def advance(self, until: float) -> None:
        """Let time pass."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, function, argument = heapq.heappop(events)
            function(argument)
        self.now = until


@dataclass(eq=False, slots=True)
class Call:
    """One request of a client.

    Attributes:
        costs: the tokens of each text.
        overhead: seconds of a core for it, outside runs.
        clock: of the simulation.
        until: when its client gives up.
        begun: when its client first sent it.
        unfinished: texts that are not computed yet.
        tries: how often it was refused.
    """

    costs: tuple[int, ...]
    overhead: float
    clock: Clock
    until: float
    begun: float
    unfinished: int = 0
    tries: int = 0
    times: ItemTimes = field(default_factory=lambda: ItemTimes(CALLER))

    def done(self) -> bool:
        """Return whether the client no longer waits, as the future of a queued item would."""
        return self.clock.now >= self.until


Seconds = Callable[[Sequence[int]], float]


class Replica:
    """One replica.

    Args:
        clock: of the simulation.
        seconds: of a run, by the tokens of its texts.
        answered: called with each call whose last text is computed.
        cores: runs under way at a time.
        speed: of its cores; 1: as measured.
        batch_tokens: of a batch.
        limited: whether it refuses requests.
    """

    def __init__(
        self,
        clock: Clock,
        seconds: Seconds,
        answered: Callable[[Call], None],
        *,
        cores: int = 1,
        speed: float = 1.0,
        batch_tokens: int = BATCH_TOKENS,
        limited: bool = True,
    ) -> None:
        self._clock, self._seconds, self._answered = clock, seconds, answered
        self.cores, self.speed, self.batch_tokens = cores, speed, batch_tokens
        self.is_dead = False
        self.active = 0  # calls that are queued or running
        self.running = 0  # runs under way
        most = MOST_REQUESTS if limited else 1 << 60
        most_tokens = MOST_TOKENS if limited else 1 << 60
        most_seconds = MOST_SECONDS if limited else None
        self.queue: FairQueue[int, Any] = FairQueue(most_tokens, most_seconds, batch_tokens, 3 * most // 4)
        self._most_active = most

    def offer(self, call: Call) -> float | None:
        """Queue a call; return None, or the seconds that a refusal says to wait."""
        if self.active >= self._most_active:
            return FULL_SECONDS
        now = self._clock.now
        try:
            self.queue.check(sum(call.costs), now, None, CALLER)
        except Overloaded as refusal:
            return max(0.001, FULL_SECONDS if refusal.retry_after is None else refusal.retry_after)
        call.unfinished = len(call.costs)
        call.times = ItemTimes(CALLER)
        for cost in call.costs:
            self.queue.add(cost, cost, cast(Any, call), now, call.times, None)
        self.active += 1
        if self.running < self.cores:
            self._begin()
        return None

    def cancel(self) -> None:
        """Forget a call whose client has given up; the queue drops its texts when it comes to them."""
        self.active -= 1

    def _begin(self) -> None:
        """Begin runs while something waits and a core is idle."""
        while self.queue.items and (free := self.cores - self.running):
            share = self.batch_tokens if free == 1 else min(self.batch_tokens, -(-self.queue.cost // free))
            batch = self.queue.take(share, self._clock.now)
            if not batch:
                return
            overhead = 0.0
            for item in batch:
                call = cast(Call, item.future)
                overhead += call.overhead
                call.overhead = 0.0  # once, with its first text
            seconds = (self._seconds([item.cost for item in batch]) + overhead) / self.speed
            self.running += 1
            self._clock.later(seconds, self._end, (batch, seconds))

    def _end(self, run: tuple[list[QueuedItem[int, Any]], float]) -> None:
        batch, seconds = run
        if self.is_dead:
            return
        self.running -= 1
        cost = sum([item.cost for item in batch])
        self.queue.drained(cost, seconds / self.cores, 2 * cost >= self.batch_tokens)
        for item in batch:
            call = cast(Call, item.future)
            call.unfinished -= 1
            if not call.unfinished and not call.done():
                self.active -= 1
                self._answered(call)
        if self.queue.items:
            self._begin()
