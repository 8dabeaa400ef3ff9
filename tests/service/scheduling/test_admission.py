"""Admission: requests are refused before any work, whole or not at all, and leave nothing behind."""

import asyncio
import re
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from models.artifacts.export import export
from service.embedding import pipeline
from service.embedding.requests import Ids, Text
from service.embedding.tokenize import tokenizer as tokenizer_file
from service.errors import BadInput, DeadlineExceeded, EngineFailure, Overloaded, TooLarge
from service.request_context import RequestContext
from service.scheduling import deadlines
from service.scheduling.admission import AdmissionController, reserved
from service.scheduling.fair_queue import FairQueue
from tests.embed_requests import embed_request
from tests.golden_cases import case, write_checkpoint, write_tiny_bert
from tests.service.registry.registry_service import Service

Make = Callable[..., Service]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("admission")
    export(write_tiny_bert(folder / "bert", pooling="mean"), folder / "store/bert")
    export(write_checkpoint(case("input_llama"), folder / "llama"), folder / "store/llama")
    return folder / "store"


@pytest.fixture
def make(store: Path) -> Make:
    def made(model: str = "bert", **changes: object) -> Service:
        return Service(store, default_model=model, **changes)

    return made


def ids(*values: int) -> Ids:
    return Ids(np.array(values, np.int64))


def batchers(service: Service) -> list[Any]:
    return list(service.registry.get(None).batchers.values())


def reserve(service: Service, cost: int) -> None:
    """Room that another request keeps in every queue."""
    for batcher in batchers(service):
        batcher.queue.reserve(cost)


def reserved_cost(service: Service) -> list[int]:
    return [batcher.queue.reserved for batcher in batchers(service)]


# ---- requests at a time


def test_admits_as_many_requests_as_allowed() -> None:
    admission = AdmissionController(2)
    admission.acquire()
    assert admission.has_room(1)
    assert not admission.has_room(2)
    admission.acquire()
    with pytest.raises(Overloaded, match="2 requests are being served; this server takes 2 at a time"):
        admission.acquire()
    assert admission.active == 2
    admission.release()
    admission.acquire()


def test_last_requests_are_for_callers_with_few() -> None:
    admission = AdmissionController(64)
    for _ in range(56):
        admission.acquire("bulk")
    with pytest.raises(Overloaded):
        admission.acquire("bulk")
    for number in range(8):
        admission.acquire(f"light {number}")
    with pytest.raises(Overloaded):
        admission.acquire("another")
    admission.release("bulk")
    with pytest.raises(Overloaded):
        admission.acquire("light 0")
    admission.acquire("another")


def test_admission_ends_with_its_block_even_after_an_error() -> None:
    admission = AdmissionController(1)
    with admission.admitted():
        assert admission.active == 1
        with pytest.raises(Overloaded, match="1 requests are being served"), admission.admitted():
            raise AssertionError
        assert admission.active == 1
    assert admission.active == 0
    with pytest.raises(BadInput), admission.admitted():
        raise BadInput("its own", 0)
    assert admission.active == 0


# ---- room for texts


async def test_text_is_refused_before_it_is_tokenized(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make(max_queue_tokens=100)
    reserve(service, 90)
    encoded: list[int] = []
    monkeypatch.setattr(type(service.registry.get(None).tokenizer), "encode", lambda *_: encoded.append(1))
    with pytest.raises(Overloaded):
        await service.pipeline.embed(embed_request([Text("hello world " * 3)] * 20))
    assert encoded == []
    assert set(reserved_cost(service)) == {90}


async def test_texts_being_tokenized_keep_their_room(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make(max_queue_tokens=100)
    tokenizer, go = service.registry.get(None).tokenizer, threading.Event()
    encode = tokenizer.encode

    def slow(*arguments: Any) -> Any:
        go.wait(60)
        return encode(*arguments)

    for module in (pipeline, tokenizer_file):
        monkeypatch.setattr(module, "INLINE_CHARACTERS", 0)
    monkeypatch.setattr(tokenizer, "encode", slow)
    request = embed_request([Text("hello world " * 3)] * 5)
    crowd = [asyncio.ensure_future(service.pipeline.embed(request)) for _ in range(20)]
    await asyncio.sleep(0)
    assert all(0 < cost <= 100 for cost in reserved_cost(service) if cost)
    assert any(reserved_cost(service))
    go.set()
    answers = await asyncio.gather(*crowd, return_exceptions=True)
    assert len([each for each in answers if isinstance(each, Overloaded)]) >= 15
    assert len({type(each) for each in answers}) == 2
    assert set(reserved_cost(service)) == {0}


def test_reservation_ends_with_its_block() -> None:
    queues: list[FairQueue[int, int]] = [FairQueue(100, None), FairQueue(100, None)]

    def fail() -> None:
        assert [queue.reserved for queue in queues] == [7, 7]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), reserved(queues, 7, "a caller"):
        fail()
    assert [queue.reserved for queue in queues] == [0, 0]


async def test_list_is_queued_whole_or_not_at_all(make: Make) -> None:
    service = make(max_queue_tokens=100)
    reserve(service, 90)
    with pytest.raises(Overloaded):
        await service.pipeline.embed(embed_request([ids(1, 2, number) for number in range(5)]))
    assert [batcher.waiting_items for batcher in batchers(service)] == [0] * len(batchers(service))


async def test_request_that_cannot_be_tokenized_leaves_its_room(make: Make) -> None:
    service = make()
    with pytest.raises(Exception, match="tokens; this model reads"):
        await service.pipeline.embed(embed_request([Text("hello " * 5000)], truncate=False))
    assert set(reserved_cost(service)) == {0}


async def test_more_tokens_than_estimated_ask_the_queues_again(make: Make) -> None:
    service = make(max_queue_tokens=100)
    texts = [Text("a b c d e f g h i j " * 2)] * 4  # 80 letters, of which 48 are estimated
    await service.pipeline.embed(embed_request(texts))
    reserve(service, 40)
    with pytest.raises(Overloaded, match="40 tokens are waiting and this request brings 88"):
        await service.pipeline.embed(embed_request(texts))
    assert set(reserved_cost(service)) == {40}


async def test_characters_are_counted_before_tokenizing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make(max_request_characters=10)
    monkeypatch.setattr(service.registry.get(None).tokenizer, "encode", None)  # would fail if it were called
    with pytest.raises(TooLarge, match="11 characters; this server takes 10 a request"):
        await service.pipeline.embed(embed_request([Text("abcdef"), Text("abc", "de")]))


# ---- deadlines


async def test_wait_ends_with_its_deadline() -> None:
    async with deadlines.within(None):
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError):  # another's
        async with deadlines.within(perf_counter() + 60):
            raise TimeoutError
    with pytest.raises(DeadlineExceeded, match="allow more time"):
        async with deadlines.within(perf_counter() - 1):
            await asyncio.Event().wait()


