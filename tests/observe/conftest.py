"""Fixtures of the observability tests: a model store, and the programs of Prometheus."""

import shutil
from pathlib import Path

import pytest

from models.artifacts.export import export
from tests.golden_cases import case, write_checkpoint, write_tiny_bert


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with `bert`, which takes text, and `llama`, which takes token ids."""
    folder = tmp_path_factory.mktemp("tiny")
    export(write_tiny_bert(folder / "checkpoints/bert", pooling="mean"), folder / "store/bert")
    export(write_checkpoint(case("input_llama"), folder / "checkpoints/llama"), folder / "store/llama")
    return folder / "store"


@pytest.fixture(scope="session")
def promtool() -> str:
    """The path of promtool."""
    program = shutil.which("promtool")
    assert program, "promtool is not installed: on Debian, apt-get install prometheus (and stop the service it starts)"
    return program


@pytest.fixture(scope="session")
def prometheus() -> str:
    """The path of the Prometheus server."""
    program = shutil.which("prometheus")
    assert program, (
        "prometheus is not installed: on Debian, apt-get install prometheus (and stop the service it starts)"
    )
    return program
