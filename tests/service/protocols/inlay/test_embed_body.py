"""The JSON body of POST /embed: fields, spellings and errors."""

from typing import Any, get_args

import orjson
import pytest

from service.embedding.pooling import POOLINGS
from service.embedding.requests import EmbedRequest
from service.errors import BadRequest, EmptyRequest, Malformed
from service.protocols.inlay import DATA
from service.protocols.inlay.embed import AnswerForm, EmbedBody, read
from service.protocols.inlay.options import POOLING_NAMES
from tests.embed_requests import embed_request

INVALID: list[tuple[bytes, str]] = [
    (b"[]", "the body is a list of 0; send a JSON object with inputs; also allowed: model, outputs"),
    (b"{}", "inputs is missing: send it; also allowed: model, outputs"),
    (b'{"input": "a"}', 'input is not known here; did you mean "inputs"?'),
    (b'{"inputs": "a", "normalise": true}', 'normalise is not known here; did you mean "normalize"?'),
    (b'{"inputs": "a", "user": "me"}', "user is not known here; allowed: inputs, model"),
    (b'{"inputs": "a", "dimensions": 0}', "dimensions is 0; allowed: an integer from 1"),
    (b'{"inputs": "a", "dimensions": true}', "dimensions is true; allowed: an integer from 1"),
    (b'{"inputs": "a", "dimensions": 2.0}', "dimensions is 2.0; allowed: an integer from 1"),
    (b'{"inputs": "a", "truncate": "yes"}', 'truncate is "yes"; allowed: true cuts'),
    (b'{"inputs": "a", "truncate": 1}', "truncate is 1; allowed: true cuts"),
    (b'{"inputs": "a", "truncation_direction": "up"}', 'truncation_direction is "up"; allowed: Right keeps'),
    (b'{"inputs": "a", "pooling": "sum"}', 'pooling is "sum"; allowed: one of cls, mean'),
    (
        b'{"inputs": "a", "dtype": "int4"}',
        'dtype is "int4"; allowed: float32, float16 or bfloat16; of sentence vectors also int8',
    ),
    (b'{"inputs": "a", "outputs": []}', "outputs is a list of 0; allowed: one name or a list"),
    (b'{"inputs": "a", "outputs": ["x", 1]}', "outputs[1] is 1; allowed: one name or a list"),
    (b'{"inputs": "a", "encoding_format": "hex"}', 'encoding_format is "hex"; allowed: float or base64'),
    (b'{"inputs": "a", "model": 5}', "model is 5; allowed: a model's name"),
]
BROKEN = [b"", b"{", b'{"inputs": "a"', b'{"inputs": NaN}', b"\xff\xfe", b'{"inputs": "\\ud800"}', b"inputs=a"]


def request(**fields: Any) -> EmbedRequest:
    return read(orjson.dumps({"inputs": "a"} | fields))[0]


@pytest.mark.parametrize(("body", "message"), INVALID)
def test_names_the_wrong_field_and_what_is_allowed(body: bytes, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(body)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("body", BROKEN)
def test_rejects_body_that_is_not_json(body: bytes) -> None:
    with pytest.raises(Malformed, match="the body is not JSON"):
        read(body)


@pytest.mark.parametrize("member", ["outputs", "unknown", "model"])
@pytest.mark.parametrize("depth", [253, 254, 300, 1000])
def test_rejects_deeply_nested_body(member: str, depth: int) -> None:
    body = f'{{"inputs": "a", "{member}": {"[" * depth}{"]" * depth}}}'.encode()
    with pytest.raises(BadRequest):
        read(body)


EXAMPLES = DATA.operations["POST /embed"]["examples"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_accepts_every_documented_example(name: str) -> None:
    assert read(orjson.dumps(EXAMPLES[name]))[0].inputs


def test_missing_fields_keep_the_defaults() -> None:
    assert request() == embed_request(request().inputs)


def test_null_means_missing() -> None:
    empty = dict.fromkeys(("model", "outputs", "truncate", "normalize", "dimensions", "pooling", "prompt_name"))
    assert request(**empty) == request()


def test_accepts_one_output_without_a_list() -> None:
    one, several = request(outputs="rope_cos").options, request(outputs=["rope_cos"]).options
    assert one.outputs == several.outputs == ("rope_cos",)


@pytest.mark.parametrize(
    ("spelling", "meaning"), [("Left", "left"), ("left", "left"), ("Right", "right"), ("right", "right")]
)
def test_reads_both_spellings_of_truncation_direction(spelling: str, meaning: str) -> None:
    assert request(truncation_direction=spelling).options.truncation_direction == meaning


def test_every_pooling_can_be_requested() -> None:
    assert {request(pooling=name).options.pooling for name in get_args(POOLING_NAMES)} == set(POOLINGS)


def test_reads_last_token_as_tei_spells_it() -> None:
    assert request(pooling="last-token").options.pooling == "lasttoken"


def test_returns_answer_form_beside_the_request() -> None:
    assert read(b'{"inputs": "a", "encoding_format": "base64"}')[1] == AnswerForm("base64", dtype_sent=False, bare=True)
    assert read(b'{"inputs": [[1]], "dtype": "float32"}')[1] == AnswerForm("float", dtype_sent=True, bare=False)


def test_leaves_an_empty_batch_to_the_pipeline() -> None:
    assert issubclass(EmptyRequest, BadRequest)
    assert request(inputs=[]).inputs == []


def test_every_field_has_a_description() -> None:
    described = {name for name, field in EmbedBody.model_fields.items() if field.description}
    assert described == set(EmbedBody.model_fields) - {"inputs"}  # inputs has errors of its own
