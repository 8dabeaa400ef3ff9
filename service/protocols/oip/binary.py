"""A body of POST .../infer: JSON, with raw tensors behind it where the binary tensor extension puts them.

Inference-Header-Content-Length counts the JSON's bytes; raw tensors follow in the order they are listed, without gaps.
A length of 0: the whole body is the one input, and every output is binary. Other Content-Types are never asked for.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from service.errors import BadRequest, Malformed, Unsupported
from service.http import json_arrays as numbers
from service.http.endpoint import Answer
from service.http.formats import JSON, OCTETS
from service.protocols.inlay.inputs import show
from service.protocols.oip import json_tensors as listed
from service.protocols.oip.datatypes import BYTES, Raw, width
from service.protocols.oip.infer import IDS, TEXT, VERSION
from service.protocols.oip.shared_memory import Place, Regions, place_of
from service.protocols.oip.tensors import (
    Tensor,
    from_raw,
    from_values,
    raw_of,
    raw_size,
)
from service.settings import Settings

HEADER = b"inference-header-content-length"
DATA = ("data", "binary_data_size", "shared_memory_region")


class Wanted(NamedTuple):
    """How one output is to leave: as raw bytes, in a client's shared memory, or as a JSON list."""

    name: str
    binary: bool
    place: Place | None


class Inference(NamedTuple):
    """A request read.

    outputs   those named; empty: the default, as raw bytes if `binary`
    """

    inputs: list[Tensor]
    outputs: list[Wanted]
    parameters: dict[str, Any]
    id: str | None
    binary: bool


def read(body: bytes, fields: Mapping[bytes, bytes], settings: Settings, regions: Regions) -> Inference:
    """What the body asks for.

    fields   the HTTP headers
    raises   Malformed, BadRequest, Unsupported
    """
    length = _length(fields.get(HEADER), len(body))
    if length == 0:
        return _bare(body, fields.get(b"content-type", b""))
    document = _object(body if length is None else body[:length])
    parameters = _parameters("the request", document)
    tail = _Tail(memoryview(body)[len(body) if length is None else length :])
    inputs = [_input(index, each, tail, settings, regions) for index, each in enumerate(_list(document, "inputs"))]
    tail.end()
    binary = _flag("the request", parameters, "binary_data_output", False)
    asked = _list(document, "outputs") if document.get("outputs") is not None else []
    outputs = [_output(index, each, binary, settings) for index, each in enumerate(asked)]
    id_ = document.get("id")
    if id_ is not None and type(id_) is not str:
        raise BadRequest(f"id is {show(id_)}; allowed: a string")
    return Inference(inputs, outputs, parameters, id_, binary)


async def answer(model: str, asked: Inference, outputs: list[Tensor], regions: Regions) -> Answer:
    """The outputs as they are wanted.

    raises   BadRequest for what JSON does not carry, or a region without room
    """
    wanted = asked.outputs or [Wanted(tensor.name, asked.binary, None) for tensor in outputs]
    entries, raws, values = [], list[Raw](), 0
    for tensor, how in zip(outputs, wanted, strict=True):
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if how.place:
            entry["parameters"] = _lent(tensor, how.place, regions)
        elif how.binary:
            entry["parameters"] = {"binary_data_size": raw_size(tensor)}
            raws.append(raw_of(tensor))
        else:
            entry["data"] = listed.list_of(tensor)
            values += len(entry["data"])
        entries.append(entry)
    document: dict[str, Any] = {"model_name": model, "model_version": VERSION, "outputs": entries}
    if asked.id is not None:
        document["id"] = asked.id
    head = await numbers.written(values, numbers.dumps, document, values)
    return _sent(head, raws, any(how.binary and not how.place for how in wanted))


def _sent(head: bytes, raws: list[Raw], binary: bool) -> Answer:
    size = b"%d" % (len(head) + sum(map(len, raws)))
    if not binary:
        return Answer(((b"content-type", JSON.encode()), (b"content-length", size)), [head])
    length = (HEADER, b"%d" % len(head))
    return Answer(((b"content-type", OCTETS.encode()), (b"content-length", size), length), [head, *raws])


