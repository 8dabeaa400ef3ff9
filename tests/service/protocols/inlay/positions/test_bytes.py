"""Bytes of tables: formats, dtypes, ETags, and the cache behind them."""

import asyncio
import base64
import io
from pathlib import Path
from typing import Any

import grpc
import httpx
import ml_dtypes
import numpy as np
import pytest
from google.protobuf.struct_pb2 import Struct, Value
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load

from proto import embed_pb2 as pb
from proto.embed_pb2_grpc import EmbedderStub
from service.http import formats
from service.http.response import Response
from service.protocols.inlay.positions import responses
from tests.served import Served, serving_here

Array = NDArray[Any]
ROPE = "/positions/rope"
SMALL = {"head_dim": 16, "length": 40}
LARGE = {"head_dim": 128, "length": 3000, "start": 7}  # 384000 values: blocks of the grid begin and end within
NUMPY: dict[str, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
FORMATS = {
    "json": "application/json",
    "raw": "application/octet-stream",
    "npy": "application/x-npy",
    "safetensors": "application/vnd.safetensors",
}
BINARY = ("raw", "npy", "safetensors")


def ask(served: Served, path: str = ROPE, headers: dict[str, str] | None = None, **query: Any) -> httpx.Response:
    return served.http.get(path, params=query, headers=headers).raise_for_status()


def array(answer: httpx.Response) -> Array:
    shape = tuple(map(int, answer.headers["inlay-shape"].split(",")))
    return np.frombuffer(answer.content, NUMPY[answer.headers["inlay-dtype"]]).reshape(shape)


def angles(head_dim: int, length: int, start: int = 0) -> Array:
    frequencies = 10000.0 ** (-np.arange(0, head_dim, 2) / head_dim)
    return np.arange(start, start + length)[:, None] * frequencies


@pytest.mark.parametrize("query", [SMALL, LARGE], ids=["small", "large"])
def test_every_format_carries_the_same_table(served: Served, query: dict[str, Any]) -> None:
    raw = array(ask(served, format="raw", **query))
    turned = angles(**query)
    np.testing.assert_allclose(raw, np.stack([np.cos(turned), np.sin(turned)]), rtol=0, atol=6.1e-8)
    np.testing.assert_array_equal(np.load(io.BytesIO(ask(served, format="npy", **query).content)), raw)
    tensors = load(ask(served, format="safetensors", **query).content)
    np.testing.assert_array_equal(np.stack([tensors["cos"], tensors["sin"]]), raw)
    document = ask(served, **query).json()
    np.testing.assert_array_equal(np.array([document["cos"], document["sin"]], np.float32), raw)
    coded = ask(served, encoding_format="base64", **query).json()
    assert b"".join(base64.b64decode(coded[name]["data"]) for name in ("cos", "sin")) == raw.tobytes()
    assert coded["cos"]["shape"] == list(raw.shape[1:])


def test_posts_long_lists_of_positions(served: Served) -> None:
    places = list(range(0, 30_000, 2))[::-1]
    answer = served.http.post(ROPE, json={"head_dim": 4, "positions": places, "format": "raw", "output": "cos"})
    right = np.cos(np.outer(places, [1, 0.01]))
    np.testing.assert_allclose(array(answer.raise_for_status()), right, rtol=0, atol=6.1e-8)


@pytest.mark.parametrize("form", FORMATS)
def test_accept_and_format_parameter_are_equivalent(served: Served, form: str) -> None:
    named = ask(served, format=form, **SMALL)
    accepted = ask(served, headers={"accept": FORMATS[form]}, **SMALL)
    assert named.headers["content-type"] == accepted.headers["content-type"] == FORMATS[form]
    assert (named.content, named.headers["etag"]) == (accepted.content, accepted.headers["etag"])
    assert named.headers["vary"] == "Accept, Accept-Encoding"


@pytest.mark.parametrize("dtype", NUMPY)
def test_narrow_dtypes_are_rounded_once(served: Served, dtype: str) -> None:
    wide = array(ask(served, format="raw", dtype="float64", **LARGE))
    narrow = array(ask(served, format="raw", dtype=dtype, **LARGE))
    bits = ml_dtypes.finfo(NUMPY[dtype]).nmant
    step = 2.0 ** (np.frexp(np.maximum(np.abs(wide), 2.0**-14))[1] - 1 - bits)  # float16 has no finer below 2^-14
    assert (np.abs(narrow.astype(np.float64) - wide) <= step / 2).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_json_numbers_read_back_to_the_same_bits(served: Served, dtype: str) -> None:
    document = ask(served, dtype=dtype, **SMALL).json()
    values = np.array([document["cos"], document["sin"]], np.float32).astype(NUMPY[dtype])
    assert values.tobytes() == ask(served, format="raw", dtype=dtype, **SMALL).content


def test_every_format_carries_the_facts(served: Served, tmp_path: Any) -> None:
    query = {"head_dim": 8, "length": 2, "rope_type": "linear", "factor": 4}
    answer = ask(served, **query)
    keys = list(answer.json())
    assert keys[:3] == ["scheme", "arithmetic", "dtype"]
    assert keys[-2:] == ["cos", "sin"]
    document = answer.json()
    assert document["inverse_frequency"] == [0.25, 0.025, 0.0025, 0.00025]
    assert (document["arithmetic"], document["attention_factor"], document["parameters"]) == (
        "exact",
        1.0,
        {"factor": 4},
    )
    (tmp_path / "rope").write_bytes(ask(served, format="safetensors", **query).content)
    with safe_open(tmp_path / "rope", "numpy") as file:
        metadata = file.metadata()
    assert (metadata["scheme"], metadata["arithmetic"], metadata["formula"]) == ("rope", "exact", "f / s")
    assert metadata["inverse_frequency"] == "[0.25,0.025,0.0025,0.00025]"
    raw = ask(served, format="raw", **query)
    assert raw.headers["inlay-arithmetic"] == "exact"
    assert httpx.Response(200, text=raw.headers["inlay-facts"]).json()["formula"] == "f / s"


def test_outputs_of_different_shapes_must_be_chosen(served: Served) -> None:
    query = {"heads": 4, "query_length": 3}
    for form in ("raw", "npy"):
        refused = served.http.get("/positions/alibi", params=query | {"format": form})
        assert (refused.status_code, refused.json()["code"]) == (406, "not_acceptable")
        assert "send output=slopes or output=bias" in refused.json()["detail"]
    slopes = array(ask(served, "/positions/alibi", format="raw", output="slopes", **query))
    np.testing.assert_array_equal(slopes, [2**-2, 2**-4, 2**-6, 2**-8])
    assert set(load(ask(served, "/positions/alibi", format="safetensors", **query).content)) == {"slopes", "bias"}
    unknown = served.http.get("/positions/alibi", params=query | {"output": "slope"})
    assert "this table has slopes, bias" in unknown.json()["detail"]


def test_integers_and_booleans_keep_their_kind(served: Served) -> None:
    bucket = ask(served, "/positions/t5", query_length=2, format="raw", dtype="float16")
    assert (bucket.headers["inlay-dtype"], bucket.headers["inlay-shape"]) == ("int64", "2,2")
    assert np.frombuffer(bucket.content, np.int64).tolist() == [0, 17, 1, 0]
    mask = np.load(io.BytesIO(ask(served, "/positions/mask", query_length=2, form="boolean", format="npy").content))
    assert mask.tolist() == [[[[True, False], [True, True]]]]


def test_additive_mask_holds_the_lowest_number_of_its_dtype(served: Served) -> None:
    for dtype in NUMPY:
        mask = array(ask(served, "/positions/mask", query_length=2, dtype=dtype, format="raw"))
        assert mask[0, 0, 0, 1] == ml_dtypes.finfo(NUMPY[dtype]).min


def test_rejects_npy_of_bfloat16(served: Served) -> None:
    refused = served.http.get(ROPE, params=SMALL | {"format": "npy", "dtype": "bfloat16"})
    assert (refused.status_code, refused.json()["code"]) == (406, "not_acceptable")


# ---- ETags


def test_equal_tables_have_one_etag(served: Served) -> None:
    ways = [
        {"head_dim": 16, "length": 40},
        {"head_dim": 16, "positions": "0-39"},
        {"head_dim": 16, "positions": ",".join(map(str, range(40)))},
        {"head_dim": 16, "length": 40, "start": 0, "dtype": "float32", "arithmetic": "exact"},
        {"head_dim": 16, "length": 40, "theta": 10000, "rope_type": "default"},
    ]
    answers = [ask(served, format="raw", **way) for way in ways]
    assert len({answer.headers["etag"] for answer in answers}) == 1
    assert len({answer.content for answer in answers}) == 1


def test_different_tables_have_different_etags(served: Served) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"length": 41},
        {"start": 1},
        {"dtype": "float16"},
        {"format": "npy"},
        {"format": "json"},
        {"format": "json", "encoding_format": "base64"},
        {"output": "sin"},
        {"arithmetic": "parity"},
        {"theta": 20000},
        {"table": "duplicated"},
        {"positions": "0-38,40"},
    ]
    tags = []
    for change in changes:
        query = {"format": "raw"} | SMALL | change
        if "positions" in change:
            del query["length"]
        tags.append(ask(served, **query).headers["etag"])
    assert len(set(tags)) == len(changes)


