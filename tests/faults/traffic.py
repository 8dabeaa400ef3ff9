"""Callers over HTTP and gRPC that never stop, and remember every answer: when it came, whether it was right."""

import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import grpc
import httpx
import numpy as np

from proto import embed_pb2 as pb
from proto.embed_pb2_grpc import EmbedderStub
from tests.faults.processes import Running

TEXTS = ("hello world", "a b c", "j i h g f e d c b a")
BODIES = [json.dumps({"inputs": text}).encode() for text in TEXTS]
TIMEOUT_SECONDS = 30
ALONE = 1e-5  # between a text in a batch and the same text alone


@dataclass
class CallOutcome:
    """One call: when it began and ended, and what was wrong with it; "": nothing."""

    began: float
    ended: float
    fault: str
    fresh: bool  # on a connection of its own


@dataclass
class Traffic:
    """What all callers saw, in no order."""

    outcomes: list[CallOutcome] = field(default_factory=list)

    @property
    def answered(self) -> list[CallOutcome]:
        return [each for each in self.outcomes if not each.fault]

    @property
    def broken(self) -> list[CallOutcome]:
        """Calls whose connection broke."""
        return [each for each in self.outcomes if each.fault.startswith("broken")]

    @property
    def wrong(self) -> list[CallOutcome]:
        """Calls that were answered and not rightly, or refused."""
        return [each for each in self.outcomes if each.fault and not each.fault.startswith("broken")]

    def longest_gap(self) -> float:
        """Seconds in which no call was answered."""
        ends = sorted(each.ended for each in self.answered)
        return max(later - earlier for earlier, later in pairwise(ends))


@contextmanager
def traffic(
    service: Running, kept: int = 4, fresh: int = 2, rpc: int = 2, texts: Sequence[int] = (0, 1, 2)
) -> Iterator[Traffic]:
    """Callers that go on until the block ends.

    kept, rpc   callers that keep a connection, over HTTP and gRPC; they connect again when it breaks
    fresh       callers that make a connection for every call
    """
    expected = [np.array(service.embed(TEXTS[index]).raise_for_status().json()[0]) for index in texts]
    seen, stop = Traffic(), threading.Event()
    callers = [Kept(service, expected, seen) for _ in range(kept)]
    callers += [Fresh(service, expected, seen) for _ in range(fresh)]
    callers += [Rpc(service, expected, seen) for _ in range(rpc)]
    threads = [threading.Thread(target=caller.go, args=(stop,)) for caller in callers]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join(2 * TIMEOUT_SECONDS)


class Kept:
    """Calls over a connection that it keeps."""

    fresh = False

    def __init__(self, service: Running, expected: Sequence[Any], seen: Traffic) -> None:
        self._service, self._expected, self._seen = service, expected, seen
        self._connection: http.client.HTTPConnection | None = None

    def go(self, stop: threading.Event) -> None:
        number = 0
        while not stop.wait(0.01):
            number += 1
            began = time.monotonic()
            fault = self.call(number % len(self._expected))
            self._seen.outcomes.append(CallOutcome(began, time.monotonic(), fault, self.fresh))
        self.close()

    def call(self, index: int) -> str:
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection(*self._service.address, timeout=TIMEOUT_SECONDS)
            self._connection.request("POST", "/embed", BODIES[index], {"content-type": "application/json"})
            answer = self._connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return f"broken: {error!r}"
        if self.fresh:
            self.close()
        if answer.status != 200:
            return f"{answer.status}: {body!r}"
        return _judged(np.array(json.loads(body)[0]), self._expected[index])

    def close(self) -> None:
        if self._connection:
            self._connection.close()
        self._connection = None


class Fresh(Kept):
    """Calls over a connection each."""

    fresh = True


class Rpc(Kept):
    """Calls over a channel of its own."""

    _channel: grpc.Channel | None = None

    def call(self, index: int) -> str:
        if self._channel is None:
            self._channel = grpc.insecure_channel(self._service.rpc_address, [("grpc.use_local_subchannel_pool", 1)])
        request = pb.EmbedRequest(inputs=[pb.Input(text=TEXTS[index])])
        try:
            answer = EmbedderStub(self._channel).Embed(request, timeout=TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            self.close()
            code = error.code()  # type: ignore[attr-defined]
            return f"{'broken: ' if code is grpc.StatusCode.UNAVAILABLE else ''}{code}: {error.details()}"  # type: ignore[attr-defined]
        return _judged(np.frombuffer(answer.outputs[0].tensor.data, np.float32), self._expected[index])

    def close(self) -> None:
        if self._channel:
            self._channel.close()
        self._channel = None


def _judged(vector: Any, expected: Any) -> str:
    return "" if np.abs(vector.ravel() - expected).max() <= ALONE else "wrong numbers"


def connected(service: Running, count: int) -> list[httpx.Client]:
    """Clients that each hold an open connection on which one call was answered."""
    clients = [httpx.Client(base_url=service.url, trust_env=False, timeout=TIMEOUT_SECONDS) for _ in range(count)]
    for client in clients:
        client.post("/embed", json={"inputs": "a"}).raise_for_status()
    return clients
