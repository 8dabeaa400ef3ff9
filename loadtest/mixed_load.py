"""Valid and invalid requests of every kind for long measurements, as a table, and threads that send them.

REST (Inlay's own, OpenAI's, text-embeddings-inference's, Open Inference Protocol), gRPC, invalid requests, malformed
ones, and clients that disconnect. Each row names the expected outcomes. Only statuses are checked here;
loadtest/locustfile.py checks numbers.
"""

import contextlib
import http.client
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from loadtest import workload
from loadtest.mixed_load_grpc import GRPC, Stubs

JSON, RAW = "application/json", "application/octet-stream"
BUSY = ("429", "503", "RESOURCE_EXHAUSTED", "UNAVAILABLE")  # expected of any request, and counted apart
LONGEST_WORDS = 512
TIMEOUT_S = 60


@dataclass(frozen=True)
class Target:
    """A server's loopback ports and the name of the model to request."""

    http: int
    grpc: int
    model: str


class Caller:
    """One caller with a connection, a channel and a random generator of its own."""

    def __init__(self, target: Target, seed: int) -> None:
        self.target = target
        self.rng = random.Random(seed)
        self.connection = http.client.HTTPConnection("127.0.0.1", target.http, timeout=TIMEOUT_S)
        self.stubs = Stubs(f"127.0.0.1:{target.grpc}")

    def request(self, verb: str, path: str, document: Any = None, accept: str = JSON) -> str:
        """Send one HTTP request and return the status of its response."""
        body = document if isinstance(document, bytes | None) else json.dumps(document).encode()
        headers = {"accept": accept} | ({"content-type": JSON} if body else {})
        try:
            self.connection.request(verb, path, body, headers)
            response = self.connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException):
            self.connection.close()  # the next request opens it again
            raise
        return str(response.status)

    def texts(self) -> list[str]:
        """Return 1 to 8 texts of mixed lengths."""
        return [workload.mixed_text(self.rng) for _ in range(self.rng.randint(1, 8))]

    def ids(self) -> list[list[int]]:
        """Return 1 to 8 lists of ids of mixed lengths."""
        return [workload.mixed_ids(self.rng) for _ in range(self.rng.randint(1, 8))]

    def close(self) -> None:
        """Close the connection and the channel."""
        self.connection.close()
        self.stubs.close()


Call = Callable[[Caller], str]


@dataclass(frozen=True)
class Kind:
    """One kind of request.

    Attributes:
        name: in reports.
        weight: how often it is sent, relative to the other kinds.
        call: sends it and returns the outcome.
        expected: outcomes that are right.
    """

    name: str
    weight: int
    call: Call
    expected: tuple[str, ...] = ("200",)


def _post(path: str, make: Callable[[Caller], Any], accept: str = JSON) -> Call:
    return lambda caller: caller.request("POST", path, make(caller), accept)


def _get(*paths: str) -> Call:
    return lambda caller: caller.request("GET", caller.rng.choice(paths))


def _oip(caller: Caller) -> str:
    texts = caller.texts()
    tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
    return caller.request("POST", f"/v2/models/{caller.target.model}/infer", {"inputs": [tensor]})


def _openai(caller: Caller) -> dict[str, Any]:
    form = caller.rng.choice(("float", "base64"))
    return {"model": caller.target.model, "input": caller.texts(), "encoding_format": form}


def _raw(caller: Caller, sent: bytes, wait_s: float) -> str:
    """Send bytes on a connection of their own.

    Args:
        caller: whose server and random generator are used.
        sent: the bytes.
        wait_s: the longest wait for a response in seconds; 0: disconnect within 50 ms without reading.

    Returns:
        The status, "closed", "silence", or "left" if it disconnected itself.
    """
    with contextlib.closing(socket.create_connection(("127.0.0.1", caller.target.http), TIMEOUT_S)) as connection:
        connection.sendall(sent)
        if not wait_s:
            time.sleep(caller.rng.uniform(0, 0.05))
            return "left"
        connection.settimeout(wait_s)
        with contextlib.suppress(TimeoutError):
            begin = connection.recv(64)
            return begin[9:12].decode("latin-1") if begin else "closed"
        return "silence"


