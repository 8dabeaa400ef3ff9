"""Pictures that cost more than their bytes show: large ones of few bytes, many parts, many scans, much noise."""

import io
import zlib
from collections.abc import Callable
from functools import cache
from random import Random

from PIL import Image

SIDE, NOISY_SIDE = 4800, 2000  # pixels; a container of 2 GiB takes 24 million
JPEG_END, SCAN_BEGIN, COMMENT, DENSITY = b"\xff\xd9", b"\xff\xda", b"\xff\xfe\0\x02", b"\xff\xe5\0\x02"


@cache
def _plain(form: str, side: int = SIDE, mode: str = "RGB", **options: bool) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (side, side)).save(file, form, **options)
    return file.getvalue()


@cache
def _noise(form: str) -> bytes:
    file, random = io.BytesIO(), Random(1)
    Image.frombytes("RGB", (NOISY_SIDE, NOISY_SIDE), random.randbytes(3 * NOISY_SIDE**2)).save(file, form)
    return file.getvalue()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)


def _with_chunks(chunk: bytes, size: int) -> bytes:
    """Return a small PNG that holds a chunk many times after its first one."""
    small = _plain("PNG", 8)
    return small[:33] + chunk * (size // len(chunk)) + small[33:]


def _with_segments(segment: bytes, size: int) -> bytes:
    """Return a small JPEG that begins with a segment many times."""
    small = _plain("JPEG", 8)
    return small[:2] + segment * (size // len(segment)) + small[2:]


def _with_scans(size: int) -> bytes:
    """Return a progressive JPEG that refines its pixels again and again."""
    whole = _plain("JPEG", SIDE, "L", progressive=True)
    scan = whole[whole.rindex(SCAN_BEGIN) : -len(JPEG_END)]
    return whole[: -len(JPEG_END)] + scan * max(1, (size - len(whole)) // len(scan)) + JPEG_END


def _with_exif(size: int) -> bytes:
    """Return a PNG whose EXIF lists as many values as it has room for, all of them past its end."""
    tags = min(0xFFFF, 2 + size // 12)
    entries = b"".join([tag.to_bytes(2, "little") + b"\x07\0\xff\0\0\0\x08\0\0\0" for tag in range(1, tags)])
    exif = b"II*\0\x08\0\0\0" + (tags - 1).to_bytes(2, "little") + entries + bytes(4)
    small = _plain("PNG", 8)
    return small[:33] + _chunk(b"eXIf", exif) + small[33:]


PICTURES: dict[str, Callable[[int], bytes]] = {
    "small PNG": lambda size: _plain("PNG", 8),
    "large PNG": lambda size: _plain("PNG"),
    "large JPEG": lambda size: _plain("JPEG"),
    "large WebP": lambda size: _plain("WEBP", lossless=True),
    "noisy JPEG": lambda size: _noise("JPEG"),
    "noisy PNG": lambda size: _noise("PNG"),
    "JPEG of many scans": _with_scans,
    "JPEG of comments": lambda size: _with_segments(COMMENT, size),
    "JPEG of empty segments": lambda size: _with_segments(DENSITY, size),
    "PNG of private chunks": lambda size: _with_chunks(_chunk(b"prVt", b""), size),
    "PNG of texts": lambda size: _with_chunks(_chunk(b"tEXt", b"a\0"), size),
    "PNG of EXIF": _with_exif,
    "cut PNG": lambda size: _noise("PNG")[:size],
}
"""What makes a picture of about so many bytes, where it may have as many."""
