"""Equal texts in flight: each request has its own options, and the model that was loaded when it came."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.artifacts.export import export
from proto import embed_pb2 as pb
from service.embedding.requests import EmbedResult, Ids, Text
from tests.embed_requests import embed_request
from tests.golden_cases import write_tiny_bert
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


async def test_equal_texts_in_flight_keep_their_own_options(make: Make) -> None:
    service = make()
    alone = [await embed(service, TEXT, OTHER, **options) for options in OPTIONS]
    together = await asyncio.gather(*[embed(service, TEXT, OTHER, **options) for options in OPTIONS * 2])
    assert [numbers(result) for result in together] == [numbers(result) for result in alone] * 2
    assert [result.truncated for result in together] == [result.truncated for result in alone] * 2


async def test_exchanged_model_answers_while_the_old_one_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "store", "a")
    service = Service(tmp_path / "store")
    old = await embed(service, TEXT, OTHER)
    engine = Watched(service.registry, monkeypatch)
    first = await begun(service, engine, TEXT, OTHER)  # one alone would run on the event loop
    write(tmp_path / "store", "b", seed=1)
    (tmp_path / "store/a").rename(tmp_path / "old")
    (tmp_path / "store/b").rename(tmp_path / "store/a")
    await service.registry.load("a")
    new = await embed(service, TEXT, OTHER)
    engine.let_go()
    assert numbers(await first) == numbers(old) != numbers(new)
