"""Rows as the file `torch.save` writes of a tensor, without torch. Reads none.

A zip of stored entries: a pickle that says what the tensor is, its byte order, its values, the version of the layout.
source   torch 2.13: serialization._save and, for what weights_only lets pass, _weights_only_unpickler
"""

import io
import zipfile
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from service.http.formats import NAMES, buffer

STORAGES = {"float32": b"FloatStorage", "float16": b"HalfStorage", "bfloat16": b"BFloat16Storage"}
ALIGNMENT = 64  # of the values, so that torch.load(mmap=True) may lend them
VALUES = "archive/data/0"
LOCAL_HEADER_BYTES = 30  # before the name (APPNOTE 4.3.7)


def torch_file(rows: NDArray[Any]) -> memoryview:
    """The file of a tensor.

    rows     [n, width] of float32, float16 or bfloat16, C-contiguous
    returns  its bytes
    """
    dtype = NAMES[rows.dtype.type]
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
    """torch._utils._rebuild_tensor_v2(storage, offset, shape, stride, requires_grad, hooks), in pickle's protocol 2.

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
    """An extra field that puts the values behind a local header at `start` on a multiple of ALIGNMENT."""
    size = -(start + LOCAL_HEADER_BYTES + len(VALUES) + 4) % ALIGNMENT
    return b"FB" + size.to_bytes(2, "little") + b"Z" * size
