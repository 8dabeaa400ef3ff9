"""The safetensors format, compared with the official library, and wrong headers."""

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from models.checkpoints import safetensors
from models.checkpoints.safetensors import TensorSource
from models.errors import BadCheckpoint


def raw(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(shape: Any = (2,), begin: Any = 0, end: Any = 8, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_reads_file_of_official_library(tmp_path: Path) -> None:
    tensors = {
        "a": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b": np.arange(5, dtype=np.float16),
        "c": np.arange(6, dtype=np.float32).astype(ml_dtypes.bfloat16).reshape(2, 3),
        "none": np.zeros((0, 4), np.float32),
        "one": np.array(7, np.int64),
    }
    save_file(tensors, tmp_path / "x")
    loaded = safetensors.tensors_of(tmp_path / "x")
    assert set(loaded) == set(tensors)
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        np.testing.assert_array_equal(loaded[name], tensor)


def test_official_library_reads_written_file(tmp_path: Path) -> None:
    first = np.arange(12, dtype=np.float32).reshape(4, 3)
    second = np.arange(3, dtype=np.float16)
    sources = [
        TensorSource("first", "F32", (4, 3), [first[:1], first[1:]]),
        TensorSource("second", "F16", (3,), [second]),
    ]
    placed = safetensors.write(tmp_path / "x", sources)
    loaded = load_file(tmp_path / "x")
    np.testing.assert_array_equal(loaded["first"], first)
    np.testing.assert_array_equal(loaded["second"], second)
    with safe_open(tmp_path / "x", "np") as file:
        assert file.metadata() is None
    assert placed["first"].offset % 64 == 0
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644


def test_tensor_is_a_view_of_the_file(tmp_path: Path) -> None:
    save_file({"a": np.zeros((1000, 1000), np.float32)}, tmp_path / "x")
    view = safetensors.tensors_of(tmp_path / "x")["a"]
    assert not view.flags.owndata
    assert not view.flags.writeable


def test_rejects_source_with_too_few_bytes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="first is 8 bytes but its chunks gave 4"):
        safetensors.write(tmp_path / "x", [TensorSource("first", "F32", (2,), [np.zeros(1, np.float32)])])


LIES: dict[str, tuple[Any, bytes, str]] = {
    "header longer than the file": (b"", b"", "header"),
    "not JSON": (b"{nope", b"", "not JSON"),
    "not UTF-8": (b'{"\xff": 1}', b"", "not JSON"),
    "nested beyond reason": (b"[" * 100_000, b"", "not JSON"),
    "a list": ([1], b"", "not an object"),
    "a key twice": (b'{"a": {"dtype":"F32","shape":[2],"data_offsets":[0,8]}, "a": {}}', bytes(8), "twice"),
    "an entry that is no object": ({"a": 3}, b"", "dtype, shape, data_offsets"),
    "no dtype": ({"a": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8), "dtype, shape, data_offsets"),
    "three offsets": ({"a": entry() | {"data_offsets": [0, 4, 8]}}, bytes(8), "dtype, shape, data_offsets"),
    "a dtype that is a number": ({"a": entry(dtype=3)}, bytes(8), "dtype"),
    "a negative dimension": ({"a": entry([-2])}, bytes(8), "shape"),
    "a fractional dimension": ({"a": entry([2.0])}, bytes(8), "shape"),
    "a boolean dimension": ({"a": entry([True, 2])}, bytes(8), "shape"),
    "a shape that is a number": ({"a": entry(2)}, bytes(8), "shape"),
    "a shape whose product is beyond 2^63": ({"a": entry([1 << 40, 1 << 40])}, bytes(8), "data_offsets"),
    "an offset of 10^30": ({"a": entry(begin=0, end=10**30)}, bytes(8), "data_offsets"),
    "a negative offset": ({"a": entry(begin=-8, end=0)}, bytes(8), "data_offsets"),
    "an end before its begin": ({"a": entry(begin=8, end=0)}, bytes(8), "data_offsets"),
    "more shape than bytes": ({"a": entry([3])}, bytes(8), "data_offsets"),
    "beyond the file": ({"a": entry([4], 0, 16)}, bytes(8), "truncated"),
    "far beyond the file": ({"a": entry([1 << 50], 0, 4 << 50)}, bytes(8), "truncated"),
    "two tensors on one place": ({"a": entry(), "b": entry()}, bytes(8), "overlaps"),
    "half on its neighbour": ({"a": entry(), "b": entry(begin=4, end=12)}, bytes(12), "overlaps"),
    "a gap": ({"a": entry(), "b": entry(begin=12, end=20)}, bytes(20), "gap"),
    "bytes left over": ({"a": entry()}, bytes(9), "truncated or damaged"),
}


@pytest.mark.parametrize("name", LIES)
def test_rejects_wrong_header_in_one_line(name: str, tmp_path: Path) -> None:
    header, data, message = LIES[name]
    path = raw(tmp_path / "model.safetensors", header, data)
    if not header:
        path.write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    with pytest.raises(BadCheckpoint, match=message) as caught:
        safetensors.read_header(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("size", [0, 1, 7])
def test_rejects_file_shorter_than_length_field(size: int, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(size))
    with pytest.raises(BadCheckpoint, match="not a whole safetensors file"):
        safetensors.read_header(tmp_path / "x")


def test_rejects_header_over_limit_before_reading(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:  # sparse: the bytes are never written
        file.write(struct.pack("<Q", 100_000_001))
        file.truncate(200_000_000)
    with pytest.raises(BadCheckpoint, match="at most 100000000"):
        safetensors.read_header(tmp_path / "x")
