"""The forms that `inputs` may have, and the errors of others."""

from typing import Any

import numpy as np
import pytest

from service.embedding.requests import Ids, Text
from service.errors import InlayError
from service.protocols.inlay.inputs import decode

FORMS: list[tuple[Any, list[Any]]] = [
    ("a", [Text("a")]),
    ("", [Text("")]),
    (["a", "b"], [Text("a"), Text("b")]),
    ([["a", "b"]], [Text("a", "b")]),
    ([1, 2], [[1, 2]]),
    ([[1, 2], [3]], [[1, 2], [3]]),
    ([[1]], [[1]]),
    ({"input_ids": [1, 2]}, [[1, 2]]),
    ([{"input_ids": [1]}, "a"], [[1], Text("a")]),
    (["a", [1], ["a", "b"], {"input_ids": [2]}], [Text("a"), [1], Text("a", "b"), [2]]),
    ([], []),
    ([[]], [[]]),
]
INVALID: list[tuple[Any, int | None, str]] = [
    (None, None, "inputs is null; send a text"),
    (5, None, "inputs is 5; send a text"),
    (True, None, "inputs is true; send a text"),
    ([1, "x"], 0, 'inputs[1] is "x"; an id is an integer from 0'),
    ([1, True], 0, "inputs[1] is true; an id is an integer from 0"),
    ([1, 2.5], 0, "inputs[1] is 2.5; an id is an integer from 0"),
    ([1, None], 0, "inputs[1] is null; an id is an integer from 0"),
    ([1, 2**63], 0, "inputs[1] is 9223372036854775808; an id is an integer from 0 and fits 64 bits"),
    ([[1], [2], [3], [4, 5, "x"]], 3, 'inputs[3][2] is "x"; an id is an integer from 0'),
    (["a", 3], 1, "inputs[1] is 3; an input is a text"),
    ([True], 0, "inputs[0] is true; an input is a text"),
    (["a", ["b"]], 1, "inputs[1] holds 1 text; a pair holds two"),
    ([["a", "b", "c"]], 0, "inputs[0] holds 3 texts; a pair holds two"),
    ([["a", 1]], 0, "inputs[0][1] is 1; a pair holds two texts"),
    ([[[1]]], 0, "inputs[0][0] is a list of 1; an id is an integer from 0"),
    ({}, 0, "inputs.input_ids is missing; an object needs them"),
    (["a", {"ids": [1]}], 1, 'inputs[1] has a field "ids"; allowed: input_ids, attention_mask'),
    ([{"input_ids": None}], 0, "inputs[0].input_ids is null"),
    ({"input_ids": "a"}, 0, 'inputs.input_ids is "a"; it is a list of integers'),
    ([{"input_ids": [1], "attention_mask": [1.0]}], 0, "inputs[0].attention_mask[0] is 1.0; a mask holds 0 and 1"),
    (["a" * 99, {"input_ids": ["z" * 99]}], 1, f'inputs[1].input_ids[0] is "{"z" * 40}…"'),
]


@pytest.mark.parametrize(("inputs", "expected"), FORMS, ids=repr)
def test_reads_every_form(inputs: Any, expected: list[Any]) -> None:
    plain = [each.ids.tolist() if isinstance(each, Ids) else each for each in decode(inputs)]
    assert plain == expected


@pytest.mark.parametrize(("inputs", "index", "message"), INVALID, ids=lambda value: str(value)[:40])
def test_rejects_other_forms_with_their_place(inputs: Any, index: int | None, message: str) -> None:
    with pytest.raises(InlayError) as caught:
        decode(inputs)
    assert caught.value.message.startswith(message)
    assert caught.value.index == index


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        (5, "wrong_type"),
        ([1, "x"], "wrong_type"),
        ([1, 2**63], "out_of_range"),
        (["a", ["b"]], "wrong_shape"),
        ([{}], "missing_field"),
        ([{"ids": [1]}], "unknown_field"),
    ],
)
def test_error_codes_tell_the_kinds_of_mistake_apart(inputs: Any, code: str) -> None:
    with pytest.raises(InlayError) as caught:
        decode(inputs)
    assert caught.value.code == code


def test_object_keeps_every_list() -> None:
    (ids,) = decode({"input_ids": [5, 6], "attention_mask": [1, 0], "token_type_ids": [0, 1], "position_ids": [3, 4]})
    assert isinstance(ids, Ids)
    lists = [ids.ids, ids.mask, ids.types, ids.positions]
    assert [each is not None and each.tolist() for each in lists] == [[5, 6], [1, 0], [0, 1], [3, 4]]
    assert all(each is not None and each.dtype == np.int64 for each in lists)


def test_null_list_means_missing() -> None:
    (ids,) = decode({"input_ids": [5], "attention_mask": None})
    assert isinstance(ids, Ids)
    assert ids.mask is None
