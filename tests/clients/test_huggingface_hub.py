"""Hugging Face's InferenceClient, which asks POST / for vectors, similarities and labels alike."""

import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from tests.clients.conftest import Server
from tests.clients.ingestion import assert_nothing_is_refused
from tests.clients.judged import GOLDEN, INPUTS, TEXTS, UNIT, assert_vectors, furthest, similarities
from tests.clients.ranked import post

CLIENT = "huggingface-hub"


@pytest.fixture
def client(server: Server) -> InferenceClient:
    return InferenceClient(model=server.url)


def test_feature_extraction_of_one_text_and_of_many(client: InferenceClient) -> None:
    assert_vectors(client.feature_extraction(INPUTS[0]), TEXTS[:1])
    assert_vectors(client.feature_extraction(INPUTS))


def test_feature_extraction_with_every_option(client: InferenceClient) -> None:
    case = GOLDEN["over_257_left"]
    got = client.feature_extraction(case.input, normalize=True, truncate=True, truncation_direction="left")
    assert_vectors(got, [case])
    raw = client.feature_extraction(case.input, normalize=False, truncate=True, truncation_direction="left")
    assert furthest(raw[0], case.arrays["pooled"]) <= 3 * UNIT


def test_similarities_of_a_sentence_to_others(client: InferenceClient) -> None:
    others = [GOLDEN[f"sentence_{number:02}"] for number in range(4)]
    got = client.sentence_similarity(GOLDEN["fox"].input, other_sentences=[case.input for case in others])
    assert got == pytest.approx(similarities(GOLDEN["fox"], others), abs=2 * UNIT)


def test_an_error_arrives_as_its_error(client: InferenceClient) -> None:
    with pytest.raises(HfHubHTTPError) as caught:
        client.feature_extraction(GOLDEN["over_257"].input, truncate=False)
    assert caught.value.response.status_code == 422
    with pytest.raises(HfHubHTTPError):
        client.feature_extraction("x", prompt_name="there is none")


async def test_the_async_client(server: Server) -> None:
    async with AsyncInferenceClient(model=server.url) as client:
        assert_vectors(await client.feature_extraction(INPUTS))


@pytest.mark.clients  # takes half a minute of two cores
def test_ingestion_from_many_threads_is_served(patient: Server) -> None:
    client = InferenceClient(model=patient.url)
    assert_nothing_is_refused(patient, lambda texts: client.feature_extraction(list(texts)))


@pytest.mark.clients
def test_texts_are_classified(scorers: Server) -> None:
    client = InferenceClient(model=scorers.url)
    [label] = client.text_classification("a b")
    assert (label.label, label.score) == ("relevance", post(scorers, "/predict", inputs="a b")[0]["score"])
    [raw] = client.text_classification("a b", function_to_apply="none", top_k=1)
    assert raw.score == post(scorers, "/predict", inputs="a b", raw_scores=True)[0]["score"]