def _lent(tensor: Tensor, place: Place, regions: Regions) -> dict[str, Any]:
    raw = raw_of(tensor)
    regions.write(place, raw)
    return {
        "shared_memory_region": place.region,
        "shared_memory_offset": place.offset,
        "shared_memory_byte_size": len(raw),
    }


class _Tail:
    """The raw tensors behind the JSON, taken one by one."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, name: str, size: int) -> memoryview:
        left = len(self._data) - self._at
        if size > left:
            raise BadRequest(f"input {name!r} has binary_data_size {size}; {left} bytes are left behind the JSON")
        self._at += size
        return self._data[self._at - size : self._at]

    def end(self) -> None:
        if left := len(self._data) - self._at:
            raise BadRequest(f"{left} bytes behind the JSON belong to no input: give each its binary_data_size")


def _length(value: bytes | None, size: int) -> int | None:
    if value is None:
        return None
    text = value.strip()
    if not text.isdigit() or len(text) > 18 or int(text) > size:
        raise BadRequest(
            f"Inference-Header-Content-Length is {value[:40].decode('latin-1')!r}; allowed: 0 to {size}, "
            "the body's bytes"
        )
    return int(text)


def _bare(body: bytes, content_type: bytes) -> Inference:
    """The whole body as one input: a text where it is declared to be one, else token ids of one sequence."""
    if content_type.lower().startswith(b"text/"):
        tensor = from_values(TEXT, BYTES, [1], [body])
    else:
        tensor = from_raw(IDS, "INT64", [1, len(body) // 8], body)
    return Inference([tensor], [], {}, None, True)


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Malformed(
            f"the body is not JSON: {error}; with binary data send Inference-Header-Content-Length"
        ) from None
    if type(document) is not dict:
        raise BadRequest(f'the body is {show(document)}; send a JSON object with "inputs"')
    return document


def _list(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = document.get(name)
    if type(found) is not list:
        raise BadRequest(f"{name} is {'missing' if name not in document else show(found)}; send a list of tensors")
    for index, each in enumerate(found):
        if type(each) is not dict or type(each.get("name")) is not str:
            raise BadRequest(f'{name}[{index}] is {show(each)}; allowed: an object with a "name" that is a string')
    return found


def _parameters(what: str, document: dict[str, Any]) -> dict[str, Any]:
    found = document.get("parameters")
    if found is None:
        return {}
    if type(found) is not dict:
        raise BadRequest(f"parameters of {what} is {show(found)}; allowed: an object")
    return found


def _flag(what: str, parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if type(value) is not bool:
        raise BadRequest(f"{name} of {what} is {show(value)}; allowed: true or false")
    return value


def _input(index: int, entry: dict[str, Any], tail: _Tail, settings: Settings, regions: Regions) -> Tensor:
    name, datatype, shape = entry["name"], entry.get("datatype"), entry.get("shape")
    if type(datatype) is not str or type(shape) is not list:
        raise BadRequest(
            f"inputs[{index}] {name!r} has datatype {show(datatype)} and shape {show(shape)}; "
            "allowed: a string and a list"
        )
    width(datatype)
    parameters = _parameters(f"input {name!r}", entry)
    size, place = parameters.get("binary_data_size"), place_of(name, parameters, settings)
    if ("data" in entry) + (size is not None) + (place is not None) != 1:
        raise BadRequest(f"input {name!r} has {_sources(entry, parameters)} of {', '.join(DATA)}; send exactly one")
    if place:
        return from_raw(name, datatype, shape, regions.read(place))
    if size is None:
        return listed.tensor_of(name, datatype, shape, entry["data"])
    if type(size) is not int or size < 0:
        raise BadRequest(f"input {name!r} has binary_data_size {show(size)}; allowed: a whole number from 0")
    return from_raw(name, datatype, shape, tail.take(name, size))


def _sources(entry: dict[str, Any], parameters: dict[str, Any]) -> str:
    return " and ".join([name for name in DATA if name in entry or name in parameters]) or "none"


def _output(index: int, entry: dict[str, Any], binary: bool, settings: Settings) -> Wanted:
    what = f"output {entry['name']!r}"
    parameters = _parameters(what, entry)
    if parameters.get("classification"):
        raise Unsupported(f"{what}: classification is not supported; leave the parameter out")
    place = place_of(entry["name"], parameters, settings)
    return Wanted(entry["name"], _flag(what, parameters, "binary_data", binary), place)