@pytest.mark.parametrize("form", FORMATS)
def test_answers_304_to_a_client_that_holds_the_table(served: Served, form: str) -> None:
    tag = ask(served, format=form, **SMALL).headers["etag"].removeprefix("W/")  # of a compressed one
    for held, etag in ((tag, tag), (f'W/{tag}, "other"', f"W/{tag}"), ("*", tag)):
        again = served.http.get(ROPE, params=SMALL | {"format": form}, headers={"if-none-match": held})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert ask(served, format=form, headers={"if-none-match": '"other"'}, **SMALL).status_code == 200


def test_caches_forever_except_tables_of_a_model(served: Served) -> None:
    assert ask(served, **SMALL).headers["cache-control"] == "public, max-age=31536000, immutable"
    assert ask(served, "/models/llama/rope", length=3).headers["cache-control"] == "no-cache"
    posted = served.http.post(ROPE, json=SMALL).raise_for_status()
    assert "cache-control" not in posted.headers


@pytest.mark.parametrize("form", BINARY)
def test_head_sends_the_size_without_the_table(served: Served, form: str) -> None:
    head = served.http.head(ROPE, params=LARGE | {"format": form})
    whole = ask(served, format=form, **LARGE)
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) == len(whole.content)
    assert head.headers["etag"] == whole.headers["etag"]


