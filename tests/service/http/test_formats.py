"""Every format, read back by the library that owns it; and how Accept chooses."""

import base64
import io
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load

from service.embedding.requests import EmbedResult, Output
from service.errors import NotAcceptable
from service.http.formats import FORMATS, JSON, NPY, OCTETS, encoder
from service.http.tensors import SAFETENSORS

NUMPY: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
LENGTHS = (2, 1, 4)
ACCEPTS = [
    (None, JSON),
    (b"", JSON),
    (b"*/*", JSON),
    (b"application/*", JSON),
    (b"application/json, text/plain, */*", JSON),
    (b"application/octet-stream", OCTETS),
    (b"APPLICATION/OCTET-STREAM", OCTETS),
    (b"application/octet-stream, */*", OCTETS),
    (b"*/*;q=0.9, application/x-npy;q=0.5", JSON),
    (b"application/json;q=0.5, application/x-npy;q=0.8", NPY),
    (b"application/json;q=0, */*", OCTETS),
    (b"text/html, application/vnd.safetensors;q=0.1", SAFETENSORS),
    (b"application/x-npy;version=1", NPY),
]
REFUSED = [b"text/html", b"image/*", b"application/json;q=0", b"*/*;q=0", b"nonsense"]


def values(rows: int, dtype: str) -> NDArray[Any]:
    return np.random.default_rng(rows).normal(size=(rows, 6)).astype(NUMPY[dtype])


def per_token(dtype: str = "float32", name: str = "input_embeddings") -> Output:
    return Output(name, values(sum(LENGTHS), dtype), LENGTHS, False)


def pooled(dtype: str = "float32") -> Output:
    return Output("sentence_embedding", values(len(LENGTHS), dtype), (1,) * len(LENGTHS), True)


def result(*outputs: Output, picked: bool = True) -> EmbedResult:
    return EmbedResult("tiny", outputs, 7, picked)


def encoded(media_type: str, answer: EmbedResult, *, in_base64: bool = False) -> tuple[dict[str, str], bytes]:
    response = FORMATS[media_type](answer, in_base64)
    return {name.decode(): value.decode() for name, value in response.headers}, b"".join(response.body)


def parts(output: Output) -> list[NDArray[Any]]:
    return list(output.rows) if output.pooled else np.split(output.rows, np.cumsum(output.lengths)[:-1])


@pytest.mark.parametrize(("accept", "chosen"), ACCEPTS)
def test_accept_chooses_the_format(accept: bytes | None, chosen: str) -> None:
    assert encoder(accept) is FORMATS[chosen]


@pytest.mark.parametrize("accept", REFUSED)
def test_rejected_accept_lists_the_available_formats(accept: bytes) -> None:
    with pytest.raises(NotAcceptable, match=r"application/json.*safetensors"):
        encoder(accept)


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("make", [per_token, pooled])
def test_octets_are_the_rows_with_their_shape_in_headers(make: Any, dtype: str) -> None:
    output = make(dtype)
    headers, body = encoded(OCTETS, result(output))
    shape = tuple(map(int, headers["inlay-shape"].split(",")))
    read = np.frombuffer(body, NUMPY[headers["inlay-dtype"]]).reshape(shape)
    assert read.tobytes() == output.rows.tobytes()
    assert read.shape == output.rows.shape
    assert headers["inlay-lengths"] == ",".join(map(str, output.lengths))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_numpy_reads_npy(dtype: str) -> None:
    output = per_token(dtype)
    _, body = encoded(NPY, result(output))
    np.testing.assert_array_equal(np.load(io.BytesIO(body)), output.rows)


def test_rejects_npy_of_bfloat16() -> None:
    with pytest.raises(NotAcceptable, match="safetensors"):
        encoded(NPY, result(per_token("bfloat16")))


@pytest.mark.parametrize("media_type", [OCTETS, NPY])
def test_rejects_several_outputs_without_names(media_type: str) -> None:
    with pytest.raises(NotAcceptable, match="safetensors"):
        encoded(media_type, result(per_token(), pooled()))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_safetensors_holds_a_tensor_per_input_and_output(dtype: str) -> None:
    outputs = per_token(dtype), pooled(dtype), per_token(dtype, "token_embeddings")
    _, body = encoded(SAFETENSORS, result(*outputs))
    read = load(body)
    expected = {f"{index}/{output.name}": part for output in outputs for index, part in enumerate(parts(output))}
    assert read.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(read[name], tensor)


def test_safetensors_holds_bfloat16_and_the_model(tmp_path: Any) -> None:
    output = per_token("bfloat16")
    _, body = encoded(SAFETENSORS, result(output))
    (tmp_path / "answer.safetensors").write_bytes(body)
    with safe_open(tmp_path / "answer.safetensors", "numpy") as file:
        assert file.metadata() == {"model": "tiny"}
        assert file.get_slice("2/input_embeddings").get_dtype() == "BF16"
        assert file.get_tensor("2/input_embeddings").tobytes() == parts(output)[2].tobytes()


def test_json_without_outputs_is_a_bare_list_of_vectors() -> None:
    _, body = encoded(JSON, result(pooled(), picked=False))
    np.testing.assert_array_equal(np.array(json.loads(body), np.float32), pooled().rows)
    _, body = encoded(JSON, result(per_token(), picked=False))
    for got, part in zip(json.loads(body), parts(per_token()), strict=True):
        np.testing.assert_array_equal(np.array(got, np.float32), part)


@pytest.mark.parametrize("dtype", NUMPY)
def test_json_numbers_read_back_to_the_same_bits(dtype: str) -> None:
    outputs = per_token(dtype), pooled(dtype)
    _, body = encoded(JSON, result(*outputs))
    read = json.loads(body)
    assert read["model"] == "tiny"
    assert read["usage"] == {"tokens": 7}
    for output in outputs:
        for got, part in zip(read["outputs"][output.name], parts(output), strict=True):
            assert np.array(got, np.float32).astype(NUMPY[dtype]).tobytes() == part.tobytes()


@pytest.mark.parametrize("dtype", NUMPY)
def test_base64_holds_the_bytes_in_the_requested_dtype(dtype: str) -> None:
    output = per_token(dtype)
    for answer in (result(output), result(output, picked=False)):
        read = json.loads(encoded(JSON, answer, in_base64=True)[1])
        tensors = read["outputs"][output.name] if answer.picked else read
        for tensor, part in zip(tensors, parts(output), strict=True):
            assert tensor["dtype"] == dtype
            assert tensor["shape"] == list(part.shape)
            assert base64.b64decode(tensor["data"]) == part.tobytes()


def test_pooled_vectors_in_base64_are_strings_as_in_openai() -> None:
    read = json.loads(encoded(JSON, result(pooled(), picked=False), in_base64=True)[1])
    assert [base64.b64decode(each) for each in read] == [row.tobytes() for row in pooled().rows]


@pytest.mark.parametrize("media_type", [OCTETS, SAFETENSORS])
def test_tensors_are_not_copied(media_type: str) -> None:
    output = per_token()
    body = FORMATS[media_type](result(output), False).body
    assert np.shares_memory(np.frombuffer(body[-1], np.float32), output.rows)


def test_encodes_a_result_without_rows() -> None:
    empty = Output("input_embeddings", np.zeros((0, 6), np.float32), (0,), False)
    for media_type in FORMATS:
        encoded(media_type, result(empty))
