"""The raw codec: every datatype there and back, judged by struct and numpy."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from service.errors import BadRequest
from service.protocols.oip.tensors import (
    DATATYPE_OF,
    DTYPES,
    Tensor,
    decode,
    encode,
    from_raw,
    from_values,
    raw_of,
    raw_size,
    width,
)

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
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}


@pytest.mark.parametrize(("datatype", "code"), STRUCT.items())
def test_raw_bytes_are_little_endian_as_struct_packs_them(datatype: str, code: str) -> None:
    values = [0, 1, 1, 0] if datatype == "BOOL" else [0, 1, 2, 100]
    packed = struct.pack(f"<4{code}", *values)
    assert bytes(encode(datatype, np.array(values, DTYPES[datatype]))) == packed
    assert np.array_equal(decode(datatype, packed), np.array(values))
    assert width(datatype) == struct.calcsize(f"<{code}")


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    values = np.array([1.0, -2.5, 3.140625, 1e30], np.float32)
    upper = (values.view(np.uint32) >> 16).astype("<u2")
    kept = (upper.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(np.asarray(decode("BF16", upper.tobytes())).astype(np.float32), kept)
    assert bytes(encode("BF16", np.asarray(decode("BF16", upper.tobytes())))) == upper.tobytes()


@given(st.data())
def test_arrays_round_trip(data: Any) -> None:
    datatype = data.draw(st.sampled_from([name for name in DTYPES if name != "BF16"]))
    array = data.draw(arrays.arrays(DTYPES[datatype], arrays.array_shapes(min_dims=1, min_side=0)))
    raw = encode(datatype, array)
    assert len(raw) == raw_size(Tensor("x", datatype, array.shape, array))
    back = decode(datatype, raw)
    assert isinstance(back, np.ndarray)
    assert back.tobytes() == array.tobytes()
    assert DATATYPE_OF[back.dtype.type] == datatype


@given(st.lists(st.binary()))
def test_strings_round_trip(strings: list[bytes]) -> None:
    raw = bytes(encode("BYTES", strings))
    assert raw == b"".join(struct.pack("<I", len(each)) + each for each in strings)
    assert decode("BYTES", raw) == strings
    assert raw_size(Tensor("x", "BYTES", (len(strings),), strings)) == len(raw)


@given(st.binary(max_size=40))
def test_any_bytes_are_strings_or_refused(raw: bytes) -> None:
    try:
        strings = decode("BYTES", raw)
    except BadRequest:
        return
    assert isinstance(strings, list)
    assert bytes(encode("BYTES", strings)) == raw


@pytest.mark.parametrize("offset", range(9))
def test_an_array_is_aligned_wherever_its_bytes_lie(offset: int) -> None:
    raw = memoryview(b"\0" * offset + np.arange(5).tobytes())[offset:]
    array = decode("INT64", raw)
    assert isinstance(array, np.ndarray)
    assert array.flags.aligned
    assert array.tolist() == [0, 1, 2, 3, 4]


REFUSED: list[tuple[str, list[Any], bytes, str]] = [
    ("INT64", [2], b"\0" * 15, "has 15 bytes; INT64 [2] takes 2 x 8 = 16"),
    ("INT64", [2], b"\0" * 24, "has 24 bytes"),
    ("BOOL", [2], b"\0\2", "holds byte 2; a BOOL is 0 or 1"),
    ("BYTES", [1], b"\5\0\0\0abcd", "has an element 0 of 5 bytes; 4 are left"),
    ("BYTES", [1], b"\5\0", "inside the length of element 0"),
    ("BYTES", [2], b"\1\0\0\0a", "has 1 elements; shape [2] takes 2"),
    ("BYTES", [1 << 17], b"\0" * (1 << 19), "more than 65536 elements"),
    ("INT63", [1], b"", "has datatype 'INT63'; allowed: BOOL"),
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


def test_a_tensor_knows_its_raw_size() -> None:
    tensor = from_values("x", "FP16", [2, 2], np.ones((2, 2), np.float16))
    assert (raw_size(tensor), bytes(raw_of(tensor))) == (8, b"\0\x3c" * 4)
    assert raw_size(Tensor("x", "BYTES", (2,), [b"a", b""])) == 9
