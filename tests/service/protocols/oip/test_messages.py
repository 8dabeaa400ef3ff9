"""Tensors from raw bytes and lists, and back to raw bytes, judged by struct and numpy."""

import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import BadRequest
from service.protocols.oip.messages import CONTENTS, OutputTensor, dtype_of, from_raw, from_values
from service.protocols.oip.routes import DATA

STRUCT = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
}


@pytest.mark.parametrize(("datatype", "code"), STRUCT.items())
def test_raw_bytes_are_little_endian_as_struct_packs_them(datatype: str, code: str) -> None:
    values = [0, 1, 1, 0] if datatype == "BOOL" else [0, 1, 2, 100]
    for tensor in (
        from_raw("x", datatype, [2, 2], struct.pack(f"<4{code}", *values)),
        from_values("x", datatype, [2, 2], values),
    ):
        assert (tensor.datatype, tensor.shape) == (datatype, (2, 2))
        assert isinstance(tensor.values, np.ndarray)
        assert (tensor.values.dtype, tensor.values.tolist()) == (np.int64, values)


OUTPUTS = {"FP32": np.float32, "FP16": np.float16, "BF16": ml_dtypes.bfloat16}
OUTPUTS |= {"INT8": np.int8, "UINT8": np.uint8, "INT32": np.int32, "INT64": np.int64}


@pytest.mark.parametrize(("datatype", "kind"), OUTPUTS.items())
def test_outputs_leave_as_numpys_little_endian_bytes(datatype: str, kind: type) -> None:
    rows = np.arange(6).reshape(2, 3).astype(kind)
    output = OutputTensor("x", rows)
    assert (output.datatype, bytes(output.raw())) == (datatype, rows.tobytes())
    assert bytes(OutputTensor("x", rows[:, ::2]).raw()) == rows[:, ::2].tobytes()
    assert len(OutputTensor("x", rows[:0]).raw()) == 0


def test_openapi_lists_the_datatypes_of_outputs() -> None:
    assert DATA.schemas["InferOutput"]["properties"]["datatype"]["enum"] == list(OUTPUTS)


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    values = np.array([1.0, -2.5, 3.140625, 1e30], np.float32)
    upper = (values.view(np.uint32) >> 16).astype("<u2")
    kept = (upper.astype(np.uint32) << 16).view(np.float32)
    assert bytes(OutputTensor("x", kept.astype(ml_dtypes.bfloat16)).raw()) == upper.tobytes()


@given(st.lists(st.text()))
def test_strings_are_read_with_their_lengths(strings: list[str]) -> None:
    encoded = [text.encode() for text in strings]
    raw = b"".join([struct.pack("<I", len(each)) + each for each in encoded])
    assert from_raw("x", "BYTES", [len(strings)], raw).values == strings
    assert from_values("x", "BYTES", [len(strings)], encoded).values == strings


@given(st.binary(max_size=40), st.integers(0, 3))
def test_any_bytes_are_strings_or_refused(raw: bytes, count: int) -> None:
    try:
        strings = from_raw("x", "BYTES", [count], raw).values
    except BadRequest:
        return
    assert isinstance(strings, list)
    assert b"".join([struct.pack("<I", len(each.encode())) + each.encode() for each in strings]) == raw


@pytest.mark.parametrize("offset", range(9))
def test_an_array_is_aligned_wherever_its_bytes_lie(offset: int) -> None:
    raw = memoryview(b"\0" * offset + np.arange(5).tobytes())[offset:]
    array = from_raw("x", "INT64", [5], raw).values
    assert isinstance(array, np.ndarray)
    assert array.flags.aligned
    assert array.tolist() == [0, 1, 2, 3, 4]


REFUSED: list[tuple[str, list[Any], bytes, str]] = [
    ("INT64", [2], b"\0" * 15, "has 15 bytes; INT64 [2] takes 2 x 8 = 16"),
    ("INT64", [2], b"\0" * 24, "has 24 bytes"),
    ("UINT64", [1], b"\xff" * 8, "holds 18446744073709551615; allowed: below 2**63"),
    ("BYTES", [1], b"\5\0\0\0abcd", "ends inside element 0; each element is 4 bytes of length"),
    ("BYTES", [1], b"\5\0", "ends inside element 0"),
    ("BYTES", [2], b"\1\0\0\0a", "has 1 elements; shape [2] takes 2"),
    ("BYTES", [1 << 17], b"\0" * (1 << 19), "more than 65536 elements"),
    ("INT63", [1], b"", "has datatype 'INT63'; allowed: BOOL"),
    ("FP16", [1], b"\0\0", "has datatype 'FP16'; allowed: BOOL"),
    ("INT64", [-1], b"", "has shape [-1]"),
    ("INT64", [True], b"", "has shape [True]"),
    ("INT64", ["1"], b"", "has shape ['1']"),
    ("INT64", [1] * 9, b"", "has 9 dimensions"),
]


@pytest.mark.parametrize(("datatype", "shape", "raw", "said"), REFUSED)
def test_bytes_that_are_not_the_tensor_are_refused_by_name(
    datatype: str, shape: list[Any], raw: bytes, said: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        from_raw("ids", datatype, shape, raw)
    assert "inputs.ids " in caught.value.message
    assert said in caught.value.message


@pytest.mark.parametrize("datatype", [name for name in CONTENTS if name not in ("BOOL", "BYTES")])
def test_numbers_outside_their_datatype_are_refused(datatype: str) -> None:
    ends = np.iinfo(dtype_of(datatype))
    for value in (int(ends.min) - 1, int(ends.max) + 1):
        with pytest.raises(BadRequest, match=f"a number outside {datatype}; it goes from {ends.min} to {ends.max}"):
            from_values("ids", datatype, [1], [value])
