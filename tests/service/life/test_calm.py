"""The event loop's thread yields to runs while more comes than can be done, and at no other time."""

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.catalog import Catalog
from service.life import calm

LINUX = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has the policy")


def catalog(*overloaded: bool) -> Catalog:
    """A model whose graphs are so."""
    batchers = {str(index): SimpleNamespace(overloaded=each) for index, each in enumerate(overloaded)}
    return cast(Catalog, SimpleNamespace(models={"a": SimpleNamespace(batchers=batchers)}))


def policy() -> int:
    """Of the thread that asks."""
    return os.sched_getscheduler(0)


@LINUX
def test_the_thread_yields_while_it_is_so_and_those_it_started_meanwhile_do_not_stay_so() -> None:
    seen: list[int] = []

    async def watch() -> None:
        found: Any = catalog(False, False)
        task = asyncio.create_task(calm.run(found, 0.001))
        with ThreadPoolExecutor(1) as pool:
            for overloaded in (False, True, False):
                found.models["a"].batchers["1"].overloaded = overloaded
                await asyncio.sleep(0.05)
                seen.extend((policy(), pool.submit(policy).result() if seen else policy()))
        task.cancel()

    asyncio.run(watch())

    assert seen == [os.SCHED_OTHER] * 2 + [os.SCHED_BATCH] * 2 + [os.SCHED_OTHER] * 2


@LINUX
@pytest.mark.parametrize("chosen", ["SCHED_BATCH", "SCHED_IDLE"])
def test_a_policy_that_was_chosen_for_it_is_kept(chosen: str) -> None:
    seen: list[int] = []

    async def watch() -> None:
        found: Any = catalog(True)
        os.sched_setscheduler(0, getattr(os, chosen), os.sched_param(0))
        task = asyncio.create_task(calm.run(found, 0.001))
        for overloaded in (True, False):
            found.models["a"].batchers["0"].overloaded = overloaded
            await asyncio.sleep(0.05)
            seen.append(policy())
        task.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(watch()))
    thread.start()
    thread.join()

    assert seen == [getattr(os, chosen)] * 2


def test_where_it_is_forbidden_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", forbidden, raising=False)

    async def watch() -> bool:
        task = asyncio.create_task(calm.run(catalog(True), 0.001))
        await asyncio.sleep(0.02)
        running = not task.done()
        task.cancel()
        return running

    assert asyncio.run(watch())


def test_one_graph_of_one_model_is_enough() -> None:
    assert calm.overloaded(catalog(False, True))
    assert not calm.overloaded(catalog(False, False))
    assert not calm.overloaded(catalog())
