"""The event loops of these tests: the server is tried on uvloop, as it runs in production, and on asyncio's own.

On asyncio's `make test` runs an even part of test_server.py and test_framing.py, `make test-all` every test.
"""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

RAW = (
    "test_server.py",
    "test_framing.py",
    "test_connection_ends.py",
)  # what they test differs with the loop's transports
WHOLE = "test_connection_ends.py"  # here most of all
EVERY = 5


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops of each test."""
    loops = {"uvloop": uvloop.new_event_loop}
    return loops | {"asyncio": asyncio.new_event_loop} if item.path.name in RAW else loops


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    second = [item for item in items if item.path.name in RAW and item.name.partition("[")[2].startswith("asyncio")]
    for number, item in enumerate(each for each in second if each.path.name != WHOLE):
        if number % EVERY:
            item.add_marker("sweep")
