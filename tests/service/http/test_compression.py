"""Compressed responses: negotiation as in RFC 9110, the policy for vectors, tags and ranges, streams, threads."""

import asyncio
import gzip
import shutil
import subprocess
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from service.http import compression
from service.http.compression import compressed
from service.http.content_coding import CODINGS
from service.http.negotiation import choose
from service.http.response import Headers, Response
from service.http.routes import Head, Request
from tests.served import Served, serving
from tests.service.http.toy_server import route

DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
    "zstd": zstd.decompress,
}
BODY = {"inputs": [[5, 6, 7, 8]] * 16, "outputs": "token_embeddings"}
TABLE = "/positions/sinusoidal?dim=64&length=200"


def raw(served: Served, verb: str, path: str, accept: str | None, **more: Any) -> tuple[httpx.Response, bytes]:
    """The answer, and its bytes as they came."""
    headers = {**more.pop("headers", {}), "accept-encoding": accept or "identity"}
    request = served.http.build_request(verb, path, headers=headers, **more)
    if accept is None:
        del request.headers["accept-encoding"]
    response = served.http.send(request, stream=True)
    try:
        return response, b"".join(response.iter_raw())
    finally:
        response.close()


# header, coding of a document, of numbers
HEADERS: list[tuple[str | None, str | None, str | None]] = [
    (None, None, None),
    ("", None, None),
    ("identity", None, None),
    ("gzip", "gzip", "gzip"),
    ("x-gzip", "gzip", "gzip"),
    ("GZIP", "gzip", "gzip"),
    ("deflate", "deflate", "deflate"),
    ("gzip, identity", "gzip", "gzip"),
    ("gzip, deflate", "gzip", None),
    ("gzip,deflate,*;q=0", "gzip", "gzip"),
    ("deflate, gzip;q=1.0, *;q=0.5", "gzip", None),
    ("gzip;q=1, deflate;q=0.5", "gzip", "gzip"),
    ("gzip;q=0.5, deflate", "deflate", "deflate"),
    ("gzip, deflate, br", "gzip", None),
    ("gzip, deflate, br, zstd", "zstd", None),
    ("gzip, deflate, identity;q=0", "gzip", "gzip"),
    ("gzip;q=0.5, identity", None, None),
    ("gzip;q=0", None, None),
    ("br", None, None),
    ("gzip;q=nonsense", None, None),
    ("gzip;q=2", None, None),
    ("*", "zstd", None),
    ("*;q=0.5, zstd;q=0", "gzip", None),
    ("br, *;q=0.1", "zstd", "zstd"),
    ("identity;q=0", None, None),
    ("*;q=0", None, None),
    ("br, identity;q=0", None, None),
    ("gzip;q=0, *;q=0", None, None),
]


@pytest.mark.parametrize(("accept", "document", "numbers"), HEADERS)
def test_header_chooses_a_coding(accept: str | None, document: str | None, numbers: str | None) -> None:
    sent = accept.encode() if accept is not None else None
    assert choose(sent) == document
    assert choose(sent, "asked", numbers=True) == numbers
    assert choose(sent, "always", numbers=True) == document
    assert choose(sent, "never") is None


@given(
    st.dictionaries(
        st.sampled_from([*CODINGS, "br", "identity", "*"]), st.sampled_from([0, 0.001, 0.25, 0.5, 1]), max_size=6
    )
)
def test_chosen_coding_is_the_most_preferred_one(qualities: dict[str, float]) -> None:
    header = ", ".join(f"{name};q={quality}" for name, quality in qualities.items()).encode()
    others = qualities.get("*", 0)
    of = {name: qualities.get(name, others) for name in CODINGS}
    plain = qualities.get("identity", others if "*" in qualities else 0.0001)
    for numbers in (False, True):
        coding = choose(header, "asked", numbers=numbers)
        if coding is not None:
            assert of[coding] == max(of.values()) > 0
            assert of[coding] >= plain
        else:
            assert plain > 0 or max(of.values()) == 0


@given(st.binary(max_size=60))
def test_any_header_is_read(accept: bytes) -> None:
    assert choose(accept) in (None, *CODINGS)


@pytest.mark.parametrize("coding", DECODERS)
@pytest.mark.parametrize("accept", ["application/json", "application/octet-stream", "application/vnd.safetensors"])
def test_vectors_are_compressed_on_explicit_choice(served: Served, coding: str, accept: str) -> None:
    plain = served.http.post("/embed", json=BODY, headers={"accept": accept, "accept-encoding": "identity"})
    answer, body = raw(served, "POST", "/embed", coding, json=BODY, headers={"accept": accept})
    assert answer.headers["content-encoding"] == coding
    assert answer.headers["vary"] == "Accept-Encoding"
    assert int(answer.headers["content-length"]) == len(body) < len(plain.content)
    assert DECODERS[coding](body) == plain.content
    assert "content-encoding" not in plain.headers


