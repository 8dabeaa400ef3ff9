"""Ollama's own client: vectors, models, errors."""

import ollama
import pytest

from tests.clients.conftest import Server
from tests.clients.judged import GOLDEN, INPUTS, MODEL, TEXTS, TOKENS, UNIT, assert_vectors, furthest

CLIENT = "ollama"
pytestmark = pytest.mark.clients


@pytest.fixture
def client(server: Server) -> ollama.Client:
    return ollama.Client(host=server.url)


@pytest.mark.parametrize("name", [MODEL, f"{MODEL}:latest"])
def test_texts_of_both_routes(client: ollama.Client, name: str) -> None:
    answer = client.embed(model=name, input=INPUTS, options={"num_ctx": 256}, keep_alive="5m")
    assert_vectors(answer.embeddings)
    assert answer.prompt_eval_count == TOKENS
    assert_vectors([client.embeddings(model=name, prompt=INPUTS[0]).embedding], TEXTS[:1])


def test_dimensions_cut_then_normalise(client: ollama.Client) -> None:
    case = GOLDEN["fox"]
    [vector] = client.embed(model=MODEL, input=case.input, dimensions=128).embeddings
    assert furthest(vector, case.arrays["dimensions_128"]) <= UNIT


async def test_the_async_client(server: Server) -> None:
    client = ollama.AsyncClient(host=server.url)
    assert_vectors((await client.embed(model=MODEL, input=INPUTS)).embeddings)


def test_models_are_listed_and_described(client: ollama.Client) -> None:
    assert [model.model for model in client.list().models] == [MODEL]
    assert [model.model for model in client.ps().models] == [MODEL]
    shown = client.show(MODEL)
    assert shown.capabilities == ["embedding"]
    assert shown.details is not None
    assert shown.details.family == "bert"


def test_errors_have_their_status_and_message(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="no model 'nobody'") as caught:
        client.embed(model="nobody", input="a")
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="writes no texts") as caught:
        client.generate(model=MODEL, prompt="a")
    assert caught.value.status_code == 501
    with pytest.raises(ollama.ResponseError, match="tokens"):
        client.embed(model=MODEL, input="word " * 600, truncate=False)
