"""Requests made to fill memory: refused, or served within a bound that /proc shows."""

import gzip
import json
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from backports import zstd

from proto import embed_pb2 as pb
from proto.embed_pb2_grpc import EmbedderStub
from tests.faults.conftest import Notes
from tests.faults.processes import MIB, Running, running, until

pytestmark = pytest.mark.faults
BODY_MIB = 16  # max_body_bytes
JSON = {"content-type": "application/json"}
MOST = 256 * MIB  # above what was resident, for one request of at most 16 MiB


@pytest.fixture(scope="module")
def service(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(store, tmp_path_factory.mktemp("sizes") / "log", "--client-seconds", "3") as service:
        service.embed().raise_for_status()
        yield service


def post(service: Running, path: str, body: bytes, **headers: str) -> httpx.Response:
    return httpx.post(service.url + path, content=body, headers=JSON | headers, timeout=60, trust_env=False)


def oip(
    binary: bytes, shape: list[int], size: int, name: str = "input_ids", datatype: str = "INT64"
) -> tuple[bytes, dict[str, str]]:
    head = json.dumps(
        {"inputs": [{"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}]}
    ).encode()
    return head + binary, {"inference-header-content-length": str(len(head))}


def nested(depth: int) -> bytes:
    return b'{"inputs": ' + b"[" * depth + b"]" * depth + b"}"


def spaces() -> bytes:
    """What a bomb unpacks to."""
    return b" " * (256 * MIB)


def ranking(field: str, documents: list[str], query: str = "a b") -> bytes:
    return json.dumps({"model": "ranks", "query": query, field: documents}).encode()


def different_texts(count: int, repeats: int) -> list[str]:
    """Texts of 8 times `repeats` characters, since equal ones are computed once."""
    letters = ["".join("ab"[number >> bit & 1] + " " for bit in range(12)) for number in range(count)]
    return [each + "a b c d " * (repeats - 3) for each in letters]


INFER = "/v2/models/bert/infer"
ZEROS = bytes(512 * MIB)
# name → path, body, headers, statuses; made by the test that sends it
BODIES: dict[str, Callable[[], tuple[str, bytes, dict[str, str], set[int]]]] = {
    "1024 inputs of 16 KB": lambda: (
        "/embed",
        json.dumps({"inputs": different_texts(1000, 2000)}).encode(),
        {},
        {200, 413, 422},
    ),
    "one text of 15 MB": lambda: ("/embed", json.dumps({"inputs": "hello " * 2_500_000}).encode(), {}, {200, 422}),
    "one word of 15 MB": lambda: ("/embed", json.dumps({"inputs": "a" * 15_000_000}).encode(), {}, {200, 422}),
    "ids beyond the limit": lambda: ("/embed", json.dumps({"inputs": [[5] * 1_000_000]}).encode(), {}, {200, 422}),
    "a million inputs": lambda: ("/embed", b'{"inputs": [' + b"[5]," * 1_000_000 + b"[5]]}", {}, {422}),
    "ids that are huge": lambda: ("/embed", b'{"inputs": [[' + b"9" * 4_000_000 + b"]]}", {}, {400, 422}),
    "lists 100 000 deep": lambda: ("/embed", nested(100_000), {}, {400, 422}),
    "lists 8 million deep": lambda: ("/embed", nested(8_000_000), {}, {400, 422}),
    "openai, lists 8 million deep": lambda: (
        "/v1/embeddings",
        nested(8_000_000).replace(b"inputs", b"input"),
        {},
        {400},
    ),
    "oip, lists 8 million deep": lambda: (INFER, nested(8_000_000), {}, {400}),
    "a body above the limit": lambda: ("/embed", b" " * (BODY_MIB * MIB + 1), {}, {413}),
    "a gzip bomb": lambda: ("/embed", gzip.compress(spaces()), {"content-encoding": "gzip"}, {413}),
    "a gzip bomb in gzip": lambda: (
        "/embed",
        gzip.compress(gzip.compress(spaces())),
        {"content-encoding": "gzip, gzip"},
        {415},
    ),
    "a zstd bomb": lambda: ("/embed", zstd.compress(spaces()), {"content-encoding": "zstd"}, {413}),
    "oip, a shape of 1e18": lambda: (INFER, *oip(b"12345678", [10**9, 10**9], 8), {400}),
    "oip, a size of 1e9": lambda: (INFER, *oip(b"12345678", [1, 1], 10**9), {400}),
    "oip, a string of 4 GB": lambda: (INFER, *oip(struct.pack("<I", 2**32 - 1), [1], 4, "text", "BYTES"), {400}),
    "a content-length of 1e18": lambda: ("/embed", b"", {"content-length": str(10**18)}, {413}),
    "/tokenize, one word of 15 MB": lambda: ("/tokenize", json.dumps({"inputs": "a" * 15_000_000}).encode(), {}, {422}),
    "texts of 2 MB in all": lambda: (
        "/embed",
        json.dumps({"inputs": different_texts(1024, 256)}).encode(),
        {},
        {200, 422},
    ),
    "/rerank, 1000 documents of 2 KB": lambda: (
        "/rerank",
        ranking("texts", different_texts(1000, 256)),
        {},
        {200, 413, 422},
    ),
    "/rerank, a million documents": lambda: ("/rerank", ranking("texts", ["a"] * 1_000_000), {}, {422}),
    "/rerank, one document of 15 MB": lambda: ("/rerank", ranking("texts", ["a " * 7_500_000]), {}, {200, 413, 422}),
    "/v2/rerank, a query of 1 MB beside 1000 documents": lambda: (
        "/v2/rerank",
        ranking("documents", different_texts(1000, 5), "b " * MIB),
        {},
        {200, 400, 413, 422},
    ),
    "/predict, a million texts": lambda: (
        "/predict",
        json.dumps({"model": "ranks", "inputs": [["a"]] * 1_000_000}).encode(),
        {},
        {422},
    ),
    "a million spans": lambda: (
        "/embed",
        json.dumps({"inputs": "a b", "spans": [[0, 1]] * 1_000_000}).encode(),
        {},
        {413, 422},
    ),
    "one word of 2 MB": lambda: ("/embed", json.dumps({"inputs": "a" * 2 * MIB}).encode(), {}, {200, 422}),
}


@pytest.mark.parametrize("what", BODIES)
def test_a_request_made_to_fill_memory(service: Running, notes: Notes, what: str) -> None:
    """It is refused, or served, with less than 256 MiB above what was resident; four at once with less than four times
    that; then memory and queue are back and others are served."""
    path, body, headers, statuses = BODIES[what]()
    before = service.forget_peak()
    if "content-length" in headers:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        with socket.create_connection(service.address, timeout=30) as line:
            line.sendall(f"{head}content-length: {headers['content-length']}\r\n\r\n".encode())
            received = {int(line.recv(1000).split(b" ")[1])}
    else:
        received = {post(service, path, body, **headers).status_code}
    one = service.peak_bytes() - before
    assert received <= statuses
    assert one < MOST
    with ThreadPoolExecutor(4) as callers:
        if "content-length" not in headers:
            assert {
                each.status_code for each in callers.map(lambda _: post(service, path, body, **headers), range(4))
            } <= statuses | {429}
    four = service.peak_bytes() - before
    assert four < 4 * MOST
    assert service.embed().status_code == 200
    until(service.idle, "nothing waits")
    notes(f"{', '.join(map(str, received))}; peak {one / MIB:+.0f} MiB, four at once {four / MIB:+.0f} MiB")


QUERIES = (
    "/positions/rope?head_dim=128&length=1000000000000",
    "/positions/rope?head_dim=1000000000&length=10",
    "/positions/sinusoidal?dim=1000000000&length=1000000000",
    "/positions/alibi?heads=1000000000&length=1000000000",
    "/models/llama/rope?length=100000000000",
)


@pytest.mark.parametrize("query", QUERIES)
def test_a_table_larger_than_memory(service: Running, query: str) -> None:
    """It is refused at once; memory stays."""
    before = service.forget_peak()
    answer = service.get(query)
    assert 400 <= answer.status_code < 500
    assert service.peak_bytes() - before < 64 * MIB


def rpc_bomb(service: Running, raw: bytes) -> grpc.StatusCode:
    """A call whose message is `raw` under gzip."""
    with grpc.insecure_channel(service.rpc_address, [("grpc.max_send_message_length", -1)]) as channel:
        call = channel.unary_unary("/inlay.v1.Embedder/Embed", lambda message: message, lambda message: message)
        try:
            call(raw, timeout=60, compression=grpc.Compression.Gzip)
        except grpc.RpcError as error:
            return error.code()  # type: ignore[attr-defined, no-any-return]
    return grpc.StatusCode.OK


def test_a_grpc_message_that_unpacks_to_half_a_gigabyte(service: Running, notes: Notes) -> None:
    """0.5 MB under gzip that would be 512 MiB: refused with less than 256 MiB above what was resident."""
    before = service.forget_peak()
    code = rpc_bomb(service, ZEROS)
    peak = service.peak_bytes() - before
    assert code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNIMPLEMENTED)
    assert peak < MOST
    assert service.embed().status_code == 200
    notes(f"{code.name}; peak {peak / MIB:+.0f} MiB")


def test_a_grpc_message_above_the_limit(service: Running, notes: Notes) -> None:
    """17 MB: RESOURCE_EXHAUSTED; a packed list of 8 million ids below the limit: INVALID_ARGUMENT, within 256 MiB."""
    before = service.forget_peak()
    codes = []
    with grpc.insecure_channel(service.rpc_address, [("grpc.max_send_message_length", -1)]) as channel:
        for request in (
            pb.EmbedRequest(inputs=[pb.Input(text="a" * 17 * MIB)]),
            pb.EmbedRequest(inputs=[pb.Input(ids=pb.TokenIds(input_ids=[5] * 8_000_000))], truncate=False),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                EmbedderStub(channel).Embed(request, timeout=60)
            codes.append(caught.value.code())  # type: ignore[attr-defined]
    assert codes == [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT]
    peak = service.peak_bytes() - before
    assert peak < MOST
    notes(f"peak {peak / MIB:+.0f} MiB")


@pytest.mark.parametrize(
    "parts",
    [
        (b"GET / HTTP/1.1\r\nx: ", b"a" * 65536),
        (b"GET / HTTP/1.1\r\n", b"x-a: b\r\n" * 8000),
        (b"GET /", b"a" * 65536),
        (b"POST /embed HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", b"1;" + b"a" * 65534),
    ],
    ids=["a header", "headers", "a path", "a chunk's extension"],
)
def test_a_head_without_an_end(service: Running, parts: tuple[bytes, bytes], notes: Notes) -> None:
    """64 MiB of one header, of headers, of a path, of chunk extensions: cut off, with less than 32 MiB above what was
    resident."""
    first, more = parts
    before, sent = service.forget_peak(), 0
    with socket.create_connection(service.address, timeout=30) as line:
        line.sendall(first)
        try:
            for _ in range(1024):
                line.sendall(more)
                sent += len(more)
        except OSError:
            pass
    assert sent < 60 * MIB
    peak = service.peak_bytes() - before
    assert peak < 32 * MIB
    assert service.embed().status_code == 200
    notes(f"cut off after {sent / MIB:.1f} MiB; peak {peak / MIB:+.0f} MiB")


def test_answers_larger_than_the_limit(store: Path, log: Path) -> None:
    """Token rows above max_answer_bytes are refused before they are computed."""
    with running(store, log, "--max-answer-bytes", "1000000") as service:
        inputs: Any = [[5] * 40] * 300
        body = json.dumps({"inputs": inputs, "outputs": "token_embeddings"}).encode()
        runs = service.measured("inlay_engine_run_seconds_count")
        assert post(service, "/embed", body).status_code == 422
        assert service.measured("inlay_engine_run_seconds_count") == runs