def test_default_headers_of_clients_compress_no_vectors(served: Served) -> None:
    for habit in ("gzip, deflate", "gzip, deflate, br, zstd", None):
        answer, body = raw(served, "POST", "/embed", habit, json=BODY)
        assert "content-encoding" not in answer.headers
        assert orjson.loads(body)["outputs"]


@pytest.mark.parametrize("path", ["/openapi.json", "/metrics", "/docs/swagger-ui.css", "/models", TABLE])
@pytest.mark.parametrize("coding", DECODERS)
def test_documents_are_compressed_as_accepted(served: Served, path: str, coding: str) -> None:
    plain = served.http.get(path, headers={"accept-encoding": "identity"})
    answer, body = raw(served, "GET", path, f"{coding}, identity;q=0.5")
    assert answer.headers["content-encoding"] == coding
    assert "Accept-Encoding" in plain.headers["vary"]
    assert "Accept-Encoding" in answer.headers["vary"]
    document = DECODERS[coding](body)
    assert document == plain.content or path == "/metrics"


def test_small_responses_are_not_compressed(served: Served) -> None:
    for path in ("/health/live", "/nothing"):
        answer, _ = raw(served, "GET", path, "gzip")
        assert "content-encoding" not in answer.headers


def test_client_that_accepts_no_coding_gets_plain_bytes(served: Served) -> None:
    """RFC 9110, 12.5.3 lets a server pass over the header; none of these clients is known."""
    answer, body = raw(served, "POST", "/embed", "br, identity;q=0", json=BODY)
    assert (answer.status_code, "content-encoding" in answer.headers) == (200, False)
    assert orjson.loads(body)


def test_compressed_table_has_a_weak_etag(served: Served) -> None:
    plain, _ = raw(served, "GET", TABLE, "identity")
    packed, _ = raw(served, "GET", TABLE, "gzip")
    strong, weak = plain.headers["etag"], packed.headers["etag"]
    assert weak == f"W/{strong}"
    for accept, held in (("gzip", weak), ("identity", strong)):
        again, body = raw(served, "GET", TABLE, accept, headers={"if-none-match": held})
        assert (again.status_code, again.headers["etag"], body) == (304, held, b"")


def test_default_headers_of_clients_compress_no_tensors(served: Served) -> None:
    for habit in ("gzip, deflate", "gzip, deflate, br, zstd"):
        answer, body = raw(served, "GET", f"{TABLE}&format=npy", habit)
        assert int(answer.headers["content-length"]) == len(body)
        assert "content-encoding" not in answer.headers


def test_head_has_the_headers_of_get(served: Served) -> None:
    path = f"{TABLE}&format=npy"
    for accept in ("gzip", "identity"):
        got, _ = raw(served, "GET", path, accept)
        headed, body = raw(served, "HEAD", path, accept)
        assert body == b""
        for name in ("content-encoding", "etag", "vary", "content-type"):
            assert got.headers.get(name) == headed.headers.get(name), name


def test_pictures_are_not_compressed(served: Served) -> None:
    answer, body = raw(served, "GET", "/positions/sinusoidal.png?dim=16&length=20", "gzip")
    assert "content-encoding" not in answer.headers
    assert body.startswith(b"\x89PNG")


@pytest.mark.parametrize("coding", DECODERS)
def test_large_table_is_compressed_while_it_is_made(served: Served, coding: str) -> None:
    path = "/positions/sinusoidal?dim=256&length=8000&encoding_format=base64"
    plain = served.http.get(path, headers={"accept-encoding": "identity"})
    answer, body = raw(served, "GET", path, coding)
    assert "content-length" not in answer.headers
    stream = {"zstd": zstd.ZstdDecompressor, "gzip": lambda: zlib.decompressobj(31), "deflate": zlib.decompressobj}
    assert stream[coding]().decompress(body) == plain.content  # type: ignore[operator]


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed: not shown with it")
@pytest.mark.parametrize("more", [["--compressed"], ["--compressed", "--http1.0"]])
def test_curl_reads_compressed_documents(served: Served, more: list[str]) -> None:
    url = "http://{}:{}/openapi.json".format(*served.address)
    head = ["-s", "-w", "%{size_download}"]
    plain = subprocess.run(["curl", *head, url], capture_output=True, check=True).stdout
    packed = subprocess.run(["curl", *head, *more, url], capture_output=True, check=True).stdout
    (document, _, size), (unpacked, _, fewer) = plain.rpartition(b"}"), packed.rpartition(b"}")
    assert unpacked == document
    assert int(fewer) < int(size)


