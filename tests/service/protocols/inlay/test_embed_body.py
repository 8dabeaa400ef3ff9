"""The JSON body of POST /embed: fields, spellings and refusals in the caller's words."""

import sys
import tracemalloc
from typing import Any, get_args

import orjson
import pytest
from pydantic import BaseModel, ValidationError

from service.embedding.pooling import POOLINGS
from service.embedding.requests import EmbedRequest
from service.errors import BadRequest, EmptyRequest, Malformed
from service.protocols.inlay.embed_body import (
    EXAMPLES,
    POOLING_NAMES,
    EmbedBody,
    Wanted,
    explain,
    packed,
    read,
)

REFUSALS: list[tuple[bytes, str]] = [
    (b"[]", "the body is a list of 0; send a JSON object with inputs; also allowed: model, outputs"),
    (b"{}", "inputs is missing: send it; also allowed: model, outputs"),
    (b'{"input": "a"}', '"input" is not known here; did you mean "inputs"?'),
    (b'{"inputs": "a", "normalise": true}', '"normalise" is not known here; did you mean "normalize"?'),
    (b'{"inputs": "a", "user": "me"}', '"user" is not known here; allowed: inputs, model'),
    (b'{"inputs": "a", "dimensions": 0}', "dimensions is 0; allowed: an integer from 1"),
    (b'{"inputs": "a", "dimensions": true}', "dimensions is true; allowed: an integer from 1"),
    (b'{"inputs": "a", "dimensions": 2.0}', "dimensions is 2.0; allowed: an integer from 1"),
    (b'{"inputs": "a", "truncate": "yes"}', 'truncate is "yes"; allowed: true cuts'),
    (b'{"inputs": "a", "truncate": 1}', "truncate is 1; allowed: true cuts"),
    (b'{"inputs": "a", "truncation_direction": "up"}', 'truncation_direction is "up"; allowed: Right keeps'),
    (b'{"inputs": "a", "pooling": "sum"}', 'pooling is "sum"; allowed: one of cls, mean'),
    (b'{"inputs": "a", "dtype": "int8"}', 'dtype is "int8"; allowed: float32, float16 or bfloat16'),
    (b'{"inputs": "a", "outputs": []}', "outputs is a list of 0; allowed: one name or a list"),
    (b'{"inputs": "a", "outputs": ["x", 1]}', "outputs[1] is 1; allowed: one name or a list"),
    (b'{"inputs": "a", "encoding_format": "hex"}', 'encoding_format is "hex"; allowed: float or base64'),
    (b'{"inputs": "a", "model": 5}', "model is 5; allowed: a model's name"),
]
BROKEN = [b"", b"{", b'{"inputs": "a"', b'{"inputs": NaN}', b"\xff\xfe", b'{"inputs": "\\ud800"}', b"inputs=a"]


def request(**fields: Any) -> EmbedRequest:
    return read(orjson.dumps({"inputs": "a"} | fields))[0]


@pytest.mark.parametrize(("body", "message"), REFUSALS)
def test_a_wrong_field_is_named_with_what_is_allowed(body: bytes, message: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        read(body)
    assert refusal.value.message.startswith(message)


@pytest.mark.parametrize("body", BROKEN)
def test_a_body_that_is_not_json_is_refused_as_such(body: bytes) -> None:
    with pytest.raises(Malformed, match="the body is not JSON"):
        read(body)


@pytest.mark.parametrize("member", ["outputs", "unknown", "model"])
@pytest.mark.parametrize("depth", [253, 254, 300, 1000])
def test_a_nest_deeper_than_json_is_written_is_the_senders_fault(member: str, depth: int) -> None:
    body = f'{{"inputs": "a", "{member}": {"[" * depth}{"]" * depth}}}'.encode()
    with pytest.raises(BadRequest):
        read(body)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_of_the_documentation_is_accepted(name: str) -> None:
    assert read(orjson.dumps(EXAMPLES[name]))[0].inputs


def test_fields_left_out_leave_the_choice_to_model_and_server() -> None:
    assert request() == EmbedRequest(request().inputs)


def test_null_is_as_good_as_left_out() -> None:
    empty = dict.fromkeys(("model", "outputs", "truncate", "normalize", "dimensions", "pooling", "prompt_name"))
    assert request(**empty) == request()


def test_one_output_may_be_named_without_a_list() -> None:
    assert request(outputs="rope_cos").outputs == request(outputs=["rope_cos"]).outputs == ("rope_cos",)


@pytest.mark.parametrize(
    ("spelling", "meaning"), [("Left", "left"), ("left", "left"), ("Right", "right"), ("right", "right")]
)
def test_both_spellings_of_the_truncation_direction_are_read(spelling: str, meaning: str) -> None:
    assert request(truncation_direction=spelling).truncation_direction == meaning


def test_every_pooling_has_a_name_on_the_wire() -> None:
    assert {request(pooling=name).pooling for name in get_args(POOLING_NAMES)} == set(POOLINGS)


def test_the_spelling_of_text_embeddings_inference_is_read() -> None:
    assert request(pooling="last-token").pooling == "lasttoken"


def test_base64_is_asked_for_beside_the_request() -> None:
    assert read(b'{"inputs": "a", "encoding_format": "base64"}')[1] == Wanted("base64", dtype_sent=False, bare=True)
    assert read(b'{"inputs": [[1]], "dtype": "float32"}')[1] == Wanted("float", dtype_sent=True, bare=False)


def test_an_empty_batch_is_left_to_the_encoder_to_refuse() -> None:
    assert issubclass(EmptyRequest, BadRequest)
    assert request(inputs=[]).inputs == []


class Two(BaseModel):
    """Two members that must be there, one that may."""

    first: int
    second: int
    third: int = 3


class Free(BaseModel):
    """None that must be there."""

    only: int = 1


EXPLAINED: list[tuple[type[BaseModel], Any, str]] = [
    (Two, {}, "first, second are missing: send them; also allowed: third"),
    (Two, {"first": 1}, "second is missing: send it; also allowed: first, third"),
    (Two, 5, "the body is 5; send a JSON object with first, second; also allowed: third"),
    (Free, [], "the body is a list of 0; send a JSON object; allowed: only"),
]


@pytest.mark.parametrize(("model", "value", "message"), EXPLAINED)
def test_what_must_be_sent_is_told_from_what_may(model: type[BaseModel], value: Any, message: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        model.model_validate(value)
    assert explain(refusal.value, model) == message


def test_every_field_says_what_is_allowed() -> None:
    described = {name for name, field in EmbedBody.model_fields.items() if field.description}
    assert described == set(EmbedBody.model_fields) - {"inputs"}  # inputs has words of its own


def test_options_that_are_kept_take_no_more_memory_than_their_bytes() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = [packed({"dimensions": number}) for number in range(1000)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1000 * (sys.getsizeof(kept[-1]) + 100)
