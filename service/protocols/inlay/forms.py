"""Reads a body of multipart/form-data as a body of /embed: files are images, other parts texts and options.

    curl localhost:8080/embed -F inputs=@page.png -F inputs='a text' -F dimensions=64

A part named `inputs` with a file name is an image; others of that name are texts. The parts of other names are the
fields of a JSON body, each a JSON value or a text.
"""

from email.message import Message
from typing import Any, NamedTuple

import orjson

from service.embedding.limits import check_inputs
from service.embedding.requests import Input, Picture, Text
from service.errors import Malformed

MOST_FIELDS = 64  # beside the inputs
INPUTS = "inputs"


class Form(NamedTuple):
    """The inputs of a form, and its other fields as JSON has them."""

    inputs: list[Input]
    fields: dict[str, Any]


def is_form(content_type: bytes | None) -> bool:
    """Return whether a content-type is that of a form."""
    return content_type is not None and content_type.lower().startswith(b"multipart/form-data")


def read_form(content_type: bytes, body: bytes, max_inputs: int) -> Form:
    """Return what a form holds.

    Raises:
        Malformed: it is no form, or has too many parts.
        TooManyInputs: it has more than `max_inputs`.
    """
    boundary = _parameter(content_type, "content-type", "boundary")
    if not boundary:
        raise Malformed("the form names no boundary in its content-type", remedy="let your client set the content-type")
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary.encode(), max_inputs + MOST_FIELDS + 2)
    if not pieces[-1].startswith(b"--"):
        raise Malformed(
            "the form does not end with its boundary, or has too many parts",
            allowed=f"{max_inputs} inputs and {MOST_FIELDS} fields",
        )
    form = Form([], {})
    for piece in pieces[1:-1]:
        head, _, data = piece.partition(b"\r\n\r\n")
        disposition = next((line for line in head.split(b"\r\n") if line.lower().startswith(b"content-disp")), b"")
        value = disposition.partition(b":")[2].strip()
        name = _parameter(value, "content-disposition", "name")
        if name != INPUTS:
            form.fields[name] = _value(data)
        elif _parameter(value, "content-disposition", "filename"):
            form.inputs.append(Picture(data))
        else:
            form.inputs.append(Text(_text(data)))
    check_inputs(len(form.inputs), max_inputs)
    return form


def _parameter(value: bytes, header: str, name: str) -> str:
    message = Message()
    message[header] = value.decode("latin-1")
    return str(message.get_param(name, "", header))


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Malformed("a text of the form is not UTF-8", remedy="name a file, if it is an image") from None


def _value(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except ValueError:
        return _text(data)
