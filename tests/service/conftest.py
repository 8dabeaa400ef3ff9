"""A store of two tiny models and a service over it, shared by the protocol tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from models.artifacts.export import export
from tests.golden_cases import case, write_checkpoint, write_tiny_bert
from tests.served import Served, serving


@pytest.fixture(scope="session")
def tiny_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bert`, which reads text and pools, and `llama`, which reads ids and rotates."""
    folder = tmp_path_factory.mktemp("tiny")
    export(write_tiny_bert(folder / "checkpoints/bert", pooling="mean"), folder / "store/bert")
    export(write_checkpoint(case("input_llama"), folder / "checkpoints/llama"), folder / "store/llama")
    return folder / "store"


@pytest.fixture(scope="session")
def served(tiny_store: Path) -> Iterator[Served]:
    """Both models, `bert` the default; a body limit small enough to reach."""
    with serving(tiny_store, default_model="bert", max_body_bytes=100_000, max_inputs=64) as service:
        yield service
