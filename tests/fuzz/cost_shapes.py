"""Large values: JSON, words and protobuf messages, as long, deep, many or varied as a number of bytes allows."""

from collections.abc import Callable, Iterator
from typing import Any

import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor

Maker = Callable[[int], bytes]
Place = tuple[str | int, ...]
HOLE = "\x00hole"  # where a shape goes in an example
DEEPEST = 3  # message fields within one another that are filled


def _items(item: bytes) -> Maker:
    return lambda size: b"[" + item * (size // len(item)) + b"0]"


def _nested(depth: int) -> Maker:
    return _items(b"[" * depth + b"0" + b"]" * depth + b",")


def _members(size: int) -> bytes:
    """Return an object of many members with names of their own."""
    return b"{" + b",".join([b'"%07x":0' % number for number in range(size // 12)]) + b"}"


JSON_SHAPES: dict[str, Maker] = {
    "one long string": lambda size: b'"' + b"a" * size + b'"',
    "escaped string": lambda size: b'"' + rb"\u00e9" * (size // 6) + b'"',
    "strings": _items(b'"a",'),
    "words": lambda size: b"[" + b",".join([b'"%07x"' % number for number in range(size // 10)]) + b"]",
    "small integers": _items(b"1,"),
    "large integers": _items(b"123456789012345678,"),
    "floats": _items(b"0.123,"),
    "long floats": _items(b"0.123456789012,"),
    "nulls": _items(b"null,"),
    "empty lists": _items(b"[],"),
    "empty objects": _items(b"{},"),
    "lists of one": _items(b"[1],"),
    "pairs": _items(b'["a","b"],'),
    "objects of one": _items(b'{"a":0},'),
    "long lists": _items(b"[" + b"1," * 999 + b"1],"),
    "many members": _members,
    "nested 100": _nested(100),
    "nested to the end": lambda size: b"[" * (size // 2) + b"]" * (size // 2),
    "one long number": lambda size: b"1" * size,
    "one long fraction": lambda size: b"0." + b"1" * size,
}

WORDS: dict[str, Maker] = {
    "long word": lambda size: b"a" * size,
    "commas": lambda size: b"1," * (size // 2),
    "ranges": lambda size: b"0-9," * (size // 4),
    "digits": lambda size: b"9" * size,
    "weights": lambda size: b"a/b;q=0.1," * (size // 10),
    "codings": lambda size: b"gzip;q=0.1," * (size // 11),
    "semicolons": lambda size: b"a;b=" + b";" * size,
    "quotes": lambda size: b'a;b="' + rb"\"" * (size // 2),
    "spaces": lambda size: b"a" + b" " * size + b"a",
    "brackets": lambda size: b"[" * size,
}
"""Of headers, query parameters and path parameters; visible ASCII."""


def places(example: Any, at: Place = ()) -> Iterator[Place]:
    """Yield where an example has values: its members, and the first item of each list."""
    yield at
    children = example.items() if isinstance(example, dict) else enumerate(example[:1] if type(example) is list else ())
    for step, value in children:
        yield from places(value, (*at, step))


def filled(example: Any, place: Place, value: bytes) -> bytes:
    """Return an example as JSON with a value of JSON in one place."""
    return orjson.dumps(_with(example, place)).replace(orjson.dumps(HOLE), value, 1)


def _with(example: Any, place: Place) -> Any:
    if not place:
        return HOLE
    step, rest = place[0], place[1:]
    if isinstance(example, dict):
        return example | {step: _with(example.get(step), rest)}
    copy = list(example)
    copy[int(step)] = _with(copy[int(step)], rest)
    return copy


# ---- protobuf


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it."""
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def field(number: int, value: bytes) -> bytes:
    """Return a field of bytes, a string or a message."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def messages(kind: Descriptor) -> Iterator[tuple[str, Maker]]:
    """Yield for each field of a message, and of the messages in it, what fills it; and unknown fields."""
    yield "unknown fields", lambda size: b"\xf8\x7f\x00" * (size // 3)
    yield "unknown groups", lambda size: (b"\x7b" * 90 + b"\x7c" * 90) * (size // 180)
    yield from _fields(kind, (), lambda inner: inner)


def _fields(kind: Descriptor, path: tuple[str, ...], around: Maker) -> Iterator[tuple[str, Maker]]:
    """Yield the fillings of a message's fields; `around` puts its bytes into the outermost message."""
    for each in kind.fields:
        steps = (*path, each.name)
        for name, make in _one(each):
            yield f"{'.'.join(steps)}: {name}", _around(around, make)
        inner = each.message_type
        if inner is not None and len(steps) < DEEPEST and each.name not in path:
            yield from _fields(inner, steps, _into(around, each.number))


def _around(around: Callable[[bytes], bytes], make: Maker) -> Maker:  # type: ignore[valid-type]
    return lambda size: around(make(size))


def _into(around: Callable[[bytes], bytes], number: int) -> Callable[[bytes], bytes]:
    return lambda value: around(field(number, value))


def _one(each: FieldDescriptor) -> Iterator[tuple[str, Maker]]:
    number = each.number
    if each.message_type is not None and each.message_type.GetOptions().map_entry:
        yield "entries", lambda size: b"".join([field(number, field(1, b"%07x" % key)) for key in range(size // 11)])
        yield "empty entries", _repeated(field(number, b""))
    elif each.message_type is not None:
        yield "empty messages", _repeated(field(number, b""))
        if each.message_type in [inner.message_type for inner in each.message_type.fields]:
            yield "within itself", lambda size: _within_itself(number, size)
    elif each.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        yield "one long value", lambda size: field(number, b"a" * size)
        yield "short values", _repeated(field(number, b"a"))
        yield "words", lambda size: b"".join([field(number, b"%07x" % word) for word in range(size // 10)])
    else:
        yield "packed", lambda size: field(number, b"\x01" * (size // 8 * 8))
        yield "one by one", _repeated(varint(number << 3) + b"\x01")


def _repeated(value: bytes) -> Maker:
    return lambda size: value * (size // len(value))


def _within_itself(number: int, size: int) -> bytes:
    value = b""
    while len(value) < min(size, 1 << 12):
        value = field(number, value)
    return value
