"""An open-loop HTTP/1.1 load generator: requests leave at the times of a Poisson process, however earlier ones fared.

Reads its order as JSON from standard input (the fields of `Order`) and prints a `Tally` as JSON. Latency counts from
the moment a request was due, so neither a slow server nor a late generator can hide a wait. Each request comes from one
of LOOPBACK_ADDRESSES addresses, drawn evenly whatever the server answered the others. Connections are kept alive and
opened as needed. A refused client sends its request again as Retry-After says, if the order gives it retries. It
follows no redirects and reads bodies by their content-length alone.
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
from itertools import cycle
from typing import NamedTuple, cast

import uvloop

from loadtest.workload import percentile

SPARE_FILES = 100  # descriptors that are no connections
REFUSALS = ("429", "503")
LOOPBACK_ADDRESSES = 16  # a source address has 28000 ports, and a closed connection keeps its own for a minute


@dataclass(frozen=True)
class Order:
    """What to send.

    Attributes:
        port: of the server.
        path: of the route.
        headers: of each request.
        bodies: base64; sent in turn.
        rate: requests due in a second.
        seconds: how long requests leave; those in flight are awaited for `timeout_s` more.
        warm_seconds: the part at the beginning that is not counted.
        timeout_s: seconds after which a client gives up, retries included.
        response_bytes: the least bytes of a right body.
        connections: open at a time; 0: as many as this process may open.
        seed: of the random arrivals.
        retries: of a refused request, each after the time that the refusal says; without one after a second.
        timeouts_s: one is drawn for each client instead of `timeout_s`, which is the longest.
    """

    port: int
    path: str
    headers: dict[str, str]
    bodies: list[str]
    rate: float
    seconds: float
    warm_seconds: float
    timeout_s: float
    response_bytes: int
    connections: int = 0
    seed: int = 1
    retries: int = 0
    timeouts_s: Sequence[float] = ()


class Outcome(NamedTuple):
    """One request.

    Attributes:
        due: seconds since the run began.
        lag: seconds from due to sent.
        ended: seconds since the run began.
        result: its status, or how it failed.
        has_retry_after: the response carried Retry-After.
        tries: how often it was sent.
    """

    due: float
    lag: float
    ended: float
    result: str
    has_retry_after: bool
    tries: int = 1


@dataclass(slots=True)
class Client:
    """Who waits for one answer.

    Attributes:
        request: its bytes.
        due: when it was due; `until` when it gives up, on `time.perf_counter`.
        lag: seconds from due to sent.
        tries: how often it was sent.
    """

    request: bytes
    due: float
    until: float
    lag: float = 0.0
    tries: int = 0


@dataclass(frozen=True)
class Tally:
    """Counts and latencies (milliseconds) of the requests that were due after the warm-up.

    Attributes:
        due: requests.
        seconds: counted.
        accepted: requests answered with 200.
        goodput: right answers a second between the warm-up's end and the last arrival.
        refused: requests answered with 429 or 503.
        with_retry_after: refused requests whose response carried Retry-After.
        failed: other results and their counts.
        p50_ms: latency of accepted requests; p90_ms and p99_ms likewise.
        refusal_p50_ms: latency of refused requests; refusal_p99_ms likewise.
        lag_p50_ms: how much later than due the generator acted; lag_p99_ms and lag_max_ms likewise.
        most_open: connections open at a time.
        mean_tries: how often an accepted request was sent.
    """

    due: int
    seconds: float
    accepted: int
    goodput: float
    refused: int
    with_retry_after: int
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
    mean_tries: float = 1.0


class Connection(asyncio.Protocol):
    """One connection with at most one request in flight."""

    def __init__(self, run: "Run", client: Client, address: int) -> None:
        self.run = run
        self.address = address
        self.transport: asyncio.Transport | None = None
        self.dialling: asyncio.Task[object] | None = None
        self.begin(client)

    def begin(self, client: Client) -> None:
        """Send a request, now or as soon as the connection is open."""
        self.client, self.busy, self.response, self.size = client, True, b"", 0
        now = time.perf_counter()
        if not client.tries:
            client.lag = now - client.due
        client.tries += 1
        self.timer = self.run.loop.call_later(max(0.0, client.until - now), self.end, "timed out")
        if self.transport:
            self.transport.write(client.request)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request that waits for the connection."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class does not derive from it
        self.transport.write(self.client.request)

    def data_received(self, data: bytes) -> None:
        """Read on to the end of the response."""
        if not self.busy:
            self.drop()
            return
        self.response += data
        if not self.size:
            head, complete, _ = self.response.partition(b"\r\n\r\n")
            if not complete:
                return
            self.head = head.lower()
            place = self.head.find(b"content-length:")
            if place < 0:
                self.end("without a length")
                return
            self.size = len(head) + 4 + int(self.head[place + 15 :].partition(b"\r")[0])
        if len(self.response) >= self.size:
            status = self.head[9:12].decode("latin-1")
            short = status == "200" and self.size - len(self.head) - 4 < self.run.order.response_bytes
            self.end("short" if short else status, answered=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request in flight, if there is one."""
        self.end("cut off")
        self.drop()

    def end(self, result: str, answered: bool = False) -> None:
        """Record how the request ended; later calls for the same request do nothing."""
        if not self.busy:
            return
        self.busy = False
        self.timer.cancel()
        if not (answered and result in REFUSALS and self.run.retry(self.client, self.head)):
            has_retry_after = answered and b"\r\nretry-after:" in self.head
            self.run.record(self.client, result, has_retry_after)
        if answered and b"\r\nconnection: close" not in self.head:
            self.run.free[self.address].append(self)
        else:
            self.drop()

    def drop(self) -> None:
        """Close the connection; it may be called again."""
        if self.dialling:
            self.dialling.cancel()
            self.dialling = None
        if self.transport:
            self.transport.abort()
            self.transport = None
        self.run.open.discard(self)


