"""Content codings: gzip, deflate and zstd, of a response part by part, and of a request body within a bound.

Levels were chosen by measuring 512 vectors of 768 random float32: coded size / size, and MB/s on one core (zlib 1.2.13,
zstd 1.5.7).

                      gzip 1       gzip 6      gzip Huffman    zstd 1       zstd 3
    JSON floats    0.439  108    0.388  16    0.450   132    0.366  303   0.402 155
    base64 JSON    0.765   41    0.750  31    0.744   154    0.743 1051   0.743 964
    raw float32    0.931   40    0.929  35    0.928   122    0.927  973   0.927 689

Floats hold almost no repeats, so zlib looks for none in them (Huffman codes alone) and zstd for few; documents get the
usual levels. Own code, because starlette 1.10 has gzip alone and ignores q-values, and starlette-compress 2.0 has no
deflate, keeps ETags strong and compresses on the event loop.
"""

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from service.errors import BodyTooLarge, Malformed, UnsupportedCoding

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CHUNK_BYTES = 65536
MAX_MEMBERS = 1000  # gzip members or zstd frames of one body; each costs a new decoder
WINDOW_LOG = 23  # of a zstd decoder: 8 MiB at most (RFC 9659)


class Coding(NamedTuple):
    """One content coding.

    Args:
        encoder: (floats, size or None) → an object with compress(bytes) and flush(mode).
        sync: the mode of `flush` after which everything put in can be read.
        decoder: → an object with decompress(bytes, max_bytes), eof, unused_data.
        repeats: whether coded bodies may follow one another (RFC 1952, RFC 8878).
    """

    encoder: Callable[[bool, int | None], Any]
    sync: int
    decoder: Callable[[], Any]
    repeats: bool


class Encoder:
    """Codes one response.

    Args:
        coding: one of CODINGS.
        floats: the body is mostly numbers.
        size: bytes of the body; None: not known.
    """

    def __init__(self, coding: str, *, floats: bool, size: int | None = None) -> None:
        row = CODINGS[coding]
        self._stream = row.encoder(floats, size)
        self._sync = row.sync

    def part(self, data: bytes | memoryview) -> bytes:
        """Return the next part, coded so that it can be read without later parts."""
        coded: bytes = self._stream.compress(data) + self._stream.flush(self._sync)
        return coded

    def last(self, parts: Iterable[bytes | memoryview]) -> bytes:
        """Return the last parts of the body coded."""
        return b"".join([*map(self._stream.compress, parts), self._stream.flush()])


def coding_of(encoding: bytes) -> str | None:
    """Return the coding that a Content-Encoding header names; None: the body is not coded.

    Raises:
        UnsupportedCoding: this server does not decode it, or there are several.
    """
    names = [name.strip() for name in encoding.decode("latin-1").lower().split(",")]
    applied = [ALIASES.get(name, name) for name in names if name not in ("", "identity")]
    coding = ", ".join(applied)
    if coding and coding not in CODINGS:
        allowed = f"this server reads one of {', '.join(CODINGS)}, or none"
        raise UnsupportedCoding(f"content-encoding is {coding[:40]!r}", allowed=allowed)
    return coding or None


def decode(body: bytes, coding: str, max_bytes: int) -> bytes:
    """Return a body without its coding, never holding much more than `max_bytes` of it.

    Raises:
        Malformed: the bytes are not what the coding says.
        BodyTooLarge: the decoded body has more than `max_bytes`.
    """
    row, view, parts, left, start, members = CODINGS[coding], memoryview(body), list[bytes](), max_bytes, 0, 0
    decoder = row.decoder()
    try:
        while start < len(view):
            if decoder.eof:
                members += 1
                if not row.repeats or members >= MAX_MEMBERS:
                    raise _broken(coding, f"there is more after its end ({len(view) - start} bytes)")
                decoder = row.decoder()
            chunk = view[start : start + CHUNK_BYTES]
            for part in _decoded_chunk(decoder, chunk, left):
                parts.append(part)
                left -= len(part)
                if left < 0:
                    received = f"the body has more than {max_bytes} bytes without its {coding} coding"
                    raise BodyTooLarge(
                        received, allowed="this server takes no more", remedy="send fewer inputs at a time"
                    )
            start += len(chunk) - len(decoder.unused_data)
    except (zlib.error, zstd.ZstdError) as error:
        raise _broken(coding, str(error)) from None
    if not decoder.eof:
        raise _broken(coding, "it ends too early")
    return b"".join(parts)


def _decoded_chunk(decoder: Any, chunk: memoryview, left: int) -> Iterator[bytes]:
    """Yield what a chunk decodes to, in several parts where a buffer inside was full, until it passes `left` bytes."""
    data: bytes | memoryview = chunk
    while True:
        part = decoder.decompress(data, left + 1)
        yield part
        if decoder.eof or decoder.needs_input or not (part or data):
            return
        data, left = b"", left - len(part)


def _broken(coding: str, text: str) -> Malformed:
    return Malformed(f"the body is not {coding}, as its content-encoding says: {text}")


class _Inflate:
    """A zlib decoder with the interface of a zstd decoder; it keeps input that it could not decode yet."""

    def __init__(self, window: int) -> None:
        self._stream = zlib.decompressobj(window)
        self._kept = b""

    def decompress(self, data: bytes | memoryview, max_bytes: int) -> bytes:
        part = self._stream.decompress(self._kept + bytes(data) if self._kept else data, max_bytes)
        self._kept = self._stream.unconsumed_tail
        return part

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def needs_input(self) -> bool:
        return not self._kept

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data


def _zlib(window: int) -> Callable[[bool, int | None], Any]:
    def encoder(floats: bool, size: int | None) -> Any:
        level, strategy = (1, zlib.Z_HUFFMAN_ONLY) if floats else (4, zlib.Z_DEFAULT_STRATEGY)
        return zlib.compressobj(level, zlib.DEFLATED, window, 8, strategy)

    return encoder


def _zstd(floats: bool, size: int | None) -> Any:
    stream = zstd.ZstdCompressor(1 if floats else 3)
    if size is not None:
        stream.set_pledged_input_size(size)  # decoders of whole bodies read it in the frame header
    return stream


def _unzstd() -> Any:
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: WINDOW_LOG})


GZIP, ZLIB = 31, 15  # zlib's window bits for RFC 1952 and RFC 1950
CODINGS: dict[str, Coding] = {
    "zstd": Coding(_zstd, zstd.ZstdCompressor.FLUSH_BLOCK, _unzstd, True),
    "gzip": Coding(_zlib(GZIP), zlib.Z_SYNC_FLUSH, lambda: _Inflate(GZIP), True),
    "deflate": Coding(_zlib(ZLIB), zlib.Z_SYNC_FLUSH, lambda: _Inflate(ZLIB), False),
}
"""By name, in order of preference; `deflate` is the zlib format (RFC 9110, 8.4.1.2)."""
ALIASES = {"x-gzip": "gzip"}  # RFC 9110, 8.4.1.3
ACCEPTED = (b"accept-encoding", ", ".join(CODINGS).encode())  # header of an UnsupportedCoding error, RFC 9110, 12.5.3
