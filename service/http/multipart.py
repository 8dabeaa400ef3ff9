"""Splits a multipart/form-data body that is already in memory (RFC 7578)."""

import logging
from typing import NamedTuple

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, MultipartState, parse_options_header

from service.errors import Malformed

MULTIPART = "multipart/form-data"
MAX_PARTS = 4096
LONGEST_BOUNDARY = 70  # RFC 2046

# it logs a line for every malformed body, which its sender learns of anyway
logging.getLogger("python_multipart").setLevel(logging.ERROR)


class FormPart(NamedTuple):
    """A part: its field's name, whether it is a file, and its bytes."""

    name: str
    file: bool
    data: bytes


def parts_of(content_type: str, body: bytes) -> list[FormPart]:
    """Return every part, in order; raise Malformed if the content type's boundary does not divide the body."""
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not 0 < len(boundary) <= LONGEST_BOUNDARY:
        raise Malformed(f"the content-type names no boundary of 1 to {LONGEST_BOUNDARY} characters")
    delimiter = b"\r\n--" + boundary
    if body.count(delimiter) > MAX_PARTS:
        raise Malformed(f"the body holds more than {MAX_PARTS} parts")
    names: list[bytes] = []
    parts: list[tuple[dict[bytes, bytes], list[bytes]]] = []
    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": lambda: parts.append(({}, [])),
            "on_header_field": lambda data, start, end: names.append(data[start:end].lower()),
            "on_header_value": lambda data, start, end: parts[-1][0].update({names[-1]: data[start:end]}),
            "on_part_data": lambda data, start, end: parts[-1][1].append(data[start:end]),
        },
    )
    try:
        parser.write(delimiter[2:] + b"\r\n\r\n\r\n")  # it parses no preamble: that becomes the data of a first part
        parser.write(body)
    except MultipartParseError as error:
        raise Malformed(f"the form is not well formed: {error}") from None
    if parser.state != MultipartState.END:
        raise Malformed("the body is not closed by its boundary", remedy="send all of it, with its own boundary")
    return [_part(headers, b"".join(data)) for headers, data in parts[1:]]


def _part(headers: dict[bytes, bytes], data: bytes) -> FormPart:
    disposition = headers.get(b"content-disposition", b"")
    if b"name" not in (options := parse_options_header(disposition)[1]):
        raise Malformed("a part has no name in its content-disposition")
    # `filename*=`, which RFC 7578 forbids and the library passes over, is how older clients send names beyond ASCII
    file = b"filename" in options or b"filename*=" in disposition
    return FormPart(options[b"name"].decode("utf-8", "replace"), file, data)
