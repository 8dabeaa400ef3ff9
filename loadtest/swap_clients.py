"""The clients of loadtest.swap: they send known texts over HTTP and gRPC and attribute each answer to a version."""

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
from loadtest.mixed_load_grpc import Stubs, texts_request
from loadtest.response_checks import ENCODER_TOLERANCE, Floats, from_bytes, from_message
from proto import embed_pb2

POOLED, LAYER = "sentence_embedding", "input_embeddings"
TIMEOUT_S = 60
_RNG = random.Random(47)
PROBES = [workload.text(_RNG, tokens) for tokens in (3, 5, 8, 12, 17, 17, 23, 30, 45, 60, 90, 120)]
Outputs = Mapping[str, Floats]
"""Rows by output name."""
KnownAnswers = Mapping[str, Sequence[Outputs]]
"""By version: the outputs of each probe."""
Answer = tuple[int, Outputs]
"""Index of a probe, and the outputs received for it."""


@dataclass(frozen=True)
class Ports:
    """A server's loopback ports."""

    http: int
    grpc: int


@dataclass
class AnswerLog:
    """Every answer that the clients received, attributed to a version by its numbers.

    Attributes:
        known: the expected answers of each version.
        sent: requests.
        kinds: requests by kind.
        failed: failures by kind and reason.
        seen: answers by version.
        unknown: answers that fit no version, or mix several.
        stale: answers of a version that was not serving while the request was in flight.
        during_load_s: latencies of requests in flight during a load.
        otherwise_s: latencies of the others.
        epochs: versions that may answer, one set for each period of the run.
    """

    known: KnownAnswers
    sent: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    unknown: int = 0
    stale: int = 0
    during_load_s: list[float] = field(default_factory=list)
    otherwise_s: list[float] = field(default_factory=list)
    epochs: list[frozenset[str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start_epoch(self, *versions: str) -> None:
        """Begin a period in which `versions` may answer."""
        self.epochs.append(frozenset(versions))

    def recognise(self, answers: Sequence[Answer]) -> str | None:
        """Return the one version that all of these answers fit; None: there is none, or several."""
        fitting = [
            version
            for version, probes in self.known.items()
            if all(_alike(rows, probes[number][name]) for number, outputs in answers for name, rows in outputs.items())
        ]
        return fitting[0] if len(fitting) == 1 else None

    def add_answers(self, kind: str, epoch: int, seconds: float, answers: Sequence[Sequence[Answer]]) -> None:
        """Record requests that were answered.

        Args:
            kind: of request.
            epoch: index of the period in which they were sent.
            seconds: until the last answer.
            answers: of each request; a stream has several.
        """
        span = self.epochs[epoch:]
        possible = frozenset().union(*span)
        versions = [self.recognise(one) for one in answers]
        with self.lock:
            self.sent += len(answers)
            self.kinds[kind] += len(answers)
            self.seen.update(version for version in versions if version)
            self.unknown += versions.count(None)
            self.stale += sum(version is not None and version not in possible for version in versions)
            (self.during_load_s if any(len(one) > 1 for one in span) else self.otherwise_s).append(seconds)

    def add_failure(self, kind: str, reason: str) -> None:
        """Record a request that got an error, or no answer."""
        with self.lock:
            self.sent += 1
            self.kinds[kind] += 1
            self.failed[f"{kind}: {reason}"] += 1


def _alike(one: Floats, other: Floats) -> bool:
    return one.shape == other.shape and bool(np.abs(one - other).max() <= ENCODER_TOLERANCE)


class ErrorResponse(Exception):
    """A response with a status other than 200."""


class Client:
    """One client with an HTTP connection and a gRPC channel."""

    def __init__(self, ports: Ports, model: str, seed: int) -> None:
        self.model = model
        self.rng = random.Random(seed)
        self.connection = http.client.HTTPConnection("127.0.0.1", ports.http, timeout=TIMEOUT_S)
        self.stubs = Stubs(f"127.0.0.1:{ports.grpc}")

    def draw(self) -> list[int]:
        """Return the indices of one to six random probes."""
        return [self.rng.randrange(len(PROBES)) for _ in range(self.rng.randint(1, 6))]

    def post(self, accept: str, chosen: list[int], **members: Any) -> tuple[bytes, Mapping[str, str]]:
        """Send probes to /embed and return body and headers of the response; raises ErrorResponse."""
        document = {"model": self.model, "inputs": [PROBES[number] for number in chosen], **members}
        headers = {"content-type": "application/json", "accept": accept}
        try:
            self.connection.request("POST", "/embed", json.dumps(document).encode(), headers)
            response = self.connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            self.connection.close()
            raise
        if response.status != 200:
            raise ErrorResponse(f"{response.status} {body[:200].decode(errors='replace')}")
        return body, {name.lower(): value for name, value in response.headers.items()}

    def close(self) -> None:
        """Close the connection and the channel."""
        self.connection.close()
        self.stubs.close()


Send = Callable[[Client], list[list[Answer]]]


def _vectors(client: Client) -> list[list[Answer]]:
    chosen = client.draw()
    body, headers = client.post("application/octet-stream", chosen)
    return [_rows(chosen, from_bytes(body, headers))]


def _rows(chosen: list[int], rows: Floats) -> list[Answer]:
    return [(number, {POOLED: rows[index]}) for index, number in enumerate(chosen)]


def _both(client: Client) -> list[list[Answer]]:
    chosen = client.draw()
    body, _ = client.post("application/json", chosen, outputs=[LAYER, POOLED])
    outputs = json.loads(body)["outputs"]
    return [
        [
            (number, {name: _squeezed(name, np.array(outputs[name][index], np.float32)) for name in (LAYER, POOLED)})
            for index, number in enumerate(chosen)
        ]
    ]


def _squeezed(name: str, rows: Floats) -> Floats:
    return rows.reshape(-1) if name == POOLED else rows


def _unary(client: Client) -> list[list[Answer]]:
    chosen = client.draw()
    request = texts_request([PROBES[number] for number in chosen], model=client.model)
    return [_rows(chosen, from_message(client.stubs.embed(request, timeout=TIMEOUT_S)))]


def _stream(client: Client) -> list[list[Answer]]:
    chosen = client.draw()
    requests: Iterator[embed_pb2.EmbedRequest]
    requests = iter([texts_request([PROBES[number]], model=client.model) for number in chosen])
    answers: list[list[Answer]] = []
    for number, answer in zip(chosen, client.stubs.stream(requests, timeout=TIMEOUT_S), strict=True):
        if answer.WhichOneof("result") == "error":
            raise ErrorResponse(answer.error.message)
        answers.append(_rows([number], from_message(answer.response)))
    return answers


KINDS: tuple[dict[str, Send], ...] = (
    {"http vectors": _vectors, "http two outputs": _both},
    {"grpc vectors": _unary, "grpc stream": _stream},
)


def expected_answers(ports: Ports, model: str) -> list[Outputs]:
    """Return a version's outputs for each probe, requested one by one."""
    client = Client(ports, model, 0)
    with contextlib.closing(client):
        answers: list[Outputs] = []
        for number in range(len(PROBES)):
            body, _ = client.post("application/json", [number], outputs=[LAYER, POOLED])
            outputs = json.loads(body)["outputs"]
            answers.append({name: _squeezed(name, np.array(outputs[name][0], np.float32)) for name in (LAYER, POOLED)})
    return answers


@contextlib.contextmanager
def clients(ports: Ports, model: str, log: AnswerLog, count: int) -> Iterator[None]:
    """Run `count` clients inside the block; each sends one request after another and records the answers."""
    stop = threading.Event()
    threads = [threading.Thread(target=_run, args=(Client(ports, model, n), n, log, stop)) for n in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _run(client: Client, number: int, log: AnswerLog, stop: threading.Event) -> None:
    kinds = list(KINDS[number % len(KINDS)].items())
    with contextlib.closing(client):
        while not stop.is_set():
            name, send = client.rng.choice(kinds)
            epoch, begun = len(log.epochs) - 1, time.monotonic()
            try:
                answers = send(client)
            except grpc.RpcError as error:
                log.add_failure(name, f"{error.code().name} {error.details()}")
            except (OSError, http.client.HTTPException, ErrorResponse, ValueError) as error:
                log.add_failure(name, f"{type(error).__name__} {error}")
            else:
                log.add_answers(name, epoch, time.monotonic() - begun, answers)
