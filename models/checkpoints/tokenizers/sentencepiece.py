"""Reads SentencePiece's .model files: a protocol buffer, of which the parts that tokenizing needs are read.

Source: sentencepiece_model.proto of SentencePiece 0.2.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.errors import BadCheckpoint

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_UNIGRAM, _BPE = 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
LARGEST = 1 << 27  # bytes; those of Gemma's 256 000 pieces are 4 MB


@dataclass(frozen=True, slots=True)
class SentencePieces:
    """A vocabulary and its rules.

    Attributes:
        pieces: text, score and kind of each, by its id.
        unigram: the sequence with the best sum of scores is taken; False: pairs are merged by their scores (BPE).
        unknown_id: id of what the vocabulary does not hold.
        byte_fallback: characters that the vocabulary does not hold become the pieces of their bytes.
        charsmap: the precompiled rules of the normalizer; empty: none.
        composes: these rules hold those of NFKC, which the library applies to each grapheme by itself, losing marks.
        prefix: a blank is put before the text.
        squeezes: blanks at the ends are left out, and several become one.
    """

    pieces: tuple[tuple[str, float, int], ...]
    unigram: bool = True
    unknown_id: int = 0
    byte_fallback: bool = False
    charsmap: bytes = b""
    composes: bool = False
    prefix: bool = True
    squeezes: bool = True


def read_pieces(path: Path) -> SentencePieces:
    """Return the vocabulary of a file.

    Raises:
        BadCheckpoint: it is no SentencePiece model, or one of words or characters.
    """
    if path.stat().st_size > LARGEST:
        raise BadCheckpoint(f"{path} has {path.stat().st_size} bytes; a SentencePiece model has at most {LARGEST}")
    try:
        fields = list(_fields(path.read_bytes()))
        pieces = tuple(_piece(value) for number, value in fields if number == 1)
        trainer, normalizer = (dict(_fields(dict(fields).get(number, b""))) for number in (2, 3))
        suffix = trainer.get(24, 0)
    except (AttributeError, IndexError, TypeError, ValueError, struct.error) as error:
        raise BadCheckpoint(f"{path} is not a SentencePiece model: {error}; download it again") from error
    kind, unknown_id = trainer.get(3, _UNIGRAM), trainer.get(40, 0)
    if kind not in (_UNIGRAM, _BPE) or suffix:
        raise BadCheckpoint(f"{path} is a SentencePiece model of another kind than unigram and BPE: no rule is known")
    if not isinstance(unknown_id, int) or not 0 <= unknown_id < len(pieces):
        raise BadCheckpoint(f"{path} names {unknown_id!r} of its {len(pieces)} pieces as the unknown one")
    return SentencePieces(
        pieces,
        kind == _UNIGRAM,
        unknown_id,
        bool(trainer.get(35, 0)),
        bytes(normalizer.get(2, b"")),
        b"nfkc" in normalizer.get(1, b""),
        bool(normalizer.get(3, 1)),
        bool(normalizer.get(4, 1)),
    )


def _piece(data: bytes) -> tuple[str, float, int]:
    fields = dict(_fields(data))
    (score,) = struct.unpack("<f", fields.get(2, bytes(4)))
    return fields[1].decode("utf-8"), score, fields.get(3, NORMAL)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each field of a message: a whole number, or bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind not in (_FIXED64, _BYTES, _FIXED32):
            raise ValueError(f"field {number} has the wire type {kind}")
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if size is None:
            size, at = _varint(data, at)
        if size > len(data) - at:
            raise ValueError(f"field {number} claims {size} bytes where {len(data) - at} are left")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        value, at = value | (byte & 0x7F) << shift, at + 1
        if byte < 0x80:
            return value, at
    raise ValueError("a number has more than ten bytes")
