"""Readiness is a forward pass that was really made, or one that was made just now."""

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from models.artifacts.export import export
from service.errors import StartError, Unavailable
from service.observability.metrics import Metrics
from service.registry import readiness
from service.registry import warmup as trial
from service.registry.readiness import Readiness
from service.registry.registry import Catalog, open_catalog
from service.scheduling.fair_queue import Spent
from service.settings import Settings
from tests.golden_cases import write_tiny_bert


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readiness")
    export(write_tiny_bert(folder / "bert", pooling="mean"), folder / "store/bert")
    return folder / "store"


@pytest.fixture
def catalog(store: Path) -> Catalog:
    return open_catalog(Settings(store=store, device="cpu"), Metrics())


@pytest.fixture
def meddle(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], list[str]]:
    """Something done before each run of an engine; the graphs that ran are listed."""
    engine, ran = catalog.get("bert").engine, []
    run = type(engine).run

    def meddled(before: Callable[[], None]) -> list[str]:
        def each(self: object, graph: str, *given: object) -> object:
            ran.append(graph)
            before()
            return run(self, graph, *given)

        monkeypatch.setattr(type(engine), "run", each)
        return ran

    return meddled


async def test_a_model_that_answers_is_ready_and_every_graph_was_run(catalog, meddle):
    ran = meddle(lambda: None)
    await Readiness(catalog.models).check()
    assert set(ran) >= set(catalog.get("bert").batchers)


async def test_a_model_that_fails_is_not_and_is_again_once_it_answers(catalog, meddle, monkeypatch):
    monkeypatch.setattr(readiness, "FRESH_SECONDS", 0.0)
    broken = [True]

    def fail() -> None:
        if broken[0]:
            raise RuntimeError("the card is gone")

    meddle(fail)
    verdict = Readiness(catalog.models)
    with pytest.raises(Unavailable, match="bert fails on its first token"):
        await verdict.check()
    broken[0] = False
    await verdict.check()


async def test_a_model_that_hangs_is_not_ready(catalog, meddle, monkeypatch):
    monkeypatch.setattr(readiness, "TRIAL_SECONDS", 0.05)
    held = threading.Event()
    meddle(lambda: held.wait(10) and None)
    for batcher in catalog.get("bert").batchers.values():
        batcher._max_inline_cost = 0  # as a graph whose runs take long: in its thread
    with pytest.raises(Unavailable, match=r"bert gave no answer within 0\.05 s"):
        await Readiness(catalog.models).check()
    held.set()


async def test_many_probes_cost_one_judgement(catalog, meddle):
    ran, verdict = meddle(lambda: None), Readiness(catalog.models)
    await asyncio.gather(*(verdict.check() for _ in range(50)))
    once = len(ran)
    await verdict.check()
    assert len(ran) == once <= 2 * len(catalog.get("bert").batchers)


async def test_a_busy_model_whose_runs_succeed_needs_no_trial(catalog, meddle):
    ran, model = meddle(lambda: None), catalog.get("bert")
    await Readiness(catalog.models).check()
    once = len(ran)
    for batcher in model.batchers.values():
        batcher.line.add([None], [1], [asyncio.get_running_loop().create_future()], 0.0, Spent(), None)
    await Readiness(catalog.models).check()
    assert len(ran) == once
    for batcher in model.batchers.values():  # the same crowd, but nothing has been done for long
        batcher.succeeded_at -= 60
        batcher.line.take(1, 0.0)
    await Readiness(catalog.models).check()
    assert len(ran) > once


async def test_a_graph_that_is_stuck_is_not_vouched_for_by_another(catalog, monkeypatch):
    tried, model = [], catalog.get("bert")
    await Readiness(catalog.models).check()
    encoder = model.batchers["encoder"]
    encoder.line.add([None], [1], [asyncio.get_running_loop().create_future()], 0.0, Spent(), None)
    encoder.succeeded_at -= 3600

    async def stuck(own):
        tried.append(own)
        raise StartError("bert is stuck")

    monkeypatch.setattr(trial, "passes", stuck)
    with pytest.raises(Unavailable, match="bert is stuck"):
        await Readiness(catalog.models).check()
    assert tried == [model]


async def test_whatever_a_trial_meets_is_unready_and_no_fault_of_the_probe(catalog, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("what no one foresaw")

    monkeypatch.setattr(type(catalog.get("bert").tokenizer), "encode", fail)
    with pytest.raises(Unavailable, match="bert fails on its first token: ZeroDivisionError"):
        await Readiness(catalog.models).check()


async def test_models_are_tried_at_once_so_that_many_stuck_ones_take_no_longer_than_one(catalog, monkeypatch):
    together = asyncio.Barrier(3)

    async def meets(model):
        await together.wait()

    monkeypatch.setattr(trial, "passes", meets)
    await Readiness(dict.fromkeys("abc", catalog.get("bert"))).check()


async def test_a_model_that_stays_unready_is_told_once(catalog, meddle, monkeypatch, caplog):
    monkeypatch.setattr(readiness, "FRESH_SECONDS", 0.0)

    async def fails(model):
        raise StartError("bert fails")

    monkeypatch.setattr(trial, "passes", fails)
    verdict = Readiness(catalog.models)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            with pytest.raises(Unavailable):
                await verdict.check()
    assert [each.message for each in caplog.records] == ["not ready: bert fails"]
