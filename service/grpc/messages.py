"""Decodes requests and bounds their messages' fields: parsed, 16 MiB may become eight million messages.

The bound is checked on the bytes. The parser keeps the GIL from the first byte to the last: a map of a million entries
took 0.6 s, in which no probe was answered, and repeated empty messages leave half a gigabyte (protobuf 7, upb).
"""

import asyncio
from typing import Any

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from service.errors import Malformed, TooLarge

INLINE_BYTES = 65536  # largest message that is parsed on the event loop

MAX_FIELDS, MAX_NUMBERS = 1 << 18, 1 << 22
"""The most fields of one message and of the messages in it, repeated ones each, and the most packed numbers."""
UNCHECKED_BYTES = MAX_FIELDS  # too short for more: the shortest field is the one byte that begins a group
DEEPEST = 100  # messages within one another; the parser reads no deeper ones either
VARINT, FIXED_64, BYTES, GROUP, END_GROUP, FIXED_32 = range(6)
WIDTHS = {FieldDescriptor.TYPE_FLOAT: 4, FieldDescriptor.TYPE_DOUBLE: 8}  # bytes of a number, where all have as many
MORE = 0x80  # a varint goes on


class _Cut(Exception):
    """Raised for bytes that are not a message; the parser refuses them too."""


async def decode(kind: Any, data: bytes) -> Any:
    """Return the message of a request's bytes; large ones are parsed in a thread.

    Args:
        kind: the message's class.

    Raises:
        TooLarge: the message has more fields or numbers than this server reads.
        Malformed: the bytes do not parse.
    """
    return _decode(kind, data) if len(data) <= INLINE_BYTES else await asyncio.to_thread(_decode, kind, data)


def _decode(kind: Any, data: bytes) -> Any:
    check_structure(data, kind.DESCRIPTOR)
    try:
        return kind.FromString(data)
    except DecodeError:
        raise Malformed(
            f"the message's {len(data)} bytes are no {kind.DESCRIPTOR.full_name}",
            remedy="serialize that message and send it whole",
        ) from None


def check_structure(data: bytes, kind: Descriptor) -> None:
    """Raise TooLarge for a message of more fields or numbers than this server reads.

    Args:
        kind: kind of the message.
    """
    if len(data) <= UNCHECKED_BYTES:
        return
    count = _Count()
    try:
        count.add(data, 0, len(data), kind, 0)
    except (_Cut, IndexError):
        return
    if count.fields > MAX_FIELDS or count.numbers > MAX_NUMBERS:
        raise TooLarge(
            f"the message holds more than {MAX_FIELDS} fields or {MAX_NUMBERS} numbers",
            allowed="this server reads no more of one message",
            remedy="send fewer inputs at a time, or bytes in place of lists",
        )


class _Count:
    """Counts fields and packed numbers, and stops above the bounds."""

    def __init__(self) -> None:
        self.fields = self.numbers = 0

    def add(self, data: bytes, at: int, end: int, kind: Descriptor, depth: int) -> None:
        """Count the fields of the message from `at` to `end`; a field that is unknown to its kind counts as one."""
        if depth > DEEPEST:
            raise _Cut
        known: Any = kind.fields_by_number
        while at < end and self.fields <= MAX_FIELDS and self.numbers <= MAX_NUMBERS:
            self.fields += 1
            tag, at = _varint(data, at)
            wire = tag & 7
            if wire == BYTES:
                size, at = _varint(data, at)
                if size > end - at:
                    raise _Cut
                if (field := known.get(tag >> 3)) is not None:
                    self._add_field(data, at, at + size, field, depth)
                at += size
            elif wire == VARINT:
                _, at = _varint(data, at)
            elif wire in (GROUP, END_GROUP):  # their fields are counted as this message's
                continue
            else:
                at += {FIXED_64: 8, FIXED_32: 4}.get(wire, end)

    def _add_field(self, data: bytes, at: int, end: int, field: FieldDescriptor, depth: int) -> None:
        if field.message_type is not None:
            self.add(data, at, end, field.message_type, depth + 1)
        elif field.type in WIDTHS:
            self.numbers += (end - at) // WIDTHS[field.type]
        elif field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            self.numbers += int(np.count_nonzero(np.frombuffer(data, np.uint8, end - at, at) < MORE))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the offset after it."""
    byte = data[at]
    at += 1
    if byte < MORE:
        return byte, at
    number, shift = byte & 127, 7
    while byte >= MORE and shift < 70:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
    return number, at
