"""The `inputs` member of a JSON request → Text and Ids. Values, lengths and limits are the encoder's.

The forms nest and overlap ("a list of texts" and "a pair of texts" differ by depth alone), so they are told apart here,
one look at a value each, and a refusal names the place in the caller's own document.
"""

from typing import Any

import numpy as np

from service.embedding.requests import (
    Ids,
    Input,
    Int64s,
    Text,
)
from service.errors import BadInput, BadRequest, TooLarge
from service.http.validation_errors import quoted as show

FORMS = 'a text, a list of ids, a pair ["a", "b"] or an object {"input_ids": [...]}'
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
JUST_INT = {int}


def decode(inputs: Any, most: int | None = None) -> list[Input]:
    """Every input of a request, in order.

    most     of them; told before any is looked at, for a small list takes a hundred times its bytes
    raises   TooLarge; BadInput with the index of the first that has no known form; BadRequest if `inputs` as a whole
             has none
    """
    if type(inputs) is list:
        if inputs and type(inputs[0]) is int:
            return [Ids(_integers(inputs, "input_ids", "inputs", 0))]
        if most is not None and len(inputs) > most:
            raise TooLarge(f"{len(inputs)} inputs; this server takes {most} a request: send fewer")
        return [_plain(value) or _one(value, f"inputs[{index}]", index) for index, value in enumerate(inputs)]
    if type(inputs) is str or type(inputs) is dict:
        return [_one(inputs, "inputs", 0)]
    raise BadRequest(f"inputs is {show(inputs)}; send {FORMS}, or a list of these")


def _plain(value: Any) -> Ids | None:
    """What most inputs are, for less; None: to be looked at closely."""
    if type(value) is list and set(map(type, value)) == JUST_INT:
        try:
            return Ids(np.array(value, np.int64))
        except OverflowError:
            return None
    return None


def _one(value: Any, path: str, index: int) -> Input:
    kind = type(value)
    if kind is str:
        return Text(value)
    if kind is list:
        if value and type(value[0]) is str:
            return _pair(value, path, index)
        return Ids(_integers(value, "input_ids", path, index))
    if kind is dict:
        return _object(value, path, index)
    raise BadInput(f"{path} is {show(value)}; an input is {FORMS}", index)


def _pair(value: list[Any], path: str, index: int) -> Text:
    for place, item in enumerate(value):
        if type(item) is not str:
            raise BadInput(f"{path}[{place}] is {show(item)}; a pair holds two texts, a list of ids integers", index)
    if len(value) != 2:
        raise BadInput(f"{path} holds {len(value)} text{'s' * (len(value) > 1)}; a pair holds two", index)
    return Text(value[0], value[1])


def _object(value: dict[str, Any], path: str, index: int) -> Ids:
    if unknown := [key for key in value if key not in LISTS and key not in EXTRAS]:
        allowed = ", ".join((*LISTS, *EXTRAS))
        raise BadInput(f'{path} has a member "{show(unknown[0])[1:-1]}"; allowed: {allowed}', index)
    if "input_ids" not in value:
        raise BadInput(f"{path} has no input_ids; an object needs them", index)
    arrays = {
        LISTS[key]: _integers(items, key, f"{path}.{key}", index)
        for key, items in value.items()
        if items is not None and key in LISTS
    }
    if "ids" not in arrays:
        raise BadInput(f"{path}.input_ids is null; an object needs them", index)
    return Ids(**arrays, extras=_extras(value, path, index))


def _extras(value: dict[str, Any], path: str, index: int) -> dict[str, Int64s] | None:
    sent = {key: value[key] for key in EXTRAS if value.get(key) is not None}
    read = {"bbox": _boxes}
    return {key: read.get(key, _integers)(items, key, f"{path}.{key}", index) for key, items in sent.items()} or None


def _boxes(values: Any, key: str, path: str, index: int) -> Int64s:
    if type(values) is not list:
        raise BadInput(f"{path} is {show(values)}; it is a list of boxes [x0, y0, x1, y1]", index)
    boxes = [_integers(box, key, f"{path}[{place}]", index) for place, box in enumerate(values)]
    for place, box in enumerate(boxes):
        if len(box) != 4:
            raise BadInput(f"{path}[{place}] has {len(box)} values; {ITEMS[key]}, x0, y0, x1, y1", index)
    return np.array(boxes, np.int64).reshape(-1, 4)


def _integers(values: Any, key: str, path: str, index: int) -> Int64s:
    if type(values) is not list:
        raise BadInput(f"{path} is {show(values)}; it is a list of integers", index)
    # numpy would take true for 1 and cut 1.5 to 1
    if not set(map(type, values)) <= JUST_INT:
        place, value = next((place, value) for place, value in enumerate(values) if type(value) is not int)
        raise BadInput(f"{path}[{place}] is {show(value)}; {ITEMS[key]}", index)
    try:
        return np.array(values, np.int64)
    except OverflowError:
        place = next(place for place, value in enumerate(values) if not -(2**63) <= value < 2**63)
        raise BadInput(f"{path}[{place}] is {values[place]}; {ITEMS[key]} and fits 64 bits", index) from None
