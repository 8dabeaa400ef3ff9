"""Equal texts in flight are computed once, whoever sends them by whatever protocol; each caller's end is its own."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import numpy as np
import pytest

from models.artifacts.export import export
from proto import embed_pb2 as pb
from proto.embed_pb2_grpc import EmbedderStub
from service.embedding.requests import Cut, EmbedResult, Ids, Text
from service.errors import DeadlineExceeded, EngineFailure
from service.observability.metrics import Metrics
from service.scheduling.batcher import SharedRun
from service.scheduling.deadlines import within
from tests.embed_requests import embed_request
from tests.golden_cases import write_tiny_bert
from tests.served import serving_here
from tests.service.embedding.engines import Watched
from tests.service.registry.registry_service import Service, write

Make = Callable[..., Service]
TEXT, OTHER = Text("hello world abc"), Text("hello")
INPUT = pb.Input(text=TEXT.text)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in_flight")
    export(write_tiny_bert(folder / "checkpoint", pooling="mean"), folder / "store/a")
    return folder / "store"


@pytest.fixture
def make(store: Path) -> Make:
    return lambda **changes: Service(store, **changes)


async def embed(service: Service, *inputs: Text | Ids, **fields: Any) -> EmbedResult:
    return await service.pipeline.embed(embed_request(inputs, **fields))


def numbers(result: EmbedResult) -> list[bytes]:
    return [output.rows.tobytes() for output in result.outputs]


async def begun(service: Service, engine: Watched, *inputs: Text | Ids) -> "asyncio.Task[EmbedResult]":
    """A request whose run is under way and waits."""
    engine.hold()
    task = asyncio.create_task(embed(service, *inputs))
    await asyncio.wait_for(engine.entered.wait(), 30)
    return task


async def turns(count: int = 30) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_equal_texts_of_a_list_are_computed_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make()
    alone, other = await embed(service, TEXT), await embed(service, OTHER)
    engine = Watched(service.registry, monkeypatch)
    result = await embed(service, TEXT, OTHER, TEXT, TEXT)
    assert engine.sequences == 2
    expected = [numbers(each)[0] for each in (alone, other, alone, alone)]
    assert numbers(result) == [b"".join(expected)]
    assert result.lengths == (*alone.lengths, *other.lengths, *alone.lengths, *alone.lengths)
    assert result.tokens == 3 * alone.tokens + other.tokens


async def test_equal_texts_of_requests_at_once_run_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[int] = []
    service = make()
    monkeypatch.setattr(Metrics, "joined", lambda self, model, inputs: joined.append(inputs))
    alone = await embed(service, TEXT)
    engine = Watched(service.registry, monkeypatch)
    results = await asyncio.gather(*[embed(service, TEXT) for _ in range(20)])
    assert engine.sequences == 1
    assert {(*numbers(result), result.tokens) for result in results} == {(*numbers(alone), alone.tokens)}
    assert sum(joined) == 19


async def test_text_joins_the_run_of_its_ids(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make()
    ids = service.registry.get("a").tokenizer.encode({0: TEXT}, Cut())
    engine = Watched(service.registry, monkeypatch)
    first = await begun(service, engine, ids[0])
    second = asyncio.create_task(embed(service, TEXT))
    await turns()
    engine.let_go()
    assert numbers(await first) == numbers(await second)
    assert engine.sequences == 1


OPTIONS: list[dict[str, Any]] = [
    {},
    {"pooling": "cls"},
    {"pooling": "max", "normalize": False},
    {"dimensions": 8},
    {"dtype": "float16"},
    {"outputs": ("last_hidden_state",)},
    {"outputs": ("last_hidden_state", "sentence_embedding")},
    {"outputs": ("sentence_embedding", "input_embeddings")},
    {"max_tokens": 3},
    {"special_tokens": False},
]


async def test_requests_that_join_keep_their_own_options(make: Make) -> None:
    service = make()
    alone = [await embed(service, TEXT, OTHER, **options) for options in OPTIONS]
    together = await asyncio.gather(*[embed(service, TEXT, OTHER, **options) for options in OPTIONS * 2])
    assert [numbers(result) for result in together] == [numbers(result) for result in alone] * 2
    assert [result.truncated for result in together] == [result.truncated for result in alone] * 2


@pytest.mark.parametrize("leaver", [0, 1])
async def test_caller_that_leaves_takes_no_answer_along(
    make: Make, monkeypatch: pytest.MonkeyPatch, leaver: int
) -> None:
    service = make()
    alone = await embed(service, TEXT)
    engine = Watched(service.registry, monkeypatch)
    tasks = [await begun(service, engine, TEXT), asyncio.create_task(embed(service, TEXT))]
    await turns()
    tasks[leaver].cancel()
    await turns()
    engine.let_go()
    assert numbers(await tasks[1 - leaver]) == numbers(alone)
    assert engine.sequences == 1


async def test_deadline_of_a_joined_request_is_its_own(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make()
    engine = Watched(service.registry, monkeypatch)
    first = await begun(service, engine, TEXT)
    deadline = asyncio.get_running_loop().time() + 0.01
    with pytest.raises(DeadlineExceeded):
        async with within(deadline, asyncio.get_running_loop().time):
            await embed(service, TEXT)
    engine.let_go()
    await first
    assert engine.sequences == 1


async def test_values_that_are_nan_fail_each_request_by_its_own_number(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make()
    engine = Watched(service.registry, monkeypatch)
    engine.nan = True
    first = await begun(service, engine, TEXT)
    second = asyncio.create_task(embed(service, OTHER, TEXT))
    await turns()
    engine.let_go()
    with pytest.raises(EngineFailure, match=r"inputs\[0\] that is not finite"):
        await first
    engine.nan = False
    with pytest.raises(EngineFailure, match=r"inputs\[1\] that is not finite"):
        await second
    assert np.isfinite((await embed(service, TEXT)).outputs[0].rows).all()


async def test_exchanged_model_shares_no_run_with_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "store", "a")
    service = Service(tmp_path / "store")
    old = await embed(service, TEXT)
    engine = Watched(service.registry, monkeypatch)
    first = await begun(service, engine, TEXT)
    write(tmp_path / "store", "b", seed=1)
    (tmp_path / "store/a").rename(tmp_path / "old")
    (tmp_path / "store/b").rename(tmp_path / "store/a")
    await service.registry.load("a")
    new = await embed(service, TEXT)
    engine.let_go()
    assert numbers(await first) == numbers(old) != numbers(new)


async def test_joined_request_needs_no_room_in_a_full_queue(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make(max_queue_tokens=20)
    ids = service.registry.get("a").tokenizer.encode({0: TEXT}, Cut())[0]
    engine = Watched(service.registry, monkeypatch)
    first = await begun(service, engine, ids)
    batcher = service.registry.get("a").batchers["encoder"]
    batcher.queue.reserve(20)
    second = asyncio.create_task(embed(service, ids))
    await turns()
    engine.let_go()
    assert numbers(await first) == numbers(await second)
    batcher.queue.release(20)


async def test_requests_of_all_protocols_share_one_run(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined, join = asyncio.Semaphore(0), SharedRun.join

    def counted(*arguments: Any) -> None:
        join(*arguments)
        joined.release()

    monkeypatch.setattr(SharedRun, "join", counted)
    async with serving_here(store) as here:
        engine = Watched(here.context.registry, monkeypatch)
        engine.hold()
        async with (
            httpx.AsyncClient(base_url="http://{}:{}".format(*here.address), trust_env=False, timeout=60) as http,
            grpc.aio.insecure_channel(here.rpc_address) as channel,
        ):
            posts = {"/embed": {"inputs": TEXT.text}, "/v1/embeddings": {"model": "a", "input": [TEXT.text]}}
            posts["/v2/models/a/infer"] = {
                "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT.text]}]
            }
            requests = [asyncio.create_task(http.post(path, json=body)) for path, body in posts.items()]
            requests.append(asyncio.ensure_future(EmbedderStub(channel).Embed(pb.EmbedRequest(inputs=[INPUT]))))
            for _ in requests:
                await asyncio.wait_for(joined.acquire(), 30)
            engine.let_go()
            own, openai, oip, rpc = await asyncio.gather(*requests)
    vectors = [own.json()[0], openai.json()["data"][0]["embedding"], oip.json()["outputs"][0]["data"]]
    expected = np.frombuffer(rpc.outputs[0].tensor.data, np.float32).tolist()
    assert [np.array(vector, np.float32).tolist() for vector in vectors] == [expected] * 3
    assert engine.sequences == 1
