"""A model's RoPE table over REST and gRPC against transformers' own numbers, in every format, however many blocks."""

import io
from typing import Any

import grpc
import httpx
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load

from proto import embed_pb2 as pb
from tests.golden_cases import case
from tests.served import Served

BINARY = "application/octet-stream"
LLAMA = case("input_llama")


def ask(served: Served, accept: str = "application/json", **query: Any) -> httpx.Response:
    return served.http.get("/models/llama/rope", params=query, headers={"accept": accept})


def table(answer: httpx.Response, dtype: Any = np.float32) -> NDArray[Any]:
    shape = tuple(map(int, answer.headers["inlay-shape"].split(",")))
    return np.frombuffer(answer.content, dtype).reshape(shape)


def frequencies() -> NDArray[np.float64]:
    """theta^(-2i/r), from the checkpoint's own config."""
    config = LLAMA.config
    rotary = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    theta = (config.get("rope_parameters") or config).get("rope_theta", 10000.0)
    return np.asarray(theta ** (-np.arange(0, rotary, 2) / rotary))


def check(rows: NDArray[Any], start: int = 0) -> None:
    """Within the goldens' tolerance for float32 angles: 3e-7 + 5e-7 * position * frequency."""
    positions = np.arange(start, start + rows.shape[1])[:, None]
    angles, allowed = positions * frequencies(), 3e-7 + 5e-7 * positions * frequencies()
    assert (np.abs(rows - np.stack([np.cos(angles), np.sin(angles)])) <= allowed).all()


def test_table_matches_transformers(served: Served) -> None:
    rows = table(ask(served, BINARY, length=11))
    golden = np.stack([LLAMA.arrays[name][0, :, : rows.shape[2]] for name in ("rope_cos", "rope_sin")])
    np.testing.assert_allclose(rows, golden, rtol=0, atol=1e-6)


def test_every_format_carries_the_same_table(served: Served) -> None:
    octets = table(ask(served, BINARY, length=50))
    check(octets)
    np.testing.assert_array_equal(np.load(io.BytesIO(ask(served, "application/x-npy", length=50).content)), octets)
    tensors = load(ask(served, "application/vnd.safetensors", length=50).content)
    np.testing.assert_array_equal(np.stack([tensors["cos"], tensors["sin"]]), octets)
    document = ask(served, length=50).json()
    np.testing.assert_array_equal(np.array([document["cos"], document["sin"]], np.float32), octets)
    assert (document["model"], document["arithmetic"]) == ("llama", "parity")
    assert document["rotary_dim"] == 2 * octets.shape[2]


@pytest.mark.parametrize("start", [0, 1_000_000])
def test_tables_of_many_blocks_start_anywhere(served: Served, start: int) -> None:
    check(table(ask(served, BINARY, start=start, length=30_000)), start)


@pytest.mark.parametrize(("dtype", "numpy_dtype"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_narrow_dtypes_are_rounded_once(served: Served, dtype: str, numpy_dtype: Any) -> None:
    wide = table(ask(served, BINARY, length=40))
    narrow = table(ask(served, BINARY, length=40, dtype=dtype), numpy_dtype)
    assert narrow.tobytes() == wide.astype(numpy_dtype).tobytes()


def test_missing_length_goes_to_the_last_trained_position(served: Served) -> None:
    trained = LLAMA.config["max_position_embeddings"]
    assert table(ask(served, BINARY, start=5)).shape[1] == trained - 5
    refused = ask(served, start=trained)
    assert (refused.status_code, refused.json()["code"]) == (422, "bad_parameters")
    assert f"trained on {trained} positions: send length too" in refused.json()["detail"]


def test_answers_304_and_asks_for_revalidation(served: Served) -> None:
    answer = ask(served, BINARY, length=9)
    assert answer.headers["cache-control"] == "no-cache"
    tag = answer.headers["etag"]
    for held in (tag, f'W/{tag}, "other"', "*"):
        again = served.http.get(
            "/models/llama/rope", params={"length": 9}, headers={"accept": BINARY, "if-none-match": held}
        )
        assert (again.status_code, again.content, again.headers["etag"].removeprefix("W/")) == (304, b"", tag)


@pytest.mark.parametrize(
    ("parameters", "status"),
    [({"start": 2**60}, "INVALID_ARGUMENT"), ({"layer_type": "x"}, "INVALID_ARGUMENT")],
)
def test_grpc_errors_have_a_status(served: Served, parameters: dict[str, Any], status: str) -> None:
    request = pb.PositionsRequest(scheme="rope", model="llama")
    request.parameters.update(parameters)
    with pytest.raises(grpc.RpcError, match=status):
        list(served.stub.Positions(request))
