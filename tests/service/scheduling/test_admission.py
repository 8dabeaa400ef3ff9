"""The door: refused before any work, whole or not at all, nothing left behind; a broken row hurts its caller alone."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.artifacts.export import export
from service.embedding.pipeline import Encoder
from service.embedding.requests import EmbedRequest, Ids, Text
from service.errors import BadInput, DeadlineExceeded, EngineFailure, Overloaded, TooLarge
from service.observability.metrics import Metrics
from service.registry.registry import open_catalog
from service.scheduling import deadlines
from service.scheduling.admission import Door
from service.scheduling.fair_queue import Spent
from service.settings import Settings
from tests.golden_cases import case, write_checkpoint, write_tiny_bert

Make = Callable[..., Encoder]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("admission")
    export(write_tiny_bert(folder / "bert", pooling="mean"), folder / "store/bert")
    export(write_checkpoint(case("input_llama"), folder / "llama"), folder / "store/llama")
    return folder / "store"


@pytest.fixture
def make(store: Path) -> Make:
    def made(model: str = "bert", **changes: object) -> Encoder:
        settings = Settings(store=store, device="cpu", default_model=model, **changes)
        return Encoder(open_catalog(settings, Metrics()), settings)

    return made


def ids(*values: int) -> Ids:
    return Ids(np.array(values, np.int64))


def batchers(encoder: Encoder) -> list:
    return list(encoder.catalog.get(None).batchers.values())


def crowded(encoder: Encoder) -> None:
    """Someone else's work waits in every queue, none of which will run before the test lets go of the loop."""
    model = encoder.catalog.get(None)
    for batcher in model.batchers.values():
        batcher._busy = True  # as during a run
        batcher.line.add([None], [90], [asyncio.get_running_loop().create_future()], 0.0, Spent(), None)


async def test_one_request_too_many_is_refused_and_leaves_no_trace(make):
    encoder = make(max_concurrent_requests=1)
    first = asyncio.ensure_future(encoder.embed(EmbedRequest([ids(5)])))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="1 requests are being served; this server takes 1 at a time"):
        await encoder.embed(EmbedRequest([ids(6)]))
    await first
    assert encoder.door.inside == 0
    await encoder.embed(EmbedRequest([ids(6)]))


async def test_a_text_is_refused_before_it_is_tokenised(make, monkeypatch):
    encoder = make(max_queue_tokens=100)
    crowded(encoder)
    asked = []
    monkeypatch.setattr(type(encoder.catalog.get(None).tokenizer), "encode", lambda *_: asked.append(1))
    with pytest.raises(Overloaded):
        await encoder.embed(EmbedRequest([Text("hello world " * 3)] * 20))
    assert asked == []
    assert all(batcher.line.promised == 0 for batcher in batchers(encoder))


async def test_a_crowd_of_long_texts_is_refused_while_the_first_of_them_are_tokenised(make, monkeypatch):
    encoder = make(max_queue_tokens=100)
    tokenizer, go = encoder.catalog.get(None).tokenizer, asyncio.Event()
    encode = tokenizer.encode

    async def slow(texts: dict, cut: object) -> dict:
        await go.wait()  # as in the tokenizer's thread
        return await encode(texts, cut)

    monkeypatch.setattr(tokenizer, "encode", slow)
    crowd = [asyncio.ensure_future(encoder.embed(EmbedRequest([Text("hello world " * 3)] * 5))) for _ in range(20)]
    await asyncio.sleep(0)
    assert all(batcher.line.promised <= 100 for batcher in batchers(encoder))
    go.set()
    answers = await asyncio.gather(*crowd, return_exceptions=True)
    refused = [each for each in answers if isinstance(each, Overloaded)]
    assert len(refused) >= 15
    assert len({type(each) for each in answers}) == 2
    assert all(batcher.line.promised == 0 for batcher in batchers(encoder))


async def test_a_request_of_another_road_is_counted_at_the_door_to_its_end():
    door = Door(1)
    with door.request():
        assert door.inside == 1
        with pytest.raises(Overloaded, match="1 requests are being served"):
            door.request().__enter__()
        assert door.inside == 1
    assert door.inside == 0

    def fails() -> None:
        with door.request():
            raise BadInput("its own", 0)

    with pytest.raises(BadInput):
        fails()
    assert door.inside == 0


async def test_a_wait_ends_with_its_deadline_and_other_timeouts_are_their_own():
    deadlines.allow(None)
    async with deadlines.kept():
        await asyncio.sleep(0)
    deadlines.allow(60)
    with pytest.raises(TimeoutError):
        async with deadlines.kept():
            raise TimeoutError
    deadlines.allow(-1)
    with pytest.raises(DeadlineExceeded, match="allow more time"):
        async with deadlines.kept():
            await asyncio.Event().wait()
    deadlines.allow(None)


async def test_a_list_is_taken_whole_or_not_at_all(make):
    encoder = make(max_queue_tokens=100)
    crowded(encoder)
    before = [batcher.waiting_items for batcher in batchers(encoder)]
    with pytest.raises(Overloaded):
        await encoder.embed(EmbedRequest([ids(1, 2, 3)] * 5))
    assert [batcher.waiting_items for batcher in batchers(encoder)] == before


