"""An open-loop HTTP/1.1 generator: requests leave at the times of a Poisson process, whatever became of those before.

Reads its order as JSON from standard input (the fields of `Order`) and prints a `Tally` as JSON. Latency counts from
the moment a request was due, so neither a slow server nor a late generator can hide a wait. Connections are kept alive
and opened as needed. It follows no redirect, retries nothing and reads bodies by their content-length alone.
"""

import asyncio
import base64
import json
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple, cast

import uvloop

from loadtest.workload import percentile

SPARE_FILES = 100  # descriptors that are no connections
REFUSALS = ("429", "503")
LOOPBACKS = 16  # a source address has 28000 ports, and a closed connection keeps its own for a minute


@dataclass(frozen=True)
class Order:
    """What to send.

    bodies         base64; one is drawn for each request
    rate           requests due in a second
    seconds        how long requests leave; those under way are awaited for `timeout_s` more
    warm_seconds   of these, at the beginning, nothing is counted
    answer_bytes   the least a right answer holds
    connections    open at a time; 0: as many as this process may open
    """

    port: int
    path: str
    headers: dict[str, str]
    bodies: list[str]
    rate: float
    seconds: float
    warm_seconds: float
    timeout_s: float
    answer_bytes: int
    connections: int = 0
    seed: int = 1


class Outcome(NamedTuple):
    """One request: seconds from the start of the run; `fate` is its status, or how it failed; `told`: Retry-After."""

    due: float
    lag: float
    ended: float
    fate: str
    told: bool


@dataclass(frozen=True)
class Tally:
    """What became of the requests that were due after the warm-up. Latencies of accepted ones, in milliseconds.

    goodput     right answers that came in a second, between the warm-up's end and the last arrival
    told        refused ones that were told when to come again
    lag_*       how much later than due the generator itself acted
    most_open   connections open at a time
    """

    due: int
    seconds: float
    accepted: int
    goodput: float
    refused: int
    told: int
    failed: dict[str, int]
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    refusal_p50_ms: float | None
    refusal_p99_ms: float | None
    lag_p50_ms: float | None
    lag_p99_ms: float | None
    lag_max_ms: float | None
    most_open: int


