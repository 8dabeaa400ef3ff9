"""mem0's embedders of OpenAI, Ollama and LM Studio, and a memory over one of them."""

from pathlib import Path
from typing import Any

import pytest
from mem0 import Memory
from mem0.utils.factory import EmbedderFactory

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, TEXTS, WIDTH, assert_vectors

CLIENT = "mem0ai"
pytestmark = pytest.mark.clients


def configured(server: Server, provider: str) -> dict[str, Any]:
    """A provider's part of the configuration."""
    base = {
        "openai": {"openai_base_url": f"{server.url}/v1", "api_key": "any"},
        "ollama": {"ollama_base_url": server.url},
        "lmstudio": {"lmstudio_base_url": f"{server.url}/v1"},
    }[provider]
    return base | {"model": MODEL, "embedding_dims": WIDTH}


@pytest.mark.parametrize("provider", ["openai", "ollama", "lmstudio"])
def test_texts_of_every_provider(server: Server, provider: str) -> None:
    embedder = EmbedderFactory.create(provider, configured(server, provider), {})
    assert_vectors(embedder.embed_batch(INPUTS))
    assert_vectors([embedder.embed(INPUTS[0])], TEXTS[:1])


def test_a_memory_is_filled_and_searched(server: Server, tmp_path: Path) -> None:
    store = {"path": str(tmp_path / "qdrant"), "embedding_model_dims": WIDTH}
    memory = Memory.from_config(
        {
            "embedder": {"provider": "openai", "config": configured(server, "openai")},
            "vector_store": {"provider": "qdrant", "config": store},
            "llm": {"provider": "openai", "config": {"api_key": "any"}},
            "history_db_path": str(tmp_path / "history.db"),
        }
    )
    for text in INPUTS:
        memory.add(text, user_id="someone", infer=False)  # `infer` asks a language model what is worth keeping
    found = memory.search(INPUTS[1], filters={"user_id": "someone"})["results"]
    assert found[0]["memory"] == INPUTS[1]