class Run:
    """The execution of one order."""

    def __init__(self, order: Order, connections: int) -> None:
        self.order = order
        self.connections = connections
        self.loop = asyncio.get_running_loop()
        self.random = random.Random(order.seed)
        self.addresses = random.Random(order.seed)  # apart, so that retries do not change the arrivals
        self.requests = cycle([_request(order, base64.b64decode(body)) for body in order.bodies])
        self.free: list[list[Connection]] = [[] for _ in range(LOOPBACK_ADDRESSES)]
        self.open: set[Connection] = set()
        self.most_open = 0
        self.outcomes: list[Outcome] = []
        self.in_flight = 0
        self.done = asyncio.Event()
        self.begun = self.next_due = time.perf_counter()

    def start(self) -> None:
        """Schedule the first arrival."""
        self.next_due += self.random.expovariate(self.order.rate)
        self._tick()

    def _tick(self) -> None:
        last = self.begun + self.order.seconds
        while self.next_due <= min(last, time.perf_counter()):
            self._arrive(self.next_due)
            self.next_due += self.random.expovariate(self.order.rate)
        if self.next_due <= last:
            # uvloop rounds to milliseconds; a delay below half of one fires at once
            self.loop.call_later(max(0.0, self.next_due - time.perf_counter()), self._tick)
        else:
            self.loop.call_later(self.order.timeout_s + 1, self.done.set)

    def _arrive(self, due: float) -> None:
        self.in_flight += 1
        allowed = self.random.choice(self.order.timeouts_s) if self.order.timeouts_s else self.order.timeout_s
        self._send(Client(next(self.requests), due, due + allowed))

    def _send(self, client: Client) -> None:
        address = self.addresses.randrange(LOOPBACK_ADDRESSES)
        while self.free[address]:
            connection = self.free[address].pop()
            if connection.transport:
                connection.begin(client)
                return
        if len(self.open) >= self.connections:
            self.record(client, "no connection free", False)
            return
        connection = Connection(self, client, address)
        self.open.add(connection)
        self.most_open = max(self.most_open, len(self.open))
        connection.dialling = self.loop.create_task(self._dial(connection))

    async def _dial(self, connection: Connection) -> None:
        source = f"127.0.0.{1 + connection.address}"
        try:
            await self.loop.create_connection(lambda: connection, "127.0.0.1", self.order.port, local_addr=(source, 0))
        except OSError:
            connection.end("not connected")

    def retry(self, client: Client, head: bytes) -> bool:
        """Send a refused request again when its refusal says; return False if the client gives up instead."""
        wait = retry_seconds(head)
        if client.tries > self.order.retries or time.perf_counter() + wait >= client.until:
            return False
        self.loop.call_later(wait, self._send, client)
        return True

    def record(self, client: Client, result: str, has_retry_after: bool) -> None:
        """Add the outcome of one request."""
        ended = time.perf_counter() - self.begun
        self.outcomes.append(Outcome(client.due - self.begun, client.lag, ended, result, has_retry_after, client.tries))
        self.in_flight -= 1
        if not self.in_flight and self.next_due > self.begun + self.order.seconds:
            self.done.set()


