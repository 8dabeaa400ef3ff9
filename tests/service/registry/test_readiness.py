"""Readiness is a forward pass through every model, or proof that one succeeded just now."""

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from models.artifacts.export import export
from service.errors import StartError, Unavailable
from service.observability.metrics import Metrics
from service.registry import loading, readiness, warmup
from service.registry.readiness import Readiness
from service.registry.registry import ModelRegistry, open_registry
from service.scheduling.callers import ItemTimes
from service.settings import Settings
from tests.golden_cases import write_tiny_bert


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readiness")
    export(write_tiny_bert(folder / "bert", pooling="mean"), folder / "store/bert")
    return folder / "store"


@pytest.fixture
def registry(store: Path) -> ModelRegistry:
    return open_registry(Settings(store=store, device="cpu"), Metrics())


@pytest.fixture
def meddle(registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], list[str]]:
    """Call a function before each run of the engine; returns the list of graphs that ran."""
    engine, ran = registry.get("bert").engine, []
    run = type(engine).run

    def meddled(before: Callable[[], None]) -> list[str]:
        def each(self: object, graph: str, *arguments: object) -> object:
            ran.append(graph)
            before()
            return run(self, graph, *arguments)

        monkeypatch.setattr(type(engine), "run", each)
        return ran

    return meddled


def queue_one(batcher):
    """Put an item into the queue of a batcher, as work that waits for a run."""
    batcher.queue.add(None, 1, asyncio.get_running_loop().create_future(), 0.0, ItemTimes(), None)


async def test_ready_after_a_run_of_every_graph(registry, meddle):
    ran = meddle(lambda: None)
    await Readiness(registry.models).check()
    assert set(ran) >= set(registry.get("bert").batchers)


async def test_failing_model_is_not_ready_until_it_answers_again(registry, meddle, monkeypatch):
    monkeypatch.setattr(readiness, "VERDICT_SECONDS", 0.0)
    broken = [True]

    def fail() -> None:
        if broken[0]:
            raise RuntimeError("the card is gone")

    meddle(fail)
    verdict = Readiness(registry.models)
    with pytest.raises(Unavailable, match="bert fails on its first token"):
        await verdict.check()
    broken[0] = False
    await verdict.check()


async def test_hanging_model_is_not_ready(meddle, store, monkeypatch):
    monkeypatch.setattr(readiness, "WARMUP_SECONDS", 0.05)
    monkeypatch.setattr(loading, "INLINE_VALUES", 0)  # every run has its thread, as that of a large graph does
    registry = open_registry(Settings(store=store, device="cpu"), Metrics())
    held = threading.Event()
    meddle(lambda: held.wait(10) and None)
    with pytest.raises(Unavailable, match=r"bert gave no answer within 0\.05 s"):
        await Readiness(registry.models).check()
    held.set()


async def test_concurrent_probes_share_one_check(registry, meddle, monkeypatch):
    monkeypatch.setattr(readiness, "VERDICT_SECONDS", 3600.0)
    ran, verdict = meddle(lambda: None), Readiness(registry.models)
    await asyncio.gather(*(verdict.check() for _ in range(50)))
    once = len(ran)
    await verdict.check()
    assert len(ran) == once <= 2 * len(registry.get("bert").batchers)


async def test_busy_model_whose_runs_succeed_is_not_run_again(registry, meddle):
    ran, model = meddle(lambda: None), registry.get("bert")
    await Readiness(registry.models).check()
    once = len(ran)
    for batcher in model.batchers.values():
        queue_one(batcher)
    await Readiness(registry.models).check()
    assert len(ran) == once
    for batcher in model.batchers.values():  # as busy, but nothing was finished for long
        batcher.succeeded_at -= 60
        batcher.queue.take(1, 0.0)
    await Readiness(registry.models).check()
    assert len(ran) > once


async def test_stuck_graph_is_noticed_beside_a_working_one(registry, monkeypatch):
    tried, model = [], registry.get("bert")
    await Readiness(registry.models).check()
    encoder = model.batchers["encoder"]
    queue_one(encoder)
    encoder.succeeded_at -= 3600

    async def stuck(own, *_):
        tried.append(own)
        raise StartError("bert is stuck")

    monkeypatch.setattr(warmup, "warm_up", stuck)
    with pytest.raises(Unavailable, match="bert is stuck"):
        await Readiness(registry.models).check()
    assert tried == [model]


async def test_unexpected_error_makes_the_model_unready(registry, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("what no one foresaw")

    monkeypatch.setattr(type(registry.get("bert").tokenizer), "encode", fail)
    with pytest.raises(Unavailable, match="bert fails on its first token: ZeroDivisionError"):
        await Readiness(registry.models).check()


async def test_models_are_checked_concurrently(registry, monkeypatch):
    together = asyncio.Barrier(3)

    async def meets(*_):
        await together.wait()

    monkeypatch.setattr(warmup, "warm_up", meets)
    await Readiness({name: replace(registry.get("bert")) for name in "abc"}).check()


async def test_lasting_fault_is_logged_once(registry, meddle, monkeypatch, caplog):
    monkeypatch.setattr(readiness, "VERDICT_SECONDS", 0.0)

    async def fails(*_):
        raise StartError("bert fails")

    monkeypatch.setattr(warmup, "warm_up", fails)
    verdict = Readiness(registry.models)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            with pytest.raises(Unavailable):
                await verdict.check()
    assert [each.message for each in caplog.records] == ["not ready: bert fails"]
