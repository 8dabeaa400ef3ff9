"""A chore goes on for as long as its process; one that ends is told."""

import asyncio
import logging
from pathlib import Path

import pytest

from models.artifacts.export import export
from service.embedding.pipeline import Encoder
from service.observability.metrics import Metrics
from service.process.background_tasks import background_tasks
from service.registry.registry import open_catalog
from service.settings import Settings
from tests.golden_cases import write_tiny_bert


async def fails() -> None:
    raise ZeroDivisionError("what no one foresaw")


async def returns() -> None: ...


async def lasts() -> None:
    await asyncio.get_running_loop().create_future()


async def test_a_chore_that_ends_is_told_by_its_name_and_one_that_is_stopped_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings, metrics = Settings(store=tmp_path / "store", device="cpu"), Metrics()
    export(write_tiny_bert(tmp_path / "a", pooling="mean"), tmp_path / "store/a")
    encoder = Encoder(open_catalog(settings, metrics), settings)
    with caplog.at_level(logging.ERROR):
        async with background_tasks(settings, encoder, metrics, fails(), returns(), lasts()):
            for _ in range(5):
                await asyncio.sleep(0)
    assert [each.message for each in caplog.records] == [
        "fails ended and is not begun again: start this process anew",
        "returns ended and is not begun again: start this process anew",
    ]
    assert "ZeroDivisionError: what no one foresaw" in caplog.text
