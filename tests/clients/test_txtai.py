"""txtai's index, whose vectors come through LiteLLM."""

import pytest
from txtai import Embeddings

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, UNIT, assert_vectors

CLIENT = "txtai"
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore::UserWarning")]  # LiteLLM's own


def test_an_index_is_filled_and_searched(server: Server) -> None:
    reached = {"api_base": f"{server.url}/v1", "api_key": "any"}
    index = Embeddings(path=f"openai/{MODEL}", method="litellm", vectors=reached, content=True)
    index.index(INPUTS)
    assert_vectors(index.batchtransform(INPUTS))
    [best] = index.search(INPUTS[1], 1)
    assert best["text"] == INPUTS[1]
    assert best["score"] == pytest.approx(1, abs=4 * UNIT)
