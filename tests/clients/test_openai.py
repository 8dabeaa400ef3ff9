"""OpenAI's own client: embeddings, models, errors and retries."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.clients.conftest import Server, Start
from tests.clients.ingestion import assert_nothing_is_refused
from tests.clients.judged import GOLDEN, IDS, INPUTS, MODEL, TEXTS, TOKENS, UNIT, assert_vectors, furthest

CLIENT = "openai"


@pytest.fixture
def client(server: Server) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)


def vectors(answer: openai.types.CreateEmbeddingResponse) -> list[list[float]]:
    assert [item.index for item in answer.data] == list(range(len(answer.data)))
    assert {item.object for item in answer.data} == {"embedding"}
    return [item.embedding for item in answer.data]


def test_texts_in_the_base64_it_asks_for_by_default(client: OpenAI) -> None:
    answer = client.embeddings.create(model=MODEL, input=INPUTS)
    assert_vectors(vectors(answer))
    assert (answer.object, answer.model) == ("list", MODEL)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (TOKENS, TOKENS)


def test_the_default_and_float_answers_are_the_same_float32(client: OpenAI) -> None:
    by_default = vectors(client.embeddings.create(model=MODEL, input=INPUTS))
    floats = vectors(client.embeddings.create(model=MODEL, input=INPUTS, encoding_format="float"))
    np.testing.assert_array_equal(np.float32(by_default), np.float32(floats))


def test_base64_asked_for_by_name_is_left_to_the_caller(client: OpenAI) -> None:
    answer = client.embeddings.create(model=MODEL, input="hello world", encoding_format="base64")
    assert isinstance(answer.data[0].embedding, str)


def test_one_text_one_list_of_ids_and_many_lists(client: OpenAI) -> None:
    assert_vectors(vectors(client.embeddings.create(model=MODEL, input=INPUTS[0])), TEXTS[:1])
    assert_vectors(vectors(client.embeddings.create(model=MODEL, input=IDS[0])), TEXTS[:1])
    assert_vectors(vectors(client.embeddings.create(model=MODEL, input=IDS)))


def test_input_type_and_types_of_vectors_in_its_extra_body(client: OpenAI) -> None:
    extra = {"input_type": "passage", "output_dtype": "ubinary"}
    answer = client.embeddings.create(model=MODEL, input=INPUTS, encoding_format="float", extra_body=extra)
    expected = np.packbits(np.stack([case.unit for case in TEXTS]) > 0, axis=1)
    np.testing.assert_array_equal(vectors(answer), expected)
    extra = {"input_type": "query"}  # of a model without prompts
    assert_vectors(vectors(client.embeddings.create(model=MODEL, input=INPUTS, extra_body=extra)))


def test_dimensions_cut_then_normalise(client: OpenAI) -> None:
    case = GOLDEN["fox"]
    [vector] = vectors(client.embeddings.create(model=MODEL, input=case.input, dimensions=128, user="somebody"))
    assert furthest(np.array(vector), case.arrays["dimensions_128"]) <= UNIT


@pytest.mark.parametrize("name", ["chinese", "emoji", "accents", "newlines"])
def test_texts_of_every_script(client: OpenAI, name: str) -> None:
    assert_vectors(vectors(client.embeddings.create(model=MODEL, input=GOLDEN[name].input)), [GOLDEN[name]])


def test_a_raw_answer_has_a_request_id_and_a_parsed_one_too(client: OpenAI) -> None:
    raw = client.embeddings.with_raw_response.create(
        model=MODEL, input=INPUTS, extra_headers={"x-request-id": "mine-1"}
    )
    assert raw.request_id == "mine-1"
    assert client.models.list()._request_id


async def test_the_async_client(server: Server) -> None:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
        assert_vectors(vectors(await client.embeddings.create(model=MODEL, input=INPUTS)))
        floats = await client.embeddings.create(model=MODEL, input=INPUTS, encoding_format="float")
        assert_vectors(vectors(floats))
        assert MODEL in [model.id async for model in client.models.list()]


def test_models_are_listed_and_retrieved(client: OpenAI) -> None:
    listed, *others = client.models.list().data
    assert (listed.id, listed.object) == (MODEL, "model")
    assert isinstance(listed.created, int)
    assert client.models.retrieve(MODEL) == listed
    assert {other.model_dump()["parent"] for other in others} <= {MODEL}  # its further names


def test_an_unknown_model_is_a_not_found_error(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model="text-embedding-3-small", input="x")
    error = caught.value
    assert (error.status_code, error.code, error.param) == (404, "model_not_found", "model")
    assert MODEL in error.message
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("text-embedding-3-small")


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"input": "x", "dimensions": 0}, "dimensions", "dimensions"),
        ({"input": "x", "dimensions": 385}, "dimensions", "384"),
        ({"input": []}, "input", "input"),
        ({"input": [[101, 40000]]}, "input", "30521"),
    ],
)
def test_a_wrong_argument_is_a_bad_request_error_that_names_it(
    client: OpenAI, fields: dict[str, object], param: str, said: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=MODEL, **fields)  # type: ignore[arg-type]
    error = caught.value
    assert (error.status_code, error.type) == (400, "invalid_request_error")
    assert said in error.message
    assert error.param == param
    assert error.request_id


@pytest.mark.clients  # takes half a minute of two cores
def test_ingestion_from_many_threads_is_served(patient: Server) -> None:
    with OpenAI(base_url=f"{patient.url}/v1", api_key="any") as client:
        assert_nothing_is_refused(
            patient, lambda texts: vectors(client.embeddings.create(model=MODEL, input=list(texts)))
        )


LONG_TEXTS = 32
LONG = GOLDEN["long"].input


def refused(client: OpenAI, meanwhile: "Future[Any]") -> openai.RateLimitError:
    """The refusal that a small request meets while long ones are answered."""
    while not meanwhile.done():
        try:
            client.embeddings.create(model=MODEL, input="hello world")
        except openai.RateLimitError as error:
            return error
    raise AssertionError(f"nothing was refused while {LONG_TEXTS} long texts were embedded")


@pytest.mark.clients  # takes seconds: it waits as long as it is told to
def test_full_queue_is_a_rate_limit_error_and_a_retry_succeeds(start: Start) -> None:
    requests: list[httpx.Request] = []
    with (
        start(max_queue_tokens=1) as crowded,
        ThreadPoolExecutor(1) as other,
        httpx.Client(event_hooks={"request": [requests.append]}) as http,
        OpenAI(base_url=f"{crowded.url}/v1", api_key="any", max_retries=0) as impatient,
        OpenAI(base_url=f"{crowded.url}/v1", api_key="any", max_retries=100) as background,
        OpenAI(base_url=f"{crowded.url}/v1", api_key="any", max_retries=100, http_client=http) as patient,
    ):
        long = other.submit(
            background.embeddings.create, model=MODEL, input=[f"{number} {LONG}" for number in range(LONG_TEXTS)]
        )
        refusal = refused(impatient, long)
        assert (refusal.status_code, refusal.type) == (429, "rate_limit_exceeded")
        headers = refusal.response.headers
        assert 0 < int(headers["retry-after-ms"]) <= 1000 * int(headers["retry-after"])

        assert_vectors(vectors(patient.embeddings.create(model=MODEL, input=INPUTS)))
        assert [int(request.headers["x-stainless-retry-count"]) for request in requests] == list(range(len(requests)))
        assert len(vectors(long.result())) == LONG_TEXTS