class Caller(asyncio.Protocol):
    """One connection with one request under way at most."""

    def __init__(self, run: "Run", request: bytes, due: float) -> None:
        self.run = run
        self.request = request
        self.transport: asyncio.Transport | None = None
        self.dialling: asyncio.Task[object] | None = None
        self.begin(request, due)

    def begin(self, request: bytes, due: float) -> None:
        """Send a request, now or as soon as the connection stands."""
        self.request, self.due, self.busy, self.answer, self.size = request, due, True, b"", 0
        self.lag = time.perf_counter() - due
        self.timer = self.run.loop.call_later(self.run.order.timeout_s - self.lag, self.end, "timed out")
        if self.transport:
            self.transport.write(request)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what waits."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class does not derive from it
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        """Read on to the end of the answer."""
        if not self.busy:
            self.drop()
            return
        self.answer += data
        if not self.size:
            head, found, _ = self.answer.partition(b"\r\n\r\n")
            if not found:
                return
            self.head = head.lower()
            place = self.head.find(b"content-length:")
            if place < 0:
                self.end("without a length")
                return
            self.size = len(head) + 4 + int(self.head[place + 15 :].partition(b"\r")[0])
        if len(self.answer) >= self.size:
            status = self.head[9:12].decode("latin-1")
            short = status == "200" and self.size - len(self.head) - 4 < self.run.order.answer_bytes
            self.end("short" if short else status, answered=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection that ends under a request fails it."""
        self.end("cut off")
        self.drop()

    def end(self, fate: str, answered: bool = False) -> None:
        """Write down what became of the request."""
        if not self.busy:
            return
        self.busy = False
        self.timer.cancel()
        told = answered and b"\r\nretry-after:" in self.head
        self.run.note(self.due, self.lag, fate, told)
        if answered and b"\r\nconnection: close" not in self.head:
            self.run.free.append(self)
        else:
            self.drop()

    def drop(self) -> None:
        """Give the connection up; may be called again."""
        if self.dialling:
            self.dialling.cancel()
            self.dialling = None
        if self.transport:
            self.transport.abort()
            self.transport = None
        self.run.gone(self)


class Run:
    """One order being carried out."""

    def __init__(self, order: Order, connections: int) -> None:
        self.order = order
        self.connections = connections
        self.loop = asyncio.get_running_loop()
        self.random = random.Random(order.seed)
        self.requests = [_request(order, base64.b64decode(body)) for body in order.bodies]
        self.free: list[Caller] = []
        self.open: set[Caller] = set()
        self.most_open = 0
        self.outcomes: list[Outcome] = []
        self.under_way = 0
        self.done = asyncio.Event()
        self.begun = self.next_due = time.perf_counter()

    def start(self) -> None:
        """Set out for the first arrival."""
        self.next_due += self.random.expovariate(self.order.rate)
        self._tick()

    def _tick(self) -> None:
        last = self.begun + self.order.seconds
        while self.next_due <= min(last, time.perf_counter()):
            self._arrive(self.next_due)
            self.next_due += self.random.expovariate(self.order.rate)
        if self.next_due <= last:
            # uvloop rounds to milliseconds; what is below half of one comes round at once
            self.loop.call_later(max(0.0, self.next_due - time.perf_counter()), self._tick)
        else:
            self.loop.call_later(self.order.timeout_s + 1, self.done.set)

    def _arrive(self, due: float) -> None:
        self.under_way += 1
        request = self.random.choice(self.requests)
        while self.free:
            caller = self.free.pop()
            if caller.transport:
                caller.begin(request, due)
                return
        if len(self.open) >= self.connections:
            self.note(due, time.perf_counter() - due, "no connection free", False)
            return
        caller = Caller(self, request, due)
        self.open.add(caller)
        self.most_open = max(self.most_open, len(self.open))
        caller.dialling = self.loop.create_task(self._dial(caller, len(self.outcomes)))

    async def _dial(self, caller: Caller, number: int) -> None:
        source = f"127.0.0.{1 + number % LOOPBACKS}"
        try:
            await self.loop.create_connection(lambda: caller, "127.0.0.1", self.order.port, local_addr=(source, 0))
        except OSError:
            caller.end("not connected")

    def note(self, due: float, lag: float, fate: str, told: bool) -> None:
        """A request is over."""
        self.outcomes.append(Outcome(due - self.begun, lag, time.perf_counter() - self.begun, fate, told))
        self.under_way -= 1
        if not self.under_way and self.next_due > self.begun + self.order.seconds:
            self.done.set()

    def gone(self, caller: Caller) -> None:
        """A connection is over."""
        self.open.discard(caller)


def _request(order: Order, body: bytes) -> bytes:
    headers = {"host": "127.0.0.1", **order.headers, "content-length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {order.path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def tally(order: Order, outcomes: Sequence[Outcome], most_open: int) -> Tally:
    """Counts and percentiles."""
    counted = [one for one in outcomes if one.due >= order.warm_seconds]
    right = [one for one in counted if one.fate == "200"]
    refused = [one for one in counted if one.fate in REFUSALS]
    seconds = order.seconds - order.warm_seconds
    # An answer to an earlier request is goodput as well: the server gave it in this time.
    came = sum(one.fate == "200" and order.warm_seconds <= one.ended < order.seconds for one in outcomes)
    failed = Counter(one.fate for one in counted if one.fate not in ("200", *REFUSALS))
    waits, refusals, lags = _milliseconds(right), _milliseconds(refused), sorted(one.lag * 1000 for one in counted)
    return Tally(
        due=len(counted),
        seconds=seconds,
        accepted=len(right),
        goodput=came / seconds,
        refused=len(refused),
        told=sum(one.told for one in refused),
        failed=dict(failed),
        **{f"p{share}_ms": _percentile(waits, share) for share in (50, 90, 99)},
        **{f"refusal_p{share}_ms": _percentile(refusals, share) for share in (50, 99)},
        **{f"lag_p{share}_ms": _percentile(lags, share) for share in (50, 99)},
        lag_max_ms=round(lags[-1], 3) if lags else None,
        most_open=most_open,
    )


def _milliseconds(outcomes: Sequence[Outcome]) -> list[float]:
    return sorted((one.ended - one.due) * 1000 for one in outcomes)


def _percentile(ordered: Sequence[float], share: int) -> float | None:
    return round(percentile(ordered, share / 100), 3) if ordered else None


async def carry_out(order: Order) -> Tally:
    """Send everything, await the last answer or its timeout, count."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    run = Run(order, min(order.connections or most, most - SPARE_FILES))
    run.start()
    await run.done.wait()
    for caller in list(run.open):
        caller.drop()
    return tally(order, run.outcomes, run.most_open)


if __name__ == "__main__":
    print(json.dumps(asdict(uvloop.run(carry_out(Order(**json.load(sys.stdin)))))))
