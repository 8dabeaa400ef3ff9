"""Tables over REST and gRPC against transformers' own numbers, in every format, in any number of blocks."""

import io
from typing import Any

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


def expected(length: int, start: int = 0) -> NDArray[np.float64]:
    """cos and sin [2, length, r/2] in float64: theta^(-2i/r), from the checkpoint's own config."""
    config = LLAMA.config
    rotary = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    theta = (config.get("rope_parameters") or config).get("rope_theta", 10000.0)
    angles = np.arange(start, start + length)[:, None] * theta ** (-np.arange(0, rotary, 2) / rotary)
    return np.stack([np.cos(angles), np.sin(angles)])


def test_every_format_carries_the_same_table(served: Served) -> None:
    octets = table(ask(served, BINARY, length=50))
    np.testing.assert_allclose(octets, expected(50), atol=6e-8, rtol=0)
    np.testing.assert_array_equal(np.load(io.BytesIO(ask(served, "application/x-npy", length=50).content)), octets)
    tensors = load(ask(served, "application/vnd.safetensors", length=50).content)
    np.testing.assert_array_equal(np.stack([tensors["cos"], tensors["sin"]]), octets)
    document = ask(served, length=50).json()
    np.testing.assert_array_equal(np.array([document["cos"], document["sin"]], np.float32), octets)
    assert (document["model"], document["start"], document["length"]) == ("llama", 0, 50)
    assert document["rotary_dim"] == 2 * octets.shape[2]


def test_a_table_of_many_blocks_is_the_table(served: Served) -> None:
    np.testing.assert_allclose(table(ask(served, BINARY, length=30_000)), expected(30_000), atol=6e-8, rtol=0)


def test_a_table_may_start_anywhere(served: Served) -> None:
    answer = table(ask(served, BINARY, start=1_000_000, length=3))
    np.testing.assert_allclose(answer, expected(3, 1_000_000), atol=1e-7, rtol=0)


@pytest.mark.parametrize(("dtype", "numpy_dtype"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_a_narrow_table_is_the_wide_one_rounded_once(served: Served, dtype: str, numpy_dtype: Any) -> None:
    wide = table(ask(served, BINARY, length=40))
    narrow = table(ask(served, BINARY, length=40, dtype=dtype), numpy_dtype)
    assert narrow.tobytes() == wide.astype(numpy_dtype).tobytes()


def test_length_left_out_goes_to_the_last_trained_position(served: Served) -> None:
    trained = LLAMA.config["max_position_embeddings"]
    assert table(ask(served, BINARY, start=5)).shape[1] == trained - 5


def test_a_client_that_holds_the_table_is_told_so(served: Served) -> None:
    answer = ask(served, BINARY, length=9)
    tag = answer.headers["etag"]
    for held in (tag, f'W/{tag}, "other"', "*"):
        again = served.http.get(
            "/models/llama/rope", params={"length": 9}, headers={"accept": BINARY, "if-none-match": held}
        )
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)


def test_different_bytes_have_different_tags(served: Served) -> None:
    answers = [
        ask(served, BINARY, length=9),
        ask(served, BINARY, length=8),
        ask(served, BINARY, start=1, length=9),
        ask(served, BINARY, length=9, dtype="float16"),
        ask(served, "application/x-npy", length=9),
        ask(served, length=9),
    ]
    assert len({answer.headers["etag"] for answer in answers}) == len(answers)
    assert all(answer.headers["vary"] == "Accept" for answer in answers)


def test_head_tells_the_size_without_the_table(served: Served) -> None:
    answer = served.http.head("/models/llama/rope", params={"length": 9}, headers={"accept": BINARY})
    assert answer.status_code == 200
    assert int(answer.headers["content-length"]) == len(ask(served, BINARY, length=9).content)


def test_npy_refuses_bfloat16_before_a_byte_is_sent(served: Served) -> None:
    assert ask(served, "application/x-npy", dtype="bfloat16").json()["code"] == "not_acceptable"


@pytest.mark.parametrize("dtype", [pb.FLOAT32, pb.BFLOAT16])
def test_grpc_chunks_join_to_the_same_table(served: Served, dtype: Any) -> None:
    chunks = list(served.stub.Rope(pb.RopeRequest(model="llama", length=200_000, dtype=dtype)))
    assert len(chunks) > 1
    assert max(chunk.ByteSize() for chunk in chunks) < 2**20
    assert [chunk.start for chunk in chunks[:2]] == [0, chunks[0].cos.shape[0]]
    name = pb.DType.Name(dtype).lower()
    rest = ask(served, BINARY, length=200_000, dtype=name).content
    cos, sin = (b"".join(getattr(chunk, name).data for chunk in chunks) for name in ("cos", "sin"))
    assert cos + sin == rest
