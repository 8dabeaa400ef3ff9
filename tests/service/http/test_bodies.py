"""Compressed request bodies: every coding on every route, broken and unknown ones told apart, bombs bounded."""

import gzip
import resource
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from service.errors import BodyTooLarge, Malformed, UnsupportedCoding
from service.http.compression import INLINE_BYTES, decoded
from service.http.content_coding import CODINGS, MAX_MEMBERS, coding_of
from tests.served import Served

JSON = {"content-type": "application/json"}
ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstd.compress,
}
MIB = 2**20


def post(served: Served, body: bytes, encoding: str, path: str = "/embed") -> httpx.Response:
    return served.http.post(path, content=body, headers=JSON | {"content-encoding": encoding})


# path, body
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/embed", {"inputs": "hello world"}),
    ("/", {"inputs": "hello world"}),
    ("/v1/embeddings", {"input": "hello world", "model": "bert"}),
    ("/positions/rope", {"head_dim": 8, "length": 3}),
    ("/models/llama/similar", {"token": 5}),
]


@pytest.mark.parametrize("encoding", ENCODERS)
@pytest.mark.parametrize(("path", "body"), ROUTES, ids=[path for path, _ in ROUTES])
def test_every_route_reads_every_coding(served: Served, path: str, body: dict[str, Any], encoding: str) -> None:
    plain = served.http.post(path, json=body)
    coded = post(served, ENCODERS[encoding](orjson.dumps(body)), encoding, path)
    document, expected = coded.json(), plain.json()
    if path.startswith("/v1"):  # the rest holds an id and a time
        document, expected = document["data"], expected["data"]
    assert (coded.status_code, document) == (200, expected)


def test_identity_is_not_a_coding(served: Served) -> None:
    assert post(served, b'{"inputs": "a"}', "identity").status_code == 200
    assert post(served, gzip.compress(b'{"inputs": "a"}'), "GZip , identity").status_code == 200


@pytest.mark.parametrize("path", [path for path, _ in ROUTES])
def test_rejects_unknown_coding_and_lists_the_known(served: Served, path: str) -> None:
    answer = post(served, b"{}", "br", path)
    assert answer.status_code == 415
    assert answer.headers["accept-encoding"] == "zstd, gzip, deflate"
    assert "zstd, gzip, deflate" in answer.text


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("harm", ["cut", "noise", "plain"])
def test_rejects_broken_stream(served: Served, coding: str, harm: str) -> None:
    whole = ENCODERS[coding](b'{"inputs": "hello world"}' * 3)
    body = {"cut": whole[:-1], "noise": whole[:6] + b"\xff" * 8 + whole[14:], "plain": b'{"inputs": "a"}'}[harm]
    answer = post(served, body, coding)
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed")
    assert f"not {coding}" in answer.json()["detail"]


@pytest.mark.parametrize("coding", CODINGS)
def test_rejects_body_over_limit_once_decoded(served: Served, coding: str) -> None:
    body = ENCODERS[coding](b'{"inputs": "' + b"a" * 200_000 + b'"}')
    assert len(body) < 1000
    answer = post(served, body, coding)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


def test_decodes_large_body(served: Served) -> None:
    inputs = [[5, 6, 7, 8] * 4 for _ in range(64)]
    body = orjson.dumps({"inputs": inputs, "outputs": "token_embeddings"}, option=orjson.OPT_INDENT_2)
    padded = body + b" " * (90_000 - len(body))
    assert len(post(served, gzip.compress(padded), "gzip").json()["outputs"]["token_embeddings"]) == 64


@pytest.mark.parametrize("coding", CODINGS)
async def test_bomb_takes_no_more_memory_than_the_limit(coding: str) -> None:
    """256 MiB of zeros; peaks of Python's and of the process's memory."""
    encoder = CODINGS[coding].encoder(False, None)
    bomb = b"".join([*(encoder.compress(bytes(MIB)) for _ in range(256)), encoder.flush()])
    most = 4 * MIB
    tracemalloc.start()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with pytest.raises(BodyTooLarge):
            await decoded(bomb, coding, most)
        assert tracemalloc.get_traced_memory()[1] < 4 * most
    finally:
        tracemalloc.stop()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident) * 1024 < 32 * MIB


async def test_rejects_zstd_window_over_8_mib() -> None:
    options = {zstd.CompressionParameter.window_log: 27, zstd.CompressionParameter.content_size_flag: 0}
    stream = zstd.ZstdCompressor(options=options)
    body = stream.compress(bytes(1000)) + stream.flush()
    with pytest.raises(Malformed, match="memory"):
        await decoded(body, "zstd", MIB)


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_members_and_frames_are_one_body(coding: str) -> None:
    assert await decoded(ENCODERS[coding](b"ab") + ENCODERS[coding](b"cd"), coding, 4) == b"abcd"
    with pytest.raises(BodyTooLarge):
        await decoded(ENCODERS[coding](b"ab") + ENCODERS[coding](b"cd"), coding, 3)


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_rejects_endless_members(coding: str) -> None:
    with pytest.raises(Malformed, match="more after its end"):
        await decoded(ENCODERS[coding](b"") * (MAX_MEMBERS + 1), coding, 100)


async def test_rejects_second_deflate_stream() -> None:
    with pytest.raises(Malformed, match="more after its end"):
        await decoded(zlib.compress(b"ab") * 2, "deflate", 100)


def test_rejects_codings_around_codings() -> None:
    with pytest.raises(UnsupportedCoding, match="'gzip, gzip'"):
        coding_of(b"gzip, x-gzip")


async def test_empty_body_stays_empty() -> None:
    assert await decoded(b"", "gzip", 10) == b""


@given(st.binary(min_size=1, max_size=100_000), st.sampled_from(sorted(CODINGS)))
async def test_decodes_what_was_encoded(body: bytes, coding: str) -> None:
    packed = ENCODERS[coding](body)
    assert await decoded(packed, coding, len(body)) == body
    with pytest.raises(BodyTooLarge):
        await decoded(packed, coding, len(body) - 1)


@given(st.sampled_from(sorted(CODINGS)), st.binary(max_size=3 * INLINE_BYTES))
async def test_noise_is_rejected_or_decoded(coding: str, noise: bytes) -> None:
    try:
        body = await decoded(noise, coding, MIB)
    except (Malformed, BodyTooLarge):
        return
    assert body == b"" or noise
