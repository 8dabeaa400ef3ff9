"""The callers of loadtest.swap: they ask known probes over HTTP and gRPC, and tell by its numbers who answered.

Starts and loads no model.
"""

import contextlib
import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from loadtest import workload
from loadtest.mixed_grpc import Stubs, texts_request
from loadtest.response_checks import ENCODER_TOLERANCE, Floats, from_bytes, from_message
from proto import embed_pb2

POOLED, LAYER = "sentence_embedding", "input_embeddings"
TIMEOUT_S = 60
_RNG = random.Random(47)
PROBES = [workload.text(_RNG, tokens) for tokens in (3, 5, 8, 12, 17, 17, 23, 30, 45, 60, 90, 120)]
Numbers = Mapping[str, Floats]
Known = Mapping[str, Sequence[Numbers]]
"""By version: for each probe its output by name, rows."""
Answer = tuple[int, Numbers]
"""Number of a probe, and the rows that came for it."""


@dataclass(frozen=True)
class Ports:
    """Where a server answers."""

    http: int
    grpc: int


@dataclass
class Book:
    """What the callers wrote down. `strange`: no version, or several in one answer; `stale`: not one then serving."""

    known: Known
    sent: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    strange: int = 0
    stale: int = 0
    moving_s: list[float] = field(default_factory=list)
    still_s: list[float] = field(default_factory=list)
    epochs: list[frozenset[str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def serving(self, *versions: str) -> None:
        """From now on these may answer."""
        self.epochs.append(frozenset(versions))

    def recognise(self, answers: Sequence[Answer]) -> str | None:
        """The one version whose numbers all of these are."""
        fitting = [
            version
            for version, probes in self.known.items()
            if all(_alike(rows, probes[number][name]) for number, found in answers for name, rows in found.items())
        ]
        return fitting[0] if len(fitting) == 1 else None

    def answered(self, kind: str, epoch: int, seconds: float, answers: Sequence[Sequence[Answer]]) -> None:
        """Requests asked in `epoch`, one or several on a stream, and what came for each."""
        span = self.epochs[epoch:]
        possible = frozenset().union(*span)
        versions = [self.recognise(one) for one in answers]
        with self.lock:
            self.sent += len(answers)
            self.kinds[kind] += len(answers)
            self.seen.update(version for version in versions if version)
            self.strange += versions.count(None)
            self.stale += sum(version is not None and version not in possible for version in versions)
            (self.moving_s if any(len(one) > 1 for one in span) else self.still_s).append(seconds)

    def failure(self, kind: str, reason: str) -> None:
        """A request that got no answer, or a refusal."""
        with self.lock:
            self.sent += 1
            self.kinds[kind] += 1
            self.failed[f"{kind}: {reason}"] += 1


def _alike(one: Floats, other: Floats) -> bool:
    return one.shape == other.shape and bool(np.abs(one - other).max() <= ENCODER_TOLERANCE)


class Refused(Exception):
    """An answer other than 200."""


class Caller:
    """One connection and one channel."""

    def __init__(self, ports: Ports, model: str, seed: int) -> None:
        self.model = model
        self.rng = random.Random(seed)
        self.connection = http.client.HTTPConnection("127.0.0.1", ports.http, timeout=TIMEOUT_S)
        self.stubs = Stubs(ports.grpc)

    def some(self) -> list[int]:
        """Numbers of one to six probes."""
        return [self.rng.randrange(len(PROBES)) for _ in range(self.rng.randint(1, 6))]

    def post(self, accept: str, chosen: list[int], **members: Any) -> tuple[bytes, Mapping[str, str]]:
        """Body and headers of the answer; raises Refused."""
        asked = {"model": self.model, "inputs": [PROBES[number] for number in chosen], **members}
        headers = {"content-type": "application/json", "accept": accept}
        try:
            self.connection.request("POST", "/embed", json.dumps(asked).encode(), headers)
            answer = self.connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            self.connection.close()
            raise
        if answer.status != 200:
            raise Refused(f"{answer.status} {body[:200].decode(errors='replace')}")
        return body, {name.lower(): value for name, value in answer.headers.items()}

    def close(self) -> None:
        """Hang up."""
        self.connection.close()
        self.stubs.close()


Ask = Callable[[Caller], list[list[Answer]]]


def _vectors(caller: Caller) -> list[list[Answer]]:
    chosen = caller.some()
    body, headers = caller.post("application/octet-stream", chosen)
    return [_rows(chosen, from_bytes(body, headers))]


def _rows(chosen: list[int], rows: Floats) -> list[Answer]:
    return [(number, {POOLED: rows[index]}) for index, number in enumerate(chosen)]


def _both(caller: Caller) -> list[list[Answer]]:
    chosen = caller.some()
    body, _ = caller.post("application/json", chosen, outputs=[LAYER, POOLED])
    outputs = json.loads(body)["outputs"]
    return [
        [
            (number, {name: _squeezed(name, np.array(outputs[name][index], np.float32)) for name in (LAYER, POOLED)})
            for index, number in enumerate(chosen)
        ]
    ]


def _squeezed(name: str, rows: Floats) -> Floats:
    return rows.reshape(-1) if name == POOLED else rows


def _unary(caller: Caller) -> list[list[Answer]]:
    chosen = caller.some()
    request = texts_request([PROBES[number] for number in chosen], model=caller.model)
    return [_rows(chosen, from_message(caller.stubs.embed(request, timeout=TIMEOUT_S)))]


def _stream(caller: Caller) -> list[list[Answer]]:
    chosen = caller.some()
    requests: Iterator[embed_pb2.EmbedRequest]
    requests = iter([texts_request([PROBES[number]], model=caller.model) for number in chosen])
    answers: list[list[Answer]] = []
    for number, answer in zip(chosen, caller.stubs.stream(requests, timeout=TIMEOUT_S), strict=True):
        if answer.WhichOneof("result") == "error":
            raise Refused(answer.error.message)
        answers.append(_rows([number], from_message(answer.response)))
    return answers


KINDS: tuple[dict[str, Ask], ...] = (
    {"http vectors": _vectors, "http two outputs": _both},
    {"grpc vectors": _unary, "grpc stream": _stream},
)


def numbers(ports: Ports, model: str) -> list[Numbers]:
    """What a version answers to each probe, asked one by one."""
    caller = Caller(ports, model, 0)
    with contextlib.closing(caller):
        found: list[Numbers] = []
        for number in range(len(PROBES)):
            body, _ = caller.post("application/json", [number], outputs=[LAYER, POOLED])
            outputs = json.loads(body)["outputs"]
            found.append({name: _squeezed(name, np.array(outputs[name][0], np.float32)) for name in (LAYER, POOLED)})
    return found


@contextlib.contextmanager
def calling(ports: Ports, model: str, book: Book, callers: int) -> Iterator[None]:
    """While inside, so many callers ask one request after another, and write down what came."""
    stop = threading.Event()
    threads = [threading.Thread(target=_call, args=(Caller(ports, model, n), n, book, stop)) for n in range(callers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _call(caller: Caller, number: int, book: Book, stop: threading.Event) -> None:
    kinds = list(KINDS[number % len(KINDS)].items())
    with contextlib.closing(caller):
        while not stop.is_set():
            name, ask = caller.rng.choice(kinds)
            epoch, begun = len(book.epochs) - 1, time.monotonic()
            try:
                answers = ask(caller)
            except grpc.RpcError as error:
                book.failure(name, f"{error.code().name} {error.details()}")
            except (OSError, http.client.HTTPException, Refused, ValueError) as error:
                book.failure(name, f"{type(error).__name__} {error}")
            else:
                book.answered(name, epoch, time.monotonic() - begun, answers)
