"""The server that pages of the documentation talk to, one a process of the tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import DEMO, MODELS, Server, copy_store, environment, free_port, serving


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo model, the default, and the random reranker."""
    missing = [name for name, folder in MODELS.items() if not (folder / "card.json").is_file()]
    assert not missing, f"{' and '.join(missing)} are not exported: make test and make docs-test export them"
    folder = tmp_path_factory.mktemp("shared")
    copy_store(folder / "models/store")
    variables = environment(
        PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin",
        INLAY_DEFAULT_MODEL=DEMO,
        INLAY_PORT=str(free_port()),
        INLAY_GRPC_PORT=str(free_port()),
    )
    with serving("exec inlay serve", folder, variables) as server:
        yield server
