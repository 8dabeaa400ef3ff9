"""The parts of a multipart/form-data body that is already in memory (RFC 7578). Writes no file; nests nothing."""

from email.message import Message
from typing import NamedTuple

from service.errors import Malformed

MULTIPART = "multipart/form-data"
MOST_PARTS = 4096
MOST_HEADERS = 8192  # bytes of one part
LONGEST_BOUNDARY = 70  # RFC 2046


class Part(NamedTuple):
    """One part: its field's name, whether it is a file, and its bytes."""

    name: str
    file: bool
    data: bytes


def parts_of(content_type: str, body: bytes) -> list[Part]:
    """Every part in its order.

    raises   Malformed for a body that is not cut by the boundary its content-type names
    """
    boundary = _parameter("content-type", content_type, "boundary")
    if not boundary or len(boundary) > LONGEST_BOUNDARY:
        raise Malformed(f"the content-type names no boundary of 1 to {LONGEST_BOUNDARY} characters")
    delimiter = b"\r\n--" + boundary.encode("latin-1", "replace")
    pieces = (b"\r\n" + body).split(delimiter, MOST_PARTS + 1)
    if len(pieces) > MOST_PARTS + 1:
        raise Malformed(f"the body holds more than {MOST_PARTS} parts")
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise Malformed("the body is not closed by its boundary: it was cut short, or the boundary is another one")
    return [_part(piece) for piece in pieces[1:-1]]


def _part(piece: bytes) -> Part:
    # spaces may follow the boundary on its line
    padding, _, rest = piece.partition(b"\r\n")
    head, empty_line, data = (b"\r\n" + rest).partition(b"\r\n\r\n")
    if padding.strip(b" \t") or not empty_line or len(head) > MOST_HEADERS:
        raise Malformed("a part has no headers, or too many")
    lines = [line.partition(b":") for line in head.split(b"\r\n") if line]
    headers = {name.strip().lower(): value.strip().decode("utf-8", "replace") for name, _, value in lines}
    disposition = headers.get(b"content-disposition", "")
    if (name := _parameter("content-disposition", disposition, "name")) is None:
        raise Malformed("a part has no name in its content-disposition")
    return Part(name, _parameter("content-disposition", disposition, "filename") is not None, data)


def _parameter(header: str, value: str, name: str) -> str | None:
    message = Message()
    message[header] = " ".join(value.split())
    found = message.get_param(name, header=header)
    return found if isinstance(found, str) else found[2] if isinstance(found, tuple) else None