def retry_seconds(head: bytes) -> float:
    """Return the wait that a refusal asks for, as OpenAI's clients read it: in milliseconds, else in seconds."""
    for name, unit in ((b"\r\nretry-after-ms:", 0.001), (b"\r\nretry-after:", 1.0)):
        _, said, rest = head.partition(name)
        if said:
            return float(rest.partition(b"\r\n")[0]) * unit
    return 1.0


def _request(order: Order, body: bytes) -> bytes:
    headers = {"host": "127.0.0.1", **order.headers, "content-length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {order.path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def tally(order: Order, outcomes: Sequence[Outcome], most_open: int) -> Tally:
    """Return the counts and percentiles of a run."""
    counted = [one for one in outcomes if one.due >= order.warm_seconds]
    right = [one for one in counted if one.result == "200"]
    refused = [one for one in counted if one.result in REFUSALS]
    seconds = order.seconds - order.warm_seconds
    # An answer to a request of the warm-up is goodput as well: the server gave it in this time.
    completed = sum(one.result == "200" and order.warm_seconds <= one.ended < order.seconds for one in outcomes)
    failed = Counter(one.result for one in counted if one.result not in ("200", *REFUSALS))
    waits, refusals, lags = _milliseconds(right), _milliseconds(refused), sorted(one.lag * 1000 for one in counted)
    return Tally(
        due=len(counted),
        seconds=seconds,
        accepted=len(right),
        goodput=completed / seconds,
        refused=len(refused),
        with_retry_after=sum(one.has_retry_after for one in refused),
        failed=dict(failed),
        **{f"p{share}_ms": _percentile(waits, share) for share in (50, 90, 99)},
        **{f"refusal_p{share}_ms": _percentile(refusals, share) for share in (50, 99)},
        **{f"lag_p{share}_ms": _percentile(lags, share) for share in (50, 99)},
        lag_max_ms=round(lags[-1], 3) if lags else None,
        most_open=most_open,
        mean_tries=round(sum(one.tries for one in right) / len(right), 2) if right else 0.0,
    )


def _milliseconds(outcomes: Sequence[Outcome]) -> list[float]:
    return sorted((one.ended - one.due) * 1000 for one in outcomes)


def _percentile(ordered: Sequence[float], share: int) -> float | None:
    return round(percentile(ordered, share / 100), 3) if ordered else None


async def execute(order: Order) -> Tally:
    """Send everything, wait for the last answer or its timeout, and count."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    run = Run(order, min(order.connections or most, most - SPARE_FILES))
    run.start()
    await run.done.wait()
    for connection in list(run.open):
        connection.drop()
    return tally(order, run.outcomes, run.most_open)


if __name__ == "__main__":
    print(json.dumps(asdict(uvloop.run(execute(Order(**json.load(sys.stdin)))))))
