"""What several test modules share because it is dear: the demo checkpoint, exported once a run."""

import os
from pathlib import Path

import pytest

from models.artifacts.export import export
from tests.minilm_golden import checkpoint

WORKERS_PER_CORE = 2  # tests of real servers wait half of their time: -n 2 kept two cores busy for 0.8 of one


@pytest.hookimpl(optionalhook=True)  # the clients' environment has no xdist
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the processes of `-n auto`."""
    return WORKERS_PER_CORE * len(os.sched_getaffinity(0))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--save-table", type=Path, help="write what parity or the clients showed to this Markdown file")


@pytest.fixture(scope="session")
def minilm_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that holds the demo model under the name `minilm`."""
    store = tmp_path_factory.mktemp("minilm")
    export(checkpoint(), store / "minilm")
    return store
