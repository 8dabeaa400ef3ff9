"""Files as torch.save writes them, made without torch: opcodes of pickle protocol 2 in a zip of stored entries."""

import json
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

STORAGES: dict[Any, str] = {
    np.dtype(np.float32): "FloatStorage",
    np.dtype(np.float16): "HalfStorage",
    np.dtype(ml_dtypes.bfloat16): "BFloat16Storage",
    np.dtype(np.float64): "DoubleStorage",
    np.dtype(np.int64): "LongStorage",
    np.dtype(np.int32): "IntStorage",
    np.dtype(np.int16): "ShortStorage",
    np.dtype(np.int8): "CharStorage",
    np.dtype(np.uint8): "ByteStorage",
    np.dtype(np.bool_): "BoolStorage",
}


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def text(value: str) -> bytes:
    content = value.encode()
    return b"X" + len(content).to_bytes(4, "little") + content


def number(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    content = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
    return b"\x8a" + bytes([len(content)]) + content


def grouped(*parts: bytes) -> bytes:
    """Return the opcodes of a tuple."""
    return b"(" + b"".join(parts) + b"t"


def dict_of(**items: bytes) -> bytes:
    return b"}(" + b"".join(text(key) + value for key, value in items.items()) + b"u"


ORDERED = name("collections", "OrderedDict")
REBUILD = name("torch._utils", "_rebuild_tensor_v2")


def storage(key: str, count: int, kind: str = "FloatStorage") -> bytes:
    return grouped(text("storage"), name("torch", kind), text(key), text("cpu"), number(count)) + b"Q"


def tensor(
    stored: bytes, shape: tuple[int, ...] = (2, 3), strides: tuple[int, ...] = (3, 1), offset: int = 0, *more: bytes
) -> bytes:
    sizes, steps = (grouped(*map(number, values)) for values in (shape, strides))
    return REBUILD + grouped(stored, number(offset), sizes, steps, b"\x89", ORDERED + b")R", *more) + b"R"


def framed(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


def write_zip(path: Path, pickled: bytes, data: dict[str, bytes] | None = None, **options: Any) -> Path:
    """Write a file of a pickle and of storages by their keys.

    Args:
        options: order (b"": no entry), folder, compression, extra entries by name.
    """
    entries = {"data.pkl": pickled, **{f"data/{key}": content for key, content in (data or {}).items()}}
    if order := options.get("order", b"little"):
        entries["byteorder"] = order
    entries |= {"version": b"3\n", **options.get("extra", {})}
    with zipfile.ZipFile(path, "w", options.get("compression", zipfile.ZIP_STORED)) as archive:
        for entry, content in entries.items():
            archive.writestr(f"{options.get('folder', 'archive')}/{entry}", content)
    return path


def write_torch(path: Path, tensors: dict[str, NDArray[Any]], ordered: bool = True) -> Path:
    """Write a dict of arrays as torch.save writes a state_dict."""
    data: dict[str, bytes] = {}
    return write_zip(path, framed(_dict(tensors, data, ordered)), data)


def pickle_weights(folder: Path, shards: int = 1) -> None:
    """Replace every model.safetensors in and below a folder by pytorch_model.bin; its own by shards and an index."""
    from safetensors.numpy import load_file

    for path in list(folder.rglob("model.safetensors")):
        tensors = load_file(path)
        path.unlink()
        if shards == 1 or path.parent != folder:
            write_torch(path.with_name("pytorch_model.bin"), tensors)
            continue
        weight_map = {key: f"pytorch_model-{number % shards}.bin" for number, key in enumerate(tensors)}
        for shard in set(weight_map.values()):
            held = {key: tensors[key] for key in tensors if weight_map[key] == shard}
            write_torch(path.with_name(shard), held)
        index = path.with_name("pytorch_model.bin.index.json")
        index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _dict(tensors: dict[str, NDArray[Any]], data: dict[str, bytes], ordered: bool) -> bytes:
    items = b"".join(text(key) + _value(value, data) for key, value in tensors.items())
    metadata = dict_of(_metadata=ORDERED + b")R") + b"b" if ordered else b""
    return (ORDERED + b")R" if ordered else b"}") + b"(" + items + b"u" + metadata


def _value(value: NDArray[Any], data: dict[str, bytes]) -> bytes:
    key = str(len(data))
    stored = value if value.flags.c_contiguous else value.T  # of a transposed matrix, the values in their order
    data[key] = np.ascontiguousarray(stored).tobytes()
    strides = tuple(int(np.prod(stored.shape[at + 1 :])) for at in range(stored.ndim))
    strides = strides if stored is value else strides[::-1]
    return tensor(storage(key, value.size, STORAGES[value.dtype]), value.shape, strides)
