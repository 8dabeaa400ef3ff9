"""Reads the `inputs` of a JSON request as Text and Ids; the core checks values, lengths and limits.

The forms nest and overlap: a list of texts and a pair of texts differ only in depth. This module tells them apart with
one look at each value, and its errors name the place in the caller's document.
"""

from operator import countOf
from typing import Any

import numpy as np
import pybase64

from service.embedding.limits import check_inputs
from service.embedding.requests import Ids, Input, Int64s, Picture, Text
from service.errors import BadInput, FieldPath, MissingField, OutOfRange, UnknownField, WrongShape, WrongType
from service.http.validation_errors import quoted

FORMS = 'a text, a list of ids, a pair ["a", "b"] or an object {"input_ids": [...]} or {"image": "data:..."}'
EXTRAS = ("task_type_ids", "langs", "bbox")
LISTS = {"input_ids": "ids", "attention_mask": "mask", "token_type_ids": "types", "position_ids": "positions"}
ITEMS = {
    "input_ids": "an id is an integer from 0",
    "attention_mask": "a mask holds 0 and 1",
    "token_type_ids": "a segment is an integer from 0",
    "position_ids": "a position is an integer from 0",
    "task_type_ids": "a task is an integer from 0",
    "langs": "a language is an integer from 0",
    "bbox": "a box is four integers from 0",
}


def decode(inputs: Any, max_inputs: int | None = None) -> list[Input]:
    """Return every input of a request, in order.

    Args:
        max_inputs: the limit, checked before any input is read, since a decoded input takes up to a hundred times its
            bytes.

    Raises:
        TooManyInputs: there are more than `max_inputs`.
        BadRequest: an input, or `inputs` as a whole, has no known form.
    """
    if type(inputs) is list:
        if inputs and type(inputs[0]) is int:
            return [Ids(_integers(inputs, "input_ids", ("inputs",), 0))]
        check_inputs(len(inputs), max_inputs)
        return [
            Text(value) if type(value) is str else _plain(value) or _decode_one(value, ("inputs", index), index)
            for index, value in enumerate(inputs)
        ]
    if type(inputs) is str or type(inputs) is dict:
        return [_decode_one(inputs, ("inputs",), 0)]
    raise WrongType(f"is {quoted(inputs)}", field=("inputs",), allowed=f"send {FORMS}, or a list of these")


def _plain(value: Any) -> Ids | None:
    """Return the Ids of a plain list of integers, faster than `_decode_one`; None for any other value."""
    if type(value) is list and value and countOf(map(type, value), int) == len(value):
        try:
            return Ids(np.array(value, np.int64))
        except OverflowError:
            return None
    return None


def _decode_one(value: Any, path: FieldPath, index: int) -> Input:
    kind = type(value)
    if kind is str:
        return Text(value)
    if kind is list:
        if value and type(value[0]) is str:
            return _pair(value, path, index)
        return Ids(_integers(value, "input_ids", path, index))
    if kind is dict:
        return picture(value, path) if "image" in value else _object(value, path, index)
    raise WrongType(f"is {quoted(value)}", index, field=path, allowed=f"an input is {FORMS}")


def _pair(value: list[Any], path: FieldPath, index: int) -> Text:
    for place, item in enumerate(value):
        if type(item) is not str:
            allowed = "a pair holds two texts, a list of ids integers"
            raise WrongType(f"is {quoted(item)}", index, field=(*path, place), allowed=allowed)
    if len(value) != 2:
        received = f"holds {len(value)} text{'s' * (len(value) > 1)}"
        raise WrongShape(received, index, field=path, allowed="a pair holds two")
    return Text(value[0], value[1])


def picture(value: dict[str, Any], path: FieldPath) -> Picture:
    """Return the picture of an object {"image": a data URL or base64}."""
    if unknown := [key for key in value if key != "image"]:
        raise UnknownField(f"has a field {quoted(unknown[0])}", field=path, allowed="allowed: image")
    if type(value["image"]) is not str:
        raise WrongType(f"is {quoted(value['image'])}", field=(*path, "image"), allowed="send a data URL or base64")
    return decode_picture(value["image"], (*path, "image"))


def decode_picture(text: str, path: FieldPath) -> Picture:
    """Return the picture in a data URL, in bare base64 or at an address; raise BadInput for any other text."""
    if text[:5].lower() == "data:":
        head, comma, text = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            allowed = "a data URL is data:image/png;base64, and base64 after it"
            raise BadInput(f"is {quoted(head)}", field=path, allowed=allowed)
    elif text[:8].lower().startswith(("http://", "https://")):
        return Picture(b"", text, path)
    elif "://" in text[:64]:
        remedy = "send the file itself, as a data URL"
        raise BadInput(f"is {quoted(text)}", field=path, allowed="addresses are not fetched", remedy=remedy)
    try:
        return Picture(pybase64.b64decode("".join(text.split()), validate=True))
    except ValueError:
        remedy = "send a data URL or bare base64 of a JPEG, PNG or WebP file"
        raise BadInput("is not base64", field=path, remedy=remedy) from None


def _object(value: dict[str, Any], path: FieldPath, index: int) -> Ids:
    if unknown := [key for key in value if key not in LISTS and key not in EXTRAS]:
        allowed = f"allowed: {', '.join((*LISTS, *EXTRAS))}"
        raise UnknownField(f"has a field {quoted(unknown[0])}", index, field=path, allowed=allowed)
    if value.get("input_ids") is None:
        received = "is null" if "input_ids" in value else "is missing"
        raise MissingField(received, index, field=(*path, "input_ids"), allowed="an object needs them")
    arrays: dict[str, Any] = {
        key: (_boxes if key == "bbox" else _integers)(items, key, (*path, key), index)
        for key, items in value.items()
        if items is not None
    }
    extras = {key: arrays.pop(key) for key in EXTRAS if key in arrays}
    return Ids(**{LISTS[key]: array for key, array in arrays.items()}, extras=extras or None)


def _boxes(values: Any, key: str, path: FieldPath, index: int) -> Int64s:
    if type(values) is not list:
        raise WrongType(f"is {quoted(values)}", index, field=path, allowed="it is a list of boxes [x0, y0, x1, y1]")
    boxes = [_integers(box, key, (*path, place), index) for place, box in enumerate(values)]
    for place, box in enumerate(boxes):
        if len(box) != 4:
            allowed = f"{ITEMS[key]}, x0, y0, x1, y1"
            raise WrongShape(f"has {len(box)} values", index, field=(*path, place), allowed=allowed)
    return np.array(boxes, np.int64).reshape(-1, 4)


def _integers(values: Any, key: str, path: FieldPath, index: int) -> Int64s:
    if type(values) is not list:
        raise WrongType(f"is {quoted(values)}", index, field=path, allowed="it is a list of integers")
    # numpy would take true for 1 and cut 1.5 to 1
    if countOf(map(type, values), int) < len(values):
        place, value = next((place, value) for place, value in enumerate(values) if type(value) is not int)
        raise WrongType(f"is {quoted(value)}", index, field=(*path, place), allowed=ITEMS[key])
    try:
        return np.array(values, np.int64)
    except OverflowError:
        place = next(place for place, value in enumerate(values) if not -(2**63) <= value < 2**63)
        allowed = f"{ITEMS[key]} and fits 64 bits"
        raise OutOfRange(f"is {values[place]}", index, field=(*path, place), allowed=allowed) from None