async def test_deadline_that_is_over_costs_no_run(make: Make) -> None:
    service = make()
    with pytest.raises(DeadlineExceeded, match="allow more time"):
        await service.pipeline.embed(embed_request([ids(5)]), RequestContext().within(perf_counter() - 1))
    assert all(batcher.succeeded_at is None for batcher in batchers(service))
    await service.pipeline.embed(embed_request([ids(5)]))


async def test_deadline_ends_the_wait_for_a_run_that_goes_on(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service, release = make(), threading.Event()
    engine = service.registry.get(None).engine
    run = engine.run
    monkeypatch.setattr(engine, "run", lambda *arguments: (release.wait(10), run(*arguments))[1])
    deadline = perf_counter() + 0.05
    with pytest.raises(DeadlineExceeded, match="the time allowed is over"):
        async with deadlines.within(deadline):
            await service.pipeline.embed(embed_request([ids(5, 6)]), RequestContext().within(deadline))
    assert not release.is_set()
    release.set()
    assert (await service.pipeline.embed(embed_request([ids(5, 6)]))).tokens == 2


def test_nearer_of_two_deadlines_counts() -> None:
    context = RequestContext()
    assert [context.within(seconds).deadline for seconds in (60.0, 30.0, 90.0)] == [60.0, 30.0, 30.0]


# ---- one request's faults


async def test_row_with_nan_fails_its_own_request(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make()
    engine = service.registry.get(None).engine
    run = engine.run

    def broken(graph: str, feeds: dict[str, Any], outputs: tuple[str, ...]) -> list[Any]:
        arrays = run(graph, feeds, outputs)
        return [np.where((feeds["ids"] == 7)[:, None], np.nan, array).astype(array.dtype) for array in arrays]

    monkeypatch.setattr(type(engine), "run", lambda _, *arguments: broken(*arguments))
    good, bad = await asyncio.gather(
        service.pipeline.embed(embed_request([ids(5, 6)])),
        service.pipeline.embed(embed_request([ids(5, 6), ids(5, 7)])),
        return_exceptions=True,
    )
    assert np.isfinite(good.outputs[0].rows).all()
    assert isinstance(bad, EngineFailure)
    assert bad.index == 1


# ---- settings


async def test_answer_over_the_limit_is_refused_before_its_run(make: Make) -> None:
    service = make("llama", max_answer_bytes=1000)
    with pytest.raises(TooLarge, match="this server answers with 1000 at most"):
        await service.pipeline.embed(embed_request([ids(*range(1, 20))]))
    assert all(batcher.succeeded_at is None for batcher in batchers(service))


async def test_max_queue_tokens_bounds_every_queue(make: Make) -> None:
    service = make(max_queue_tokens=99)
    reserve(service, 90)
    for batcher in batchers(service):
        batcher.check(9)
        with pytest.raises(Overloaded, match="the queue holds 99"):
            batcher.check(10)


async def test_max_input_tokens_counts_like_the_models_limit(make: Make) -> None:
    service = make(max_input_tokens=6)
    result = await service.pipeline.embed(embed_request([ids(*range(1, 20)), Text("hello world " * 9)]))
    assert result.lengths == (6, 6)
    with pytest.raises(BadInput, match=r"inputs\[1\] has 7 token ids; this server takes 6 an input"):
        await service.pipeline.embed(embed_request([ids(1), ids(*range(7))], truncate=False))
    with pytest.raises(BadInput, match="this model reads 6"):
        await service.pipeline.embed(embed_request([Text("hello world " * 9)], truncate=False))
    bare = make("llama", max_input_tokens=6)
    assert (await bare.pipeline.embed(embed_request([ids(*range(1, 20))]))).lengths == (6,)


def test_design_page_names_every_source_of_a_429() -> None:
    root = Path(__file__).parents[3]
    _, _, table = (root / "docs/design/index.md").read_text().partition("Where does a 429 come from?")
    raises = re.compile(r"(raise|abort\() ?(Overloaded|KeyLimited)\(")
    sources = [path for path in (root / "service").rglob("*.py") if raises.search(path.read_text())]
    named = {path.relative_to(root).as_posix() for path in sources}
    assert len(named) > 5
    assert named <= set(re.findall(r"`(service/[\w/]+\.py)`", table.partition("**Which")[0]))
