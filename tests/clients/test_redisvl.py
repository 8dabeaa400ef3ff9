"""RedisVL's vectorizer of OpenAI."""

import pytest
from redisvl.utils.vectorize import OpenAITextVectorizer

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, TEXTS, WIDTH, assert_vectors

CLIENT = "redisvl"
pytestmark = pytest.mark.clients


def test_texts_and_a_text(server: Server) -> None:
    vectorizer = OpenAITextVectorizer(model=MODEL, api_config={"api_key": "any", "base_url": f"{server.url}/v1"})
    assert vectorizer.dims == WIDTH
    assert_vectors(vectorizer.embed_many(INPUTS))
    assert_vectors([vectorizer.embed(INPUTS[0])], TEXTS[:1])