@pytest.fixture(params=["always", "never"])
def policy(request: pytest.FixtureRequest, tiny_store: Path) -> Iterator[tuple[str, Served]]:
    with serving(tiny_store, default_model="bert", compression=request.param) as service:
        yield request.param, service


def test_setting_overrides_the_header(policy: tuple[str, Served]) -> None:
    name, served = policy
    for verb, path, more in (("POST", "/embed", {"json": BODY}), ("GET", "/openapi.json", {})):
        answer, _ = raw(served, verb, path, "gzip, deflate", **more)
        assert answer.headers.get("content-encoding") == {"always": "gzip", "never": None}[name]


async def nothing(request: Request) -> Response:
    return Response()


async def through(response: Response, accept: bytes = b"gzip", verb: str = "GET") -> Response:
    """Return a response after compression."""
    head = Head(verb, b"/", {})
    head.route, head.codings = route("/", nothing), (choose(accept), choose(accept, numbers=True))
    return await compressed(response, head)


PLAIN = (b"content-type", b"text/plain")


def whole(*parts: bytes, headers: Headers = (), status: int = 200) -> Response:
    return Response(parts, (PLAIN, *headers), status)


def streamed(*parts: bytes, headers: Headers = ()) -> Response:
    async def each() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    return Response((), (PLAIN, *headers), 200, each())


@pytest.mark.parametrize("coding", DECODERS)
async def test_each_part_of_a_stream_can_be_read_at_once(coding: str) -> None:
    parts = [b"a" * 5000, b"b" * 70_000, b"c"]
    response = await through(streamed(*parts), coding.encode())
    assert response.stream is not None
    *sent, last = [each async for each in response.stream]
    decoder: Any = zstd.ZstdDecompressor() if coding == "zstd" else zlib.decompressobj(47)
    assert [decoder.decompress(each) for each in sent] == parts
    decoder.decompress(last)
    assert decoder.eof
    assert (b"content-encoding", coding.encode()) in response.headers


async def test_compressed_stream_loses_its_declared_length() -> None:
    long = (b"content-length", b"5000")
    response = await through(streamed(b"a" * 5000, headers=(long,)))
    assert {name for name, _ in response.headers} == {b"content-type", b"vary", b"content-encoding"}


@pytest.mark.parametrize(
    "response",
    [
        whole(b"x" * 5000, headers=((b"content-encoding", b"gzip"),)),
        whole(status=204),
        whole(status=304),
        whole(b"x" * 1023),
        whole(b"x" * 5000)._replace(headers=((b"content-type", b"image/png"),)),
    ],
    ids=["packed", "204", "304", "small", "picture"],
)
async def test_leaves_uncompressible_responses_unchanged(response: Response) -> None:
    sent = await through(response)
    assert sent.body == response.body
    assert [each for each in sent.headers if each[0] != b"vary"] == list(response.headers)


@given(st.lists(st.binary(max_size=20_000), min_size=1, max_size=4), st.sampled_from(sorted(DECODERS)), st.booleans())
async def test_decodes_to_what_was_compressed(parts: list[bytes], coding: str, stream: bool) -> None:
    response = await through(streamed(*parts) if stream else whole(*parts), coding.encode())
    coded = b"".join(response.body)
    if response.stream is not None:
        coded += b"".join([bytes(each) async for each in response.stream])
    if (b"content-encoding", coding.encode()) in response.headers:
        decoder: Any = zstd.ZstdDecompressor() if coding == "zstd" else zlib.decompressobj(47)
        coded = decoder.decompress(coded)
        assert decoder.eof
    assert coded == b"".join(parts)


async def test_head_is_compressed_in_its_headers_alone() -> None:
    response = await through(whole(b"x" * 5000), verb="HEAD")
    assert (b"content-encoding", b"gzip") in response.headers


async def test_event_loop_goes_on_while_a_large_body_is_coded(monkeypatch: pytest.MonkeyPatch) -> None:
    release, here = threading.Event(), threading.get_ident()
    encoder = compression.Encoder

    class Slow(encoder):  # type: ignore[misc, valid-type]
        def last(self, parts: Any) -> bytes:
            assert threading.get_ident() != here
            assert release.wait(20)
            packed: bytes = super().last(parts)
            return packed

    monkeypatch.setattr(compression, "Encoder", Slow)
    rows = np.random.default_rng(0).standard_normal(50_000).astype(np.float32).tobytes()
    running = asyncio.create_task(through(whole(rows)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not running.done()
    release.set()
    assert gzip.decompress(b"".join((await running).body)) == rows


def test_default_is_no_coding() -> None:
    assert choose(None) is choose(b"") is None
