"""The largest requests that a server allows, many at a time, for a bounded time: what each of them came to.

`python -m tests.deploy.worst_load URL GRPC_TARGET [KIND ...]` prints a table; tests/deploy/container.py runs it on
small containers.
"""

import gzip
import http.client
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import grpc

from proto import embed_pb2, embed_pb2_grpc

SECONDS = 20.0  # in which requests are begun
PATIENCE = 150.0  # of one answer
SLOW_BYTES, SLOW_PAUSE = 65536, 0.5
JSON = {"content-type": "application/json"}
CUT = "cut"
LEFT = "left"  # by a slow reader, whose time was over
REFUSALS = ("413", "422", "429", "503", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNAVAILABLE")


class Kind(NamedTuple):
    """Requests of one kind: so many clients, each of which sends one after the other."""

    name: str
    clients: int
    send: Callable[[], str]


def outcome(url: str, method: str, path: str, body: bytes = b"", *, slow: bool = False, **headers: str) -> str:
    """The status of one answer that came whole; "left" where a slow reader's time was over; "cut" for any other."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE)
    try:
        connection.request(method, path, body or None, JSON | headers)
        answer = connection.getresponse()
        leaves = time.monotonic() + SECONDS / 2
        while answer.read(SLOW_BYTES):
            if slow:
                time.sleep(SLOW_PAUSE)
                if time.monotonic() > leaves:
                    return LEFT
        return str(answer.status)
    except (http.client.HTTPException, OSError) as error:
        return f"{CUT} ({type(error).__name__})"
    finally:
        connection.close()


def rpc_outcome(target: str, request: embed_pb2.EmbedRequest) -> str:
    """The status of one call of Embed."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(target, options) as channel:
        stub: Any = embed_pb2_grpc.EmbedderStub(channel)
        try:
            stub.Embed(request, timeout=PATIENCE, wait_for_ready=True)
        except grpc.RpcError as error:
            status = error.code().name  # type: ignore[attr-defined]
            return status if status in REFUSALS else f"{CUT} ({status})"
    return "OK"


def token_ids(inputs: int, tokens: int) -> list[list[int]]:
    """Different inputs of as many token ids."""
    return [[1000 + (7 * row + column) % 20_000 for column in range(tokens)] for row in range(inputs)]


def rows(inputs: int, **fields: Any) -> bytes:
    """A body of /embed that asks for the rows of inputs of 512 tokens: 0.75 MiB each."""
    return json.dumps({"inputs": token_ids(inputs, 512), "outputs": ["input_embeddings"]} | fields).encode()


def kinds(url: str, target: str) -> list[Kind]:
    """Every kind of large request."""
    ids = [embed_pb2.Input(ids=embed_pb2.TokenIds(input_ids=each)) for each in token_ids(40, 512)]
    vectors = embed_pb2.EmbedRequest(inputs=ids, outputs=["input_embeddings"])
    message = embed_pb2.EmbedRequest(inputs=[embed_pb2.Input(text="a" * 15_000_000)])
    text = json.dumps({"inputs": "hello world " * 50_000}).encode()
    long = json.dumps({"inputs": "a" * 15_000_000}).encode()
    pages = json.dumps({"inputs": [f"{number} " + "hello world " * 60 for number in range(64)]}).encode()
    zipped = gzip.compress(long)
    table = "/positions/rope?length=1000000&rotary_dim=128"
    largest, most = rows(255), rows(40)
    base64, halves = rows(40, encoding_format="base64"), rows(40, dtype="float16")
    coded, picture = {"content-encoding": "gzip"}, "/positions/rope.png?length=100000&rotary_dim=256&width=4000"
    npy, slow_npy = {"accept": "application/x-npy"}, {"accept": "application/x-npy", "slow": True}
    return [
        Kind("small texts", 4, lambda: outcome(url, "POST", "/embed", b'{"inputs": "hello world"}')),
        Kind("255 x 512 rows, JSON", 16, lambda: outcome(url, "POST", "/embed", largest)),
        Kind("40 x 512 rows, JSON", 16, lambda: outcome(url, "POST", "/embed", most)),
        Kind("40 x 512 rows, base64", 4, lambda: outcome(url, "POST", "/embed", base64)),
        Kind("40 x 512 rows, float16, npy", 4, lambda: outcome(url, "POST", "/embed", halves, **npy)),  # type: ignore[arg-type]
        Kind("40 x 512 rows, gzip", 2, lambda: outcome(url, "POST", "/embed", most, **{"accept-encoding": "gzip"})),
        Kind("40 x 512 rows, read slowly", 32, lambda: outcome(url, "POST", "/embed", most, **slow_npy)),  # type: ignore[arg-type]
        Kind("40 x 512 rows, gRPC", 8, lambda: rpc_outcome(target, vectors)),
        Kind("messages of 15 MB, gRPC", 16, lambda: rpc_outcome(target, message)),
        Kind("bodies of 15 MB", 24, lambda: outcome(url, "POST", "/embed", long)),
        Kind("bodies of 15 MB, gzip", 8, lambda: outcome(url, "POST", "/embed", zipped, **coded)),
        Kind("texts of 600 000 characters", 8, lambda: outcome(url, "POST", "/embed", text)),
        Kind("the same, tokenized", 4, lambda: outcome(url, "POST", "/tokenize", text)),
        Kind("64 long texts", 4, lambda: outcome(url, "POST", "/v1/embeddings", pages.replace(b"inputs", b"input", 1))),
        Kind("tables, read slowly", 48, lambda: outcome(url, "GET", f"{table}&format=json", slow=True)),
        Kind("tables of bytes, read slowly", 48, lambda: outcome(url, "GET", f"{table}&format=raw", slow=True)),
        Kind("pictures of tables", 4, lambda: outcome(url, "GET", picture)),
    ]  # fmt: skip


def run(url: str, target: str, *names: str, seconds: float = SECONDS) -> dict[str, Counter[str]]:
    """What the requests of every kind, or of the named ones, came to; they run together."""
    stop = time.monotonic() + seconds

    def client(send: Callable[[], str]) -> list[str]:
        outcomes = []
        while time.monotonic() < stop:
            outcomes.append(send())
            if outcomes[-1] not in ("200", "OK", LEFT):
                time.sleep(0.5)  # as Retry-After has it, or nearly
        return outcomes

    every = [kind for kind in kinds(url, target) if not names or kind.name in names]
    results: dict[str, Counter[str]] = {kind.name: Counter() for kind in every}
    with ThreadPoolExecutor(sum(kind.clients for kind in every)) as pool:
        futures = [(kind.name, pool.submit(client, kind.send)) for kind in every for _ in range(kind.clients)]
        for name, future in futures:
            results[name].update(future.result())
    return results


def table_of(results: dict[str, Counter[str]]) -> str:
    """The results as a table of Markdown."""
    lines = ["| requests | outcomes |", "|---|---|"]
    for name, outcomes in results.items():
        lines.append(f"| {name} | {', '.join(f'{status}: {count}' for status, count in sorted(outcomes.items()))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table_of(run(*sys.argv[1:])))
