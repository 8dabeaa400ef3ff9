"""Errors of pydantic models as a caller reads them."""

import sys
import tracemalloc
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from service.errors import BadRequest, Malformed, Spelling
from service.http.validation_errors import json_bytes, parse_json, quoted, validated, validation_error


class Two(BaseModel):
    """Two required fields and an optional one."""

    first: int
    second: int
    third: int = 3


class Free(BaseModel):
    """No required field."""

    only: int = 1


EXPLAINED: list[tuple[type[BaseModel], Any, str]] = [
    (Two, {}, "first and second are missing: send them; also allowed: third"),
    (Two, {"first": 1}, "second is missing: send it; also allowed: first, third"),
    (Two, 5, "the body is 5; send a JSON object with first, second; also allowed: third"),
    (Free, [], "the body is a list of 0; send a JSON object; allowed: only"),
]


@pytest.mark.parametrize(("model", "value", "message"), EXPLAINED)
def test_tells_required_from_optional_fields(model: type[BaseModel], value: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(value)
    assert validation_error(caught.value, model).message == message


class Strict(BaseModel):
    """A model that takes no other fields."""

    model_config = ConfigDict(extra="forbid")
    inputs: list[int] = []


def fault(data: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        validated(Strict, data, ("instances", 3))
    return caught.value


def test_error_holds_the_path_of_its_field() -> None:
    error = fault({"inputs": [1, "x"]})
    assert (error.field, error.index) == (("instances", 3, "inputs", 1), 3)
    assert error.message.startswith('instances[3].inputs[1] is "x"; allowed: ')


def test_unknown_field_is_not_respelled() -> None:
    error = fault({"input": 1})
    assert error.render(Spelling({"input": "text"})) == error.message
    assert error.message == 'instances[3].input is not known here; did you mean "inputs"?'


@pytest.mark.parametrize("name", ["a" * 100_000, "", "a b", "a\nb"])
def test_strange_field_names_are_quoted_and_cut(name: str) -> None:
    assert quoted(name) in fault({name: 1}).message
    assert len(fault({name: 1}).message) < 120


def test_rejects_text_that_is_not_json() -> None:
    with pytest.raises(Malformed, match="the body is not JSON"):
        parse_json(b"{")


def test_small_json_takes_no_more_memory_than_its_bytes() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = [json_bytes({"dimensions": number}) for number in range(1000)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1000 * (sys.getsizeof(kept[-1]) + 100)