def test_rejects_tables_over_64_gib(served: Served) -> None:
    answer = served.http.get(ROPE, params={"head_dim": 1026, "length": 2**24, "format": "raw"})
    assert (answer.status_code, answer.json()["code"]) == (422, "too_large")
    assert f"a response holds {64 * 2**30}" in answer.json()["detail"]


async def test_max_table_bytes_holds_over_http_and_grpc(tiny_store: Path) -> None:
    """Over HTTP in every format, and over gRPC."""
    limit = 2 * 40 * 8 * 4
    async with (
        serving_here(tiny_store, default_model="bert", max_table_bytes=limit) as here,
        httpx.AsyncClient(base_url="http://{}:{}".format(*here.address), trust_env=False, timeout=60) as client,
        grpc.aio.insecure_channel(here.rpc_address) as channel,
    ):
        for form in FORMATS:
            query: dict[str, Any] = {"head_dim": 16, "length": 40, "format": form}
            assert (await client.get(ROPE, params=query)).status_code == 200
            answer = await client.get(ROPE, params=query | {"length": 41})
            assert (answer.status_code, answer.json()["code"]) == (422, "too_large")
            assert f"a response holds {limit}" in answer.json()["detail"]
        stub: Any = EmbedderStub(channel)
        parameters = Struct(fields={"head_dim": Value(number_value=16), "length": Value(number_value=41)})
        with pytest.raises(grpc.aio.AioRpcError, match=f"a response holds {limit}") as refused:
            await stub.Positions(pb.PositionsRequest(scheme="rope", parameters=parameters)).read()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# ---- callers that leave


async def test_stops_computing_when_the_reader_leaves(tiny_store: Path) -> None:
    async with (
        serving_here(tiny_store, default_model="bert") as here,
        httpx.AsyncClient(base_url="http://{}:{}".format(*here.address), trust_env=False, timeout=60) as client,
    ):
        query = {"head_dim": 1024, "length": 2**24, "format": "raw"}  # 64 GiB: a minute at the least
        async with client.stream("GET", ROPE, params=query) as answer:
            assert int(answer.headers["content-length"]) == 64 * 2**30
            async for part in answer.aiter_raw():
                assert part
                break
        ended = 'inlay_requests_total{method="/positions/rope",protocol="http",status="499"} 1.0'
        async with asyncio.timeout(30):
            while ended not in (await client.get("/metrics")).text:
                pass


async def test_paused_reader_does_not_delay_others(tiny_store: Path) -> None:
    async with (
        serving_here(tiny_store, default_model="bert") as here,
        httpx.AsyncClient(base_url="http://{}:{}".format(*here.address), trust_env=False, timeout=60) as client,
        client.stream("GET", ROPE, params={"head_dim": 128, "length": 2**22, "format": "raw"}) as paused,
    ):
        assert paused.status_code == 200
        assert (await client.get(ROPE, params=SMALL)).status_code == 200


def test_format_of_vectors_alone_is_no_format_of_tables(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new row of FORMATS serves /embed; a table in it would be other bytes under its name."""
    kind = "application/x-new"
    monkeypatch.setitem(formats.FORMATS, kind, lambda result, base64: Response((b"new",)))
    answer = served.http.get(ROPE, params=SMALL, headers={"accept": kind})
    assert (answer.status_code, answer.json()["code"]) == (406, "not_acceptable")
    assert set(responses.OFFERS) == set(FORMATS.values())
