"""Scoring pairs: batches, fair shares, deadlines, callers that leave, limits."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from service.embedding.limits import check_characters
from service.embedding.model import Model
from service.embedding.ranking import Reading, Scorer
from service.embedding.requests import Cut, Text
from service.embedding.tokenize.tokenizer import beside
from service.errors import DeadlineExceeded, EngineFailure, TooManyCharacters, WrongModelKind
from service.request_context import RequestContext
from service.scheduling.deadlines import within
from service.scheduling.memory_budget import MemoryBudget
from service.settings import Settings
from tests.embed_requests import embed_request
from tests.score_models import CLASSIFIER, EMBEDDER, RANKER
from tests.service.registry.registry_service import Service

BATCH_TOKENS = 128


@pytest.fixture
def service(score_store: Path) -> Service:
    return Service(score_store, default_model=RANKER, max_batch_tokens=BATCH_TOKENS, max_inputs=2000, threads=1)


class Counted:
    """The engine of a ranker: notes the lengths of each run of its encoder, and calls back before the first ones."""

    def __init__(self, model: Model, monkeypatch: pytest.MonkeyPatch, on_run: Callable[[int], None]) -> None:
        self.runs: list[list[int]] = []
        run = model.engine.run

        def counted(graph: str, feeds: Mapping[str, Any], outputs: Any) -> Any:
            if "lengths" in feeds:
                self.runs.append(feeds["lengths"].tolist())
                on_run(len(self.runs))
            return run(graph, feeds, outputs)

        monkeypatch.setattr(model.engine, "run", counted)


def scorer(service: Service, **settings: Any) -> Scorer:
    return Scorer(service.pipeline, MemoryBudget(1 << 30), Settings(max_inputs=2000, **settings))


def of(caller: str) -> RequestContext:
    context = RequestContext()
    context.caller = caller
    return context


class Holding:
    """Holds the engine of a model up in its second run."""

    def __init__(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held, self._go_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def hold(run: int) -> None:
            if run == 2:
                loop.call_soon_threadsafe(self.held.set)
                assert self._go_on.wait(30)

        self.engine = Counted(model, monkeypatch, hold)

    def let_go(self) -> None:
        """Let the run go on."""
        self._go_on.set()


def queued(model: Model) -> int:
    return sum([batcher.waiting_items for batcher in model.batchers.values()])


def spelled(number: int) -> str:
    return " ".join("abcdefghij"[int(digit)] for digit in f"{number:03}")


TEXTS = [spelled(number) + " e" * (number * 7 % 10) for number in range(1000)]
"""All different, of 3 to 12 tokens."""


async def test_pairs_of_like_length_fill_batches(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    model = service.registry.get(RANKER)
    engine = Counted(model, monkeypatch, lambda run: None)
    ranks = await service.rank("a b", TEXTS, RANKER, context=of("one"))
    assert len(ranks.scores) == sum(map(len, engine.runs)) == 1000
    assert len(engine.runs) <= 2 * ranks.result.tokens / BATCH_TOKENS  # an engine may split a batch once
    assert np.mean([max(run) - min(run) for run in engine.runs]) < 2.5  # of lengths from 8 to 17


async def test_another_callers_text_waits_for_a_few_batches(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes while the second batch of a thousand pairs runs."""
    model = service.registry.get(RANKER)
    holding = Holding(model, monkeypatch)
    ranking = asyncio.ensure_future(service.rank("a b", TEXTS, RANKER, context=of("one")))
    await holding.held.wait()
    waiting = queued(model)
    other = asyncio.ensure_future(service.pipeline.embed(embed_request([Text("c d e")], RANKER), of("other")))
    while queued(model) == waiting:
        await asyncio.sleep(0)
    holding.let_go()
    await other
    await ranking
    runs = holding.engine.runs
    assert len(runs) > 50
    assert next(number for number, run in enumerate(runs) if min(run) < 8) <= 8  # its own; pairs have 8 tokens and more


async def test_a_caller_that_leaves_cancels_the_rest(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    model = service.registry.get(RANKER)
    holding = Holding(model, monkeypatch)
    pairs = [(f"{'abcde'[number % 5]} b", text) for number, text in enumerate(TEXTS)]
    ranking = asyncio.ensure_future(scorer(service).score(model, pairs, of("one"), Reading()))
    await holding.held.wait()
    ranking.cancel()
    await asyncio.wait([ranking])
    assert ranking.cancelled()
    await nothing_is_left(service, holding)


async def test_a_deadline_cancels_the_rest(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    model = service.registry.get(RANKER)
    holding = Holding(model, monkeypatch)
    with pytest.raises(DeadlineExceeded):
        async with within(perf_counter() + 1):
            await service.rank("a b", TEXTS, RANKER, context=of("one"))
    assert holding.held.is_set()
    await nothing_is_left(service, holding)


async def nothing_is_left(service: Service, holding: Holding) -> None:
    """Another text runs at once, and after it nothing is queued."""
    holding.let_go()
    await service.pipeline.embed(embed_request([Text("c d e")], RANKER), of("other"))
    assert len(holding.engine.runs) <= 5
    for _ in range(200):  # what was cancelled leaves the queue at its next look
        if not queued(service.registry.get(RANKER)):
            return
        await asyncio.sleep(0.01)
    assert queued(service.registry.get(RANKER)) == 0


async def test_many_pairs_are_tokenized_off_the_event_loop(service: Service) -> None:
    model = service.registry.get(RANKER)
    assert model.tokenizer is not None
    turns, texts = 0, {number: Text("a b", "c d " * 5) for number in range(500)}
    encoding = asyncio.ensure_future(beside(10_000, MemoryBudget(0), model.tokenizer.encode, texts, Cut()))
    while not encoding.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 1


async def test_models_that_score_no_pairs_are_refused(service: Service) -> None:
    for name, reading in ((CLASSIFIER, Reading(cosine=True)), (EMBEDDER, Reading())):
        with pytest.raises(WrongModelKind, match="Model is not a re-ranker model"):
            await scorer(service).score(service.registry.get(name), [("a", "b")], of("one"), reading)


def test_a_query_of_many_pairs_counts_once_against_the_limit() -> None:
    settings, query = Settings(max_request_characters=1000), "q" * 400
    assert check_characters([Text(query, "a" * 10) for _ in range(50)], settings) <= 1000
    for texts in ([Text(query, "a" * 13) for _ in range(50)], [Text(query), Text(query), Text(query)]):
        with pytest.raises(TooManyCharacters):
            check_characters(texts, settings)


async def test_logits_that_are_not_finite_fail_their_request(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    model = service.registry.get(RANKER)
    run = model.engine.run
    monkeypatch.setattr(
        model.engine, "run", lambda graph, *rest: [array * np.nan for array in run(graph, *rest)]
        if graph == "classifier" else run(graph, *rest),
    )  # fmt: skip
    with pytest.raises(EngineFailure, match="class_logits that are not finite"):
        await service.rank("a", ["b"], RANKER, context=of("one"))
