"""Rows as the file that `torch.save` writes of a tensor, without torch.

A zip of stored entries: a pickle that describes the tensor, its byte order, its values, the version of the layout.

Source: torch 2.13, serialization._save, and _weights_only_unpickler for what weights_only accepts.
"""

import io
import zipfile
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from service.http.formats import buffer

STORAGES = {"float32": b"FloatStorage", "float16": b"HalfStorage", "bfloat16": b"BFloat16Storage"}
ALIGNMENT = 64  # of the values, so that torch.load(mmap=True) can map them
VALUES = "archive/data/0"
LOCAL_HEADER_BYTES = 30  # before the name (APPNOTE 4.3.7)


def torch_file(rows: NDArray[Any]) -> memoryview:
    """Return the file of a tensor.

    Args:
        rows: [n, width] of float32, float16 or bfloat16, C-contiguous.
    """
    dtype = rows.dtype.name
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("archive/data.pkl"), _pickled(STORAGES[dtype], *rows.shape))
        archive.writestr(zipfile.ZipInfo("archive/byteorder"), b"little")
        values = zipfile.ZipInfo(VALUES)
        values.extra = _padding(file.tell())
        archive.writestr(values, buffer(rows))
        archive.writestr(zipfile.ZipInfo("archive/version"), b"3\n")
    return file.getbuffer()


@lru_cache(maxsize=1024)
def _pickled(storage: bytes, rows: int, width: int) -> bytes:
    """Return torch._utils._rebuild_tensor_v2(storage, offset, shape, stride, requires_grad, hooks), as pickle 2.

    The storage is a persistent id: ("storage", its class, its entry in the zip, the device, its elements).
    """
    return b"".join(
        [
            b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(",
            b"(" + _text(b"storage") + b"ctorch\n" + storage + b"\n" + _text(b"0") + _text(b"cpu"),
            _integer(rows * width) + b"tQ",
            _integer(0),
            _integer(rows) + _integer(width) + b"\x86",
            _integer(width) + _integer(1) + b"\x86",
            b"\x89",  # False
            b"ccollections\nOrderedDict\n)R",
            b"tR.",
        ]
    )


def _text(value: bytes) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value


def _integer(value: int) -> bytes:
    return b"J" + value.to_bytes(4, "little") if value < 1 << 31 else b"\x8a\x08" + value.to_bytes(8, "little")


def _padding(start: int) -> bytes:
    """Return an extra field that aligns the values behind a local header at `start`."""
    size = -(start + LOCAL_HEADER_BYTES + len(VALUES) + 4) % ALIGNMENT
    return b"FB" + size.to_bytes(2, "little") + b"Z" * size
