"""The event loops of these tests: the server is tried on uvloop, as it runs in production, and on asyncio's own."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

RAW = (
    "test_server.py",
    "test_framing.py",
    "test_connection_ends.py",
)  # what they test differs with the loop's transports


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops of each test."""
    loops = {"uvloop": uvloop.new_event_loop}
    return loops | {"asyncio": asyncio.new_event_loop} if item.path.name in RAW else loops