async def test_a_request_that_fails_while_it_is_prepared_gives_its_place_back(make):
    encoder = make()
    with pytest.raises(Exception, match="tokens; this model reads"):
        await encoder.embed(EmbedRequest([Text("hello " * 5000)], truncate=False))
    assert encoder.door.inside == 0
    assert all(batcher.line.promised == 0 for batcher in batchers(encoder))


async def test_a_deadline_already_over_costs_no_run(make):
    encoder = make()
    deadlines.allow(-1.0)
    with pytest.raises(DeadlineExceeded, match="allow more time"):
        await encoder.embed(EmbedRequest([ids(5)]))
    deadlines.allow(None)
    await encoder.embed(EmbedRequest([ids(5)]))


async def test_a_row_that_is_no_number_fails_its_own_caller_alone(make, monkeypatch):
    encoder = make()
    engine = encoder.catalog.get(None).engine
    run = engine.run

    def broken(graph: str, feeds: dict, outputs: tuple) -> list:
        arrays = run(graph, feeds, outputs)
        return [np.where((feeds["ids"] == 7)[:, None], np.nan, array).astype(array.dtype) for array in arrays]

    monkeypatch.setattr(type(engine), "run", lambda _, *given: broken(*given))
    good, bad = await asyncio.gather(
        encoder.embed(EmbedRequest([ids(5, 6)])),
        encoder.embed(EmbedRequest([ids(5, 6), ids(5, 7)])),
        return_exceptions=True,
    )
    assert np.isfinite(good.outputs[0].rows).all()
    assert isinstance(bad, EngineFailure)
    assert bad.index == 1


async def test_an_answer_larger_than_the_server_gives_is_refused_before_it_runs(make):
    encoder = make("llama", max_answer_bytes=1000)
    with pytest.raises(TooLarge, match="this server answers with 1000 at most"):
        await encoder.embed(EmbedRequest([ids(*range(1, 20))]))


def test_the_guess_of_tokens_follows_what_was_seen():
    door = Door(1)
    first = door.guess("m", [Text("a" * 400)], None)
    for _ in range(200):
        door.learn("m", 400, 400)  # a token a character, as in Chinese
    assert first < 200 < door.guess("m", [Text("a" * 400)], None)
    assert door.guess("m", [Text("a" * 400)], 128) == 128


async def test_texts_are_counted_before_they_are_tokenised(make, monkeypatch):
    encoder = make(max_request_characters=10)
    monkeypatch.setattr(encoder.catalog.get(None).tokenizer, "encode_now", None)  # would fail if it were called
    with pytest.raises(TooLarge, match="11 characters; this server takes 10 a request"):
        await encoder.embed(EmbedRequest([Text("abcdef"), Text("abc", "de")]))
    assert encoder.door.inside == 0


async def test_a_deadline_ends_the_wait_for_a_run_that_goes_on(make, monkeypatch):
    encoder, release = make(), threading.Event()
    engine = encoder.catalog.get(None).engine
    run = engine.run
    monkeypatch.setattr(engine, "run", lambda *given: (release.wait(10), run(*given))[1])
    deadlines.allow(0.05)
    with pytest.raises(DeadlineExceeded, match="the time allowed is over"):
        await encoder.embed(EmbedRequest([ids(5, 6)]))
    assert not release.is_set()
    assert encoder.door.inside == 0
    release.set()
    deadlines.allow(None)
    assert (await encoder.embed(EmbedRequest([ids(5, 6)]))).tokens == 2


def test_the_settings_reach_the_queues(make):
    encoder = make(max_queue_seconds=0.25, stuck_seconds=7, max_queue_tokens=99)
    for batcher in batchers(encoder):
        assert (batcher.line._max_seconds, batcher._stuck_seconds, batcher.line._max_cost) == (0.25, 7, 99)


def test_the_nearer_of_two_deadlines_counts():
    deadlines.allow(None)
    deadlines.at_most(60)
    first = deadlines.current()
    deadlines.at_most(30)
    nearer = deadlines.current()
    deadlines.at_most(90)
    assert nearer == deadlines.current() < first
    deadlines.allow(None)


async def test_the_servers_limit_of_an_input_counts_like_the_models_own(make):
    encoder = make(max_input_tokens=6)
    result = await encoder.embed(EmbedRequest([ids(*range(1, 20)), Text("hello world " * 9)]))
    assert result.lengths == (6, 6)
    with pytest.raises(BadInput, match=r"inputs\[1\] has 7 token ids; this server takes 6 an input"):
        await encoder.embed(EmbedRequest([ids(1), ids(*range(7))], truncate=False))
    with pytest.raises(BadInput, match="this model reads 6"):
        await encoder.embed(EmbedRequest([Text("hello world " * 9)], truncate=False))
    bare = make("llama", max_input_tokens=6)
    assert (await bare.embed(EmbedRequest([ids(*range(1, 20))]))).lengths == (6,)
