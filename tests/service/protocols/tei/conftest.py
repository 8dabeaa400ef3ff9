"""A store whose default model has prompts, beside one without tokenizer and one of words alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from models.artifacts.export import export
from tests.golden_cases import case, write_checkpoint, write_json, write_tiny_bert
from tests.served import Served, serving
from tests.static_golden import static_case

PROMPTS = {"query": "a b ", "passage": "c "}


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bert` with prompts, none the default; `prompted`, the same with one; `llama` reads ids; `words` is static."""
    folder = tmp_path_factory.mktemp("tei")
    for name, default in (("bert", None), ("prompted", "query")):
        checkpoint = write_tiny_bert(folder / "checkpoints" / name, pooling="mean")
        write_json(
            checkpoint / "config_sentence_transformers.json", {"prompts": PROMPTS, "default_prompt_name": default}
        )
        export(checkpoint, folder / "store" / name)
    export(write_checkpoint(case("input_llama"), folder / "checkpoints/llama"), folder / "store/llama")
    export(static_case("model2vec").folder, folder / "store/words")
    return folder / "store"


@pytest.fixture(scope="session")
def served(store: Path) -> Iterator[Served]:
    """All four, `bert` the default; limits small enough to reach."""
    with serving(
        store, default_model="bert", max_body_bytes=20_000, max_inputs=8, max_request_tokens=400, max_batch_tokens=64
    ) as service:
        yield service
