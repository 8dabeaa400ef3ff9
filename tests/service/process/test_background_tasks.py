"""A background task goes on for as long as its process; one that ends is logged."""

import asyncio
import logging
from pathlib import Path

import pytest

from service.process.background_tasks import background_tasks, repeated
from tests.served import serving_here


async def fails() -> None:
    raise ZeroDivisionError("unforeseen")


async def returns() -> None: ...


async def lasts() -> None:
    await asyncio.get_running_loop().create_future()


async def test_task_that_ends_is_logged_by_name(tiny_store: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving_here(tiny_store, default_model="bert") as here:
        with caplog.at_level(logging.CRITICAL):
            async with background_tasks(here.context, fails(), returns(), lasts()):
                for _ in range(5):
                    await asyncio.sleep(0)
    assert [each.message for each in caplog.records] == [
        "the background task fails ended and is not started again: restart this process",
        "the background task returns ended and is not started again: restart this process",
    ]
    assert "ZeroDivisionError: unforeseen" in caplog.text


async def test_lasting_fault_of_a_look_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    ends, looked = [ValueError("a"), ValueError("a"), None, ValueError("a"), ValueError("b")], asyncio.Event()

    async def look() -> None:
        if not ends:
            looked.set()
        elif error := ends.pop(0):
            raise error

    task = asyncio.create_task(repeated(look, 0, "looking"))
    await asyncio.wait_for(looked.wait(), 20)
    task.cancel()
    assert [each.message for each in caplog.records] == ["looking failed"] * 3
