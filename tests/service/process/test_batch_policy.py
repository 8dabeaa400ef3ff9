"""The event loop's thread yields to runs while more comes than can be done, and at no other time."""

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.process import batch_policy as calm
from service.registry.registry import Catalog

LINUX = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has the policy")


class Graph:
    """A batcher that tells how often it was asked whether it is overloaded."""

    def __init__(self, overloaded: bool) -> None:
        self._overloaded = overloaded
        self.looks = 0

    @property
    def overloaded(self) -> bool:
        """As it was told to be."""
        self.looks += 1
        return self._overloaded

    async def becomes(self, overloaded: bool) -> None:
        """Be so, until that has been seen and acted on."""
        self._overloaded, looks = overloaded, self.looks
        async with asyncio.timeout(10):
            while self.looks < looks + 2:
                await asyncio.sleep(0)


def catalog(*graphs: Graph) -> Catalog:
    """A model of these."""
    batchers = {str(index): graph for index, graph in enumerate(graphs)}
    return cast(Catalog, SimpleNamespace(models={"a": SimpleNamespace(batchers=batchers)}))


def policy() -> int:
    """Of the thread that asks."""
    return os.sched_getscheduler(0)


@LINUX
def test_the_thread_yields_while_it_is_so_and_those_it_started_meanwhile_do_not_stay_so() -> None:
    seen: list[int] = []

    async def watch() -> None:
        graph = Graph(False)
        task = asyncio.create_task(calm.run(catalog(Graph(False), graph), 0))
        with ThreadPoolExecutor(1) as pool:
            for overloaded in (False, True, False):
                await graph.becomes(overloaded)
                seen.append(policy())
                if overloaded or len(seen) > 1:  # its thread starts under overload
                    seen.append(pool.submit(policy).result())
        task.cancel()

    asyncio.run(watch())

    assert seen == [os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_BATCH, os.SCHED_OTHER, os.SCHED_OTHER]


@LINUX
@pytest.mark.parametrize("chosen", ["SCHED_BATCH", "SCHED_IDLE"])
def test_a_policy_that_was_chosen_for_it_is_kept(chosen: str) -> None:
    seen: list[int] = []

    async def watch() -> None:
        graph = Graph(False)
        os.sched_setscheduler(0, getattr(os, chosen), os.sched_param(0))
        task = asyncio.create_task(calm.run(catalog(graph), 0))
        for overloaded in (True, False):
            await graph.becomes(overloaded)
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
        graph = Graph(False)
        task = asyncio.create_task(calm.run(catalog(graph), 0))
        await graph.becomes(True)
        await graph.becomes(False)
        running = not task.done()
        task.cancel()
        return running

    assert asyncio.run(watch())


def test_one_graph_of_one_model_is_enough() -> None:
    assert calm.overloaded(catalog(Graph(False), Graph(True)))
    assert not calm.overloaded(catalog(Graph(False), Graph(False)))
    assert not calm.overloaded(catalog())