def _request(body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return (
        b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % size + body
    )


def _disconnects(caller: Caller) -> str:
    texts = [workload.text(caller.rng, 100) for _ in range(16)]
    return _raw(caller, _request(json.dumps({"inputs": texts}).encode()), 0)


HTTP: tuple[Kind, ...] = (
    Kind("text", 8, _post("/embed", lambda c: {"inputs": workload.mixed_text(c.rng)})),
    Kind(
        "text of any length",
        4,
        _post("/embed", lambda c: {"inputs": workload.text(c.rng, c.rng.randint(3, LONGEST_WORDS)), "truncate": True}),
    ),
    Kind("texts, raw", 4, _post("/embed", lambda c: {"inputs": c.texts()}, RAW)),
    Kind("ids, raw", 8, _post("/embed", lambda c: {"inputs": c.ids(), "outputs": ["input_embeddings"]}, RAW)),
    Kind("ids, json", 2, _post("/embed", lambda c: {"inputs": c.ids(), "outputs": ["input_embeddings"]})),
    Kind(
        "two outputs, base64",
        1,
        _post(
            "/embed",
            lambda c: {
                "inputs": c.texts(),
                "outputs": ["input_embeddings", "sentence_embedding"],
                "encoding_format": "base64",
            },
        ),
    ),
    Kind("openai", 4, _post("/v1/embeddings", _openai)),
    Kind("tei embed_all", 1, _post("/embed_all", lambda c: {"inputs": workload.mixed_text(c.rng)})),
    Kind("tei tokenize", 2, _post("/tokenize", lambda c: {"inputs": workload.mixed_text(c.rng)})),
    Kind(
        "tei similarity",
        2,
        _post("/similarity", lambda c: {"inputs": {"source_sentence": "a dog", "sentences": c.texts()}}),
    ),
    Kind("cohere rerank", 2, _post("/v2/rerank", lambda c: {"query": "a dog", "documents": c.texts()})),
    Kind("vllm score", 1, _post("/score", lambda c: {"text_1": "a dog", "text_2": c.texts()})),
    Kind("oip infer", 4, _oip),
    Kind("positions", 2, _get(*(f"/positions/rope?theta=10000&head_dim=64&length={n}" for n in (8, 64, 512)))),
    Kind("probes", 2, _get("/health/live", "/health/ready", "/metrics", "/models")),
    Kind("invalid: id", 1, _post("/embed", lambda c: {"inputs": [[101, 10**6]]}), ("422",)),
    Kind("invalid: model", 1, _post("/embed", lambda c: {"inputs": "x", "model": f"no-{c.rng.random()}"}), ("404",)),
    Kind("invalid: kind", 1, _post("/rerank", lambda c: {"query": "x", "texts": [str(c.rng.random())]}), ("424",)),
    Kind("invalid: member", 1, _post("/embed", lambda c: {"inputs": "x", f"no{c.rng.random()}": 1}), ("422",)),
    Kind(
        "invalid: too long",
        1,
        _post("/embed", lambda c: {"inputs": workload.text(c.rng, LONGEST_WORDS), "truncate": False}),
        ("422",),
    ),
    Kind("invalid: path", 1, lambda c: c.request("POST", f"/no/{c.rng.random()}", {}), ("404",)),
    Kind("malformed: json", 1, _post("/embed", lambda c: b'{"inputs": "a'), ("400",)),
    Kind("malformed: http", 1, lambda c: _raw(c, b"\x00\x01 nonsense\r\n\r\n", 5), ("400", "closed")),
    Kind("malformed: 1 GiB announced", 1, lambda c: _raw(c, _request(b"", 1 << 30), 5), ("413", "closed")),
    Kind("malformed: half a body", 1, lambda c: _raw(c, _request(b'{"inputs": "a', 1000), 0), ("left",)),
    Kind("disconnects during a run", 2, _disconnects, ("left",)),
)


KINDS = (*HTTP, *(Kind(name, weight, call, expected) for name, weight, call, expected in GRPC))


@dataclass(frozen=True)
class Counts:
    """What was sent: outcomes and their counts by kind."""

    outcomes: Mapping[str, Mapping[str, int]]

    @property
    def sent(self) -> int:
        """Requests of all kinds."""
        return sum(sum(one.values()) for one in self.outcomes.values())

    @property
    def wrong(self) -> dict[str, dict[str, int]]:
        """Outcomes that their kind does not expect."""
        unexpected = {}
        for kind in KINDS:
            seen = self.outcomes.get(kind.name, {})
            if bad := {name: n for name, n in seen.items() if name not in (*kind.expected, *BUSY)}:
                unexpected[kind.name] = bad
        return unexpected


class Traffic:
    """Callers in threads of this process; each sends one request after another until they are stopped."""

    def __init__(self, target: Target, callers: int, pause_s: float, kinds: Sequence[Kind] = KINDS) -> None:
        self._kinds, self._weights = kinds, [kind.weight for kind in kinds]
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._outcomes: dict[str, Counter[str]] = {kind.name: Counter() for kind in kinds}
        self._threads = [threading.Thread(target=self._call, args=(target, seed)) for seed in range(callers)]

    @property
    def counts(self) -> Counts:
        """Everything sent so far."""
        with self._lock:
            return Counts({name: dict(counts) for name, counts in self._outcomes.items()})

    def _call(self, target: Target, seed: int) -> None:
        caller = Caller(target, seed)
        try:
            while not self._stop.wait(caller.rng.uniform(0, 2 * self._pause_s)):
                [kind] = caller.rng.choices(self._kinds, self._weights)
                outcome = self._outcome(kind, caller)
                with self._lock:
                    self._outcomes[kind.name][outcome] += 1
        finally:
            caller.close()

    @staticmethod
    def _outcome(kind: Kind, caller: Caller) -> str:
        try:
            return kind.call(caller)
        except grpc.RpcError as error:
            return str(error.code().name)
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__

    @contextlib.contextmanager
    def running(self) -> Iterator["Traffic"]:
        """Send requests inside the block."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()
