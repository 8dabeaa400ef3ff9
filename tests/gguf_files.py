"""GGUF files for tests: whole ones by the gguf package, and lying ones byte by byte."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

STRING, ARRAY, UINT32 = 8, 9, 4


def write_gguf(
    path: Path, architecture: str, metadata: Mapping[str, Any], tensors: Mapping[str, Any], alignment: int = 32
) -> Path:
    """A file of the gguf package.

    metadata  keys after the architecture's name, or whole where they have a general or tokenizer prefix
    tensors   arrays, or (type name, array): quantised by the package, or raw bytes of blocks as uint8
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    for key, value in metadata.items():
        whole = key if key.startswith(("general.", "tokenizer.", "split.")) else f"{architecture}.{key}"
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(whole, value)
    for name, tensor in tensors.items():
        kind, array = tensor if isinstance(tensor, tuple) else (None, tensor)
        if kind is None:
            writer.add_tensor(name, np.ascontiguousarray(array))
            continue
        row = gguf.GGMLQuantizationType[kind]
        blocks = array if array.dtype == np.uint8 else gguf.quantize(array.astype(np.float32), row)
        writer.add_tensor(name, blocks, raw_dtype=row)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_blocks(kind: str, rows: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """Rows of random blocks whose scales are sane halves, [rows, bytes a row]."""
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (rows * width // values, size), dtype=np.uint8)
    for at in HALVES[kind]:
        scales = random.normal(0, 0.1, (len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8)
    return blocks.reshape(rows, -1)


HALVES = {  # where ggml-common.h puts the float16 fields of a block
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}


def text(value: str | bytes) -> bytes:
    """A GGUF string."""
    content = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(content)) + content


def entry(key: str | bytes, kind: int, value: bytes) -> bytes:
    """A metadata entry."""
    return text(key) + struct.pack("<I", kind) + value


def info(name: str | bytes, shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    """A tensor info; `shape` as it is stored, innermost first."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def raw(
    entries: list[bytes],
    infos: list[bytes],
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A whole file; `counts` are what the header claims instead of the truth."""
    tensors, pairs = counts or (len(infos), len(entries))
    head = magic + struct.pack("<IQQ", version, tensors, pairs) + b"".join(entries) + b"".join(infos)
    return head + bytes(-len(head) % 32) + data
