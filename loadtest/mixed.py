"""Callers of every kind, welcome and not, for tools that watch a server for long: a table of what they send.

REST (Inlay's own, OpenAI's, text-embeddings-inference's, Open Inference Protocol), gRPC, requests that must be refused,
broken ones, and clients that leave. Each row says which outcomes are right. Looks at the status of an answer and never
at its numbers; loadtest/locustfile.py does that.
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
from loadtest.mixed_grpc import GRPC, Stubs

JSON, RAW = "application/json", "application/octet-stream"
BUSY = ("429", "503", "RESOURCE_EXHAUSTED", "UNAVAILABLE")  # right for any request, and counted apart
LONGEST_WORDS = 512
TIMEOUT_S = 60


@dataclass(frozen=True)
class Target:
    """Where a server answers, and the model that is asked for."""

    http: int
    grpc: int
    model: str


class Caller:
    """One caller: a connection, a channel and a random stream of its own."""

    def __init__(self, target: Target, seed: int) -> None:
        self.target = target
        self.rng = random.Random(seed)
        self.connection = http.client.HTTPConnection("127.0.0.1", target.http, timeout=TIMEOUT_S)
        self.stubs = Stubs(target.grpc)

    def ask(self, verb: str, path: str, document: Any = None, accept: str = JSON) -> str:
        """One HTTP exchange; its status."""
        body = document if isinstance(document, bytes | None) else json.dumps(document).encode()
        headers = {"accept": accept} | ({"content-type": JSON} if body else {})
        try:
            self.connection.request(verb, path, body, headers)
            answer = self.connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            self.connection.close()  # the next request opens it again
            raise
        return str(answer.status)

    def texts(self) -> list[str]:
        """Some texts of the usual mix."""
        return [workload.mixed_text(self.rng) for _ in range(self.rng.randint(1, 8))]

    def ids(self) -> list[list[int]]:
        """Some lists of ids of the usual mix."""
        return [workload.mixed_ids(self.rng) for _ in range(self.rng.randint(1, 8))]

    def close(self) -> None:
        """Hang up."""
        self.connection.close()
        self.stubs.close()


Call = Callable[[Caller], str]


@dataclass(frozen=True)
class Kind:
    """One kind of request: how often, among all weights; what outcomes are right."""

    name: str
    weight: int
    call: Call
    right: tuple[str, ...] = ("200",)


def _post(path: str, make: Callable[[Caller], Any], accept: str = JSON) -> Call:
    return lambda caller: caller.ask("POST", path, make(caller), accept)


def _get(*paths: str) -> Call:
    return lambda caller: caller.ask("GET", caller.rng.choice(paths))


def _oip(caller: Caller) -> str:
    texts = caller.texts()
    tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
    return caller.ask("POST", f"/v2/models/{caller.target.model}/infer", {"inputs": [tensor]})


def _openai(caller: Caller) -> dict[str, Any]:
    form = caller.rng.choice(("float", "base64"))
    return {"model": caller.target.model, "input": caller.texts(), "encoding_format": form}


def _raw(caller: Caller, sent: bytes, wait_s: float) -> str:
    """Bytes on a connection of their own; the status if one comes within `wait_s`, which 0 does not even await."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", caller.target.http), TIMEOUT_S)) as line:
        line.sendall(sent)
        if not wait_s:
            time.sleep(caller.rng.uniform(0, 0.05))
            return "left"
        line.settimeout(wait_s)
        with contextlib.suppress(TimeoutError):
            begin = line.recv(64)
            return begin[9:12].decode("latin-1") if begin else "closed"
        return "silence"


def _request(body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return (
        b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % size + body
    )


def _leaves(caller: Caller) -> str:
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
    Kind("oip infer", 4, _oip),
    Kind("positions", 2, _get(*(f"/positions/rope?theta=10000&head_dim=64&length={n}" for n in (8, 64, 512)))),
    Kind("probes", 2, _get("/health/live", "/health/ready", "/metrics", "/models")),
    Kind("refused: id", 1, _post("/embed", lambda c: {"inputs": [[101, 10**6]]}), ("422",)),
    Kind("refused: model", 1, _post("/embed", lambda c: {"inputs": "x", "model": f"no-{c.rng.random()}"}), ("404",)),
    Kind("refused: member", 1, _post("/embed", lambda c: {"inputs": "x", f"no{c.rng.random()}": 1}), ("422",)),
    Kind(
        "refused: too long",
        1,
        _post("/embed", lambda c: {"inputs": workload.text(c.rng, LONGEST_WORDS), "truncate": False}),
        ("422",),
    ),
    Kind("refused: path", 1, lambda c: c.ask("POST", f"/no/{c.rng.random()}", {}), ("404",)),
    Kind("broken: json", 1, _post("/embed", lambda c: b'{"inputs": "a'), ("400",)),
    Kind("broken: http", 1, lambda c: _raw(c, b"\x00\x01 nonsense\r\n\r\n", 5), ("400", "closed")),
    Kind("broken: 1 GiB announced", 1, lambda c: _raw(c, _request(b"", 1 << 30), 5), ("413", "closed")),
    Kind("broken: half a body", 1, lambda c: _raw(c, _request(b'{"inputs": "a', 1000), 0), ("left",)),
    Kind("leaves during a run", 2, _leaves, ("left",)),
)


KINDS = (*HTTP, *(Kind(name, weight, call, right) for name, weight, call, right in GRPC))


@dataclass(frozen=True)
class Counts:
    """What was sent: outcomes by kind, and the wrong ones among them."""

    outcomes: Mapping[str, Mapping[str, int]]

    @property
    def sent(self) -> int:
        """Requests of all kinds."""
        return sum(sum(one.values()) for one in self.outcomes.values())

    @property
    def wrong(self) -> dict[str, dict[str, int]]:
        """Outcomes that their kind does not allow."""
        found = {}
        for kind in KINDS:
            seen = self.outcomes.get(kind.name, {})
            if bad := {name: n for name, n in seen.items() if name not in (*kind.right, *BUSY)}:
                found[kind.name] = bad
        return found


class Crowd:
    """Callers in threads of this process, each sending one request after another until told to stop."""

    def __init__(self, target: Target, callers: int, pause_s: float, kinds: Sequence[Kind] = KINDS) -> None:
        self._kinds, self._weights = kinds, [kind.weight for kind in kinds]
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._outcomes: dict[str, Counter[str]] = {kind.name: Counter() for kind in kinds}
        self._threads = [threading.Thread(target=self._call, args=(target, seed)) for seed in range(callers)]

    @property
    def counts(self) -> Counts:
        """What was sent so far."""
        with self._lock:
            return Counts({name: dict(found) for name, found in self._outcomes.items()})

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
    def calling(self) -> Iterator["Crowd"]:
        """While inside, they call."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()
