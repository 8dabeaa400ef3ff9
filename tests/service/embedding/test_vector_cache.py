"""The vector cache: what it answers is what would be computed, bit for bit; it is bounded, and goes with its model."""

import asyncio
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.artifacts.export import export
from service.embedding.model import Model
from service.embedding.pipeline import EmbeddingPipeline
from service.embedding.requests import Cut, EmbedResult, Ids, Text
from service.embedding.vector_cache import VectorCache, keys_of
from service.errors import BadRequest, EngineFailure, InlayError, Overloaded, TooLarge, TooLong
from service.request_context import RequestContext
from service.settings import Settings
from tests.collector import collect
from tests.embed_requests import embed_request
from tests.golden_cases import write_json, write_tiny_bert
from tests.served import serving
from tests.service.embedding.engines import Watched
from tests.service.registry.registry_service import Service, write

MIB = 1 << 20
TEXT, OTHER = Text("hello world abc"), Text("hello")
LONG = Text("hello world " * 100)
IDS = Ids(np.array([2, 6, 7, 3], np.int64))
MASKED = Ids(IDS.ids, np.array([1, 1, 0, 1], np.int64))
TYPED = Ids(IDS.ids, None, np.array([0, 0, 1, 1], np.int64))
PLACED = Ids(IDS.ids, positions=np.array([3, 2, 1, 0], np.int64))
INPUTS = (TEXT, OTHER, LONG, Text("hello", "world"), Text("hello world"), IDS, MASKED, TYPED, PLACED)


class Cached(Service):
    """A service whose pipeline has a cache, and what the cache counted."""

    def __init__(self, store: Path, size: int = MIB, **changes: Any) -> None:
        super().__init__(store, **changes)
        self.hits = self.misses = 0
        self.cache = VectorCache(size, self._count)
        self.pipeline = EmbeddingPipeline(
            self.registry, Settings(store=store, device="cpu", **changes), cache=self.cache
        )

    def _count(self, model: str, hits: int, misses: int) -> None:
        self.hits += hits
        self.misses += misses


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence encoder with prompts."""
    folder = tmp_path_factory.mktemp("cached")
    checkpoint = write_tiny_bert(folder / "checkpoint", pooling="mean")
    write_json(checkpoint / "config_sentence_transformers.json", {"prompts": {"query": "hello ", "passage": "world "}})
    export(checkpoint, folder / "store/a")
    return folder / "store"


@pytest.fixture
def make(store: Path) -> Callable[..., Cached]:
    return lambda *arguments, **changes: Cached(store, *arguments, **changes)


Make = Callable[..., Cached]


async def embed(service: Service, *inputs: Text | Ids, **fields: Any) -> EmbedResult:
    return await service.pipeline.embed(embed_request(inputs, **fields))


async def embed_with_key(service: Service, name: str, text: Text) -> None:
    call = RequestContext()
    call.show_key(name)
    await service.pipeline.embed(embed_request((text,)), call)


def answer(result: EmbedResult) -> dict[str, Any]:
    """All that a result tells its caller, but the times."""
    rows = [(each.name, each.rows.dtype, each.rows.tobytes(), each.lengths) for each in result.outputs]
    return result._asdict() | {"outputs": rows, "times": None}


OPTIONS: list[dict[str, Any]] = [
    {},
    {"outputs": ("sentence_embedding",)},
    {"normalize": False},
    {"dimensions": 8},
    {"dtype": "float16"},
    {"dtype": "bfloat16", "dimensions": 5, "normalize": False},
    {"pooling": "cls"},
    {"pooling": "weightedmean"},
    {"prompt_name": "query"},
    {"prompt_name": "passage"},
    {"max_tokens": 3},
    {"truncation_direction": "left"},
    {"max_tokens": 3, "truncation_direction": "left"},
    {"special_tokens": False},
]


async def test_kept_vectors_equal_computed_ones_bit_for_bit(make: Make, store: Path) -> None:
    plain, cached = Service(store), make()
    computed = [answer(await embed(plain, *INPUTS, **options)) for options in OPTIONS]
    for _ in range(2):  # in the second round all vectors are kept
        assert [answer(await embed(cached, *INPUTS, **options)) for options in OPTIONS] == computed
    assert cached.hits > 9 * len(OPTIONS)
    assert computed[0]["truncated"] == (2,)


async def test_known_texts_are_neither_tokenized_nor_computed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make()
    first = await embed(service, TEXT, IDS)
    engine = Watched(service.registry, monkeypatch)
    monkeypatch.setattr(service.registry.get("a").tokenizer, "encode", None)
    assert answer(await embed(service, TEXT, IDS)) == answer(first)
    assert engine.sequences == 0
    assert (service.hits, service.misses) == (2, 2)


async def test_list_computes_only_what_is_not_known(make: Make, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, service = Service(store), make()
    expected = answer(await embed(plain, OTHER, TEXT, LONG, IDS, TYPED))
    await embed(service, TEXT, IDS)
    engine = Watched(service.registry, monkeypatch)
    assert answer(await embed(service, OTHER, TEXT, LONG, IDS, TYPED)) == expected
    assert engine.sequences == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"pooling": "cls"},
        {"prompt_name": "query"},
        {"max_tokens": 3},
        {"truncation_direction": "left"},
        {"truncate": False},
        {"special_tokens": False},
    ],
)
async def test_options_that_change_a_vector_have_their_own_entry(make: Make, fields: dict[str, Any]) -> None:
    service = make()
    await embed(service, OTHER)
    await embed(service, OTHER, **fields)
    assert (service.hits, service.misses) == (0, 2)


@pytest.mark.parametrize("fields", [{"normalize": False}, {"dimensions": 8}, {"dtype": "float16"}])
async def test_options_that_only_change_its_form_share_one(make: Make, fields: dict[str, Any]) -> None:
    service = make()
    await embed(service, OTHER)
    await embed(service, OTHER, **fields)
    assert (service.hits, service.misses) == (1, 1)


def test_inputs_that_differ_have_different_keys() -> None:
    texts = [
        Text("ab"),
        Text("a", "b"),
        Text("ab", ""),
        Text("", "ab"),
        Text("a"),
        Text("ab "),
        Text("\ud800"),
        Text(""),
    ]
    texts += [Text("1 a"), Text("text ab"), Text("\0ab"), Text("a", "b "), Text("AB")]
    sequences = [IDS, MASKED, TYPED, PLACED, IDS._replace(cut=True), Ids(IDS.ids[:2]), Ids(IDS.ids, types=MASKED.mask)]
    sequences.append(Ids(IDS.ids, extras={"task_type_ids": IDS.ids}))
    sequences.append(Ids(IDS.ids, extras={"langs": IDS.ids}))
    inputs, ids = [*texts, *sequences], [*[None] * len(texts), *sequences]
    cuts = [Cut(), Cut(False), Cut(direction="left"), Cut(max_tokens=3), Cut(special_tokens=False)]
    ways = [
        (name, mode, prompt, cut, task)
        for name, mode in (("", "cls"), ("", None), ("cls", None))
        for prompt in ("", "a")
        for cut in cuts
        for task in (-1, 0)
    ]
    keys = [key for way in ways for key in keys_of(inputs, ids, *way)]
    assert len(set(keys)) == len(ways) * len(inputs)
    assert keys_of(inputs, ids, *ways[0]) == keys_of(inputs, ids, *ways[0])


async def test_rows_of_tokens_are_not_kept(make: Make) -> None:
    service = make()
    for outputs in (("last_hidden_state",), ("sentence_embedding", "last_hidden_state"), ("input_embeddings",)):
        await embed(service, TEXT, outputs=outputs)
    assert service.cache.held_bytes == service.misses == 0


async def test_nothing_is_kept_by_default(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(store)
    await embed(service, TEXT)
    engine = Watched(service.registry, monkeypatch)
    await embed(service, TEXT)
    assert engine.sequences == 1


async def test_values_that_are_not_finite_are_not_kept(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make()
    engine = Watched(service.registry, monkeypatch)
    engine.nan = True
    with pytest.raises(EngineFailure):
        await embed(service, OTHER, TEXT)
    assert service.cache.held_bytes == 0
    engine.nan = False
    assert np.isfinite((await embed(service, TEXT)).outputs[0].rows).all()


async def test_caller_that_leaves_keeps_nothing_half_done(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make()
    engine = Watched(service.registry, monkeypatch)
    engine.hold()
    task = asyncio.create_task(embed(service, TEXT, OTHER))
    await asyncio.wait_for(engine.entered.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    engine.let_go()
    assert service.cache.held_bytes == 0
    assert np.isfinite((await embed(service, TEXT)).outputs[0].rows).all()


async def test_keys_have_entries_of_their_own(make: Make) -> None:
    service = make()

    for name, hits in (("x", 0), ("y", 0), ("x", 1)):
        await embed_with_key(service, name, TEXT)
        assert service.hits == hits


async def test_long_texts_are_found_too_and_by_their_key_alone(make: Make) -> None:
    service = make()
    text = Text("hello world " * 20_000)  # hashed in a thread

    for name, hits in (("x", 0), ("y", 0), ("x", 1)):
        await embed_with_key(service, name, text)
        assert service.hits == hits


async def test_known_texts_are_answered_while_the_queue_is_full(make: Make) -> None:
    service = make(max_queue_tokens=20)
    expected = answer(await embed(service, TEXT))
    service.registry.get("a").batchers["encoder"].queue.reserve(20)
    assert answer(await embed(service, TEXT)) == expected
    for refused in (OTHER, IDS):
        with pytest.raises(Overloaded):
            await embed(service, refused)


@pytest.mark.parametrize(
    ("fields", "settings", "error"),
    [
        ({"prompt_name": "none"}, {}, BadRequest),
        ({"truncate": False}, {}, TooLong),
        ({"dimensions": 0}, {}, BadRequest),
        ({}, {"max_request_tokens": 30}, TooLarge),
        ({}, {"max_request_characters": 1000}, TooLarge),
        ({}, {"max_inputs": 1}, TooLarge),
        ({}, {"max_answer_bytes": 200}, TooLarge),
    ],
)
async def test_limits_and_errors_are_the_same_for_known_texts(
    make: Make, store: Path, fields: dict[str, Any], settings: dict[str, Any], error: type[InlayError]
) -> None:
    cached = make()
    await embed(cached, TEXT, LONG)
    limited = Settings(store=store, device="cpu", **settings)
    messages = []
    for pipeline in (
        EmbeddingPipeline(cached.registry, limited),
        EmbeddingPipeline(cached.registry, limited, cache=cached.cache),
    ):
        with pytest.raises(error) as raised:
            await pipeline.embed(embed_request([TEXT, LONG], **fields))
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


# ---- bounds, and models that go


def model_of(service: Service, name: str = "a") -> Model:
    return service.registry.get(name)


def keep(cache: VectorCache, model: Model, number: int, width: int = 384) -> None:
    cache.keep(model, key_of(number), Ids(np.zeros(24, np.int64)), np.full((1, width), number, np.float32))


def found(cache: VectorCache, model: Model, *numbers: int) -> list[tuple[int, float]]:
    vectors = cache.find(model, [key_of(number) for number in numbers])
    return [(index, float(vector[0, 0])) for index, _, vector in vectors]


def key_of(number: int) -> bytes:
    return keys_of([Text(str(number))], [None], "mean", "", Cut())[0]


def test_memory_stays_within_the_bound(make: Make) -> None:
    model = model_of(make())
    cache = VectorCache(4 * MIB)
    collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(6000):
            keep(cache, model, number)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert cache.held_bytes <= 4 * MIB
    assert 0.7 * 4 * MIB < grown < 4 * MIB


def test_least_recently_used_vectors_make_room(make: Make) -> None:
    model = model_of(make())
    cache = VectorCache(5000)  # two vectors of 384 values
    for number in (1, 2):
        keep(cache, model, number)
    assert found(cache, model, 1) == [(0, 1)]
    keep(cache, model, 3)
    assert found(cache, model, 1, 2, 3) == [(0, 1), (2, 3)]


def test_models_share_the_bound(tmp_path: Path) -> None:
    write(tmp_path / "store", "a")
    shutil.copytree(tmp_path / "store/a", tmp_path / "store/b")
    service = Service(tmp_path / "store")
    a, b = model_of(service, "a"), model_of(service, "b")
    cache = VectorCache(5000)
    for number, model in enumerate((b, a, b)):
        keep(cache, model, number)
    assert found(cache, a, 1, 2) == [(0, 1)]
    assert found(cache, b, 0, 1, 2) == [(2, 2)]


def test_vector_over_the_bound_is_not_kept(make: Make) -> None:
    model = model_of(make())
    cache = VectorCache(1000)
    keep(cache, model, 1)
    assert cache.held_bytes == 0
    keep(cache, model, 1, width=8)
    assert cache.held_bytes > 0


@pytest.mark.parametrize("unloads", [False, True])
async def test_vectors_go_with_their_version_of_a_model(tmp_path: Path, unloads: bool) -> None:
    write(tmp_path / "store", "a")
    service = Cached(tmp_path / "store", model_control="explicit")
    old = await service.vector()
    assert service.cache.held_bytes > 0
    write(tmp_path / "store", "b", seed=1)
    shutil.rmtree(tmp_path / "store/a")
    (tmp_path / "store/b").rename(tmp_path / "store/a")
    if unloads:
        await service.registry.unload("a")
    await service.registry.load("a")
    collect()
    assert service.cache.held_bytes == 0
    new = await service.vector()
    assert new != old
    assert new == await Service(tmp_path / "store").vector()
    assert (service.hits, service.misses) == (0, 2)


async def test_request_of_the_old_version_keeps_nothing_for_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "store", "a")
    service = Cached(tmp_path / "store")
    engine = Watched(service.registry, monkeypatch)
    engine.hold()
    task = asyncio.create_task(service.vector())
    await asyncio.wait_for(engine.entered.wait(), 30)
    write(tmp_path / "store", "b", seed=1)
    shutil.rmtree(tmp_path / "store/a")
    (tmp_path / "store/b").rename(tmp_path / "store/a")
    await service.registry.load("a")
    engine.let_go()
    old = await task
    assert await service.vector() == await Service(tmp_path / "store").vector() != old


# ---- over HTTP and gRPC


def test_responses_say_the_same_and_metrics_count(store: Path) -> None:
    with serving(store, vector_cache_bytes=MIB) as served:
        body = {"inputs": [LONG.text, OTHER.text]}
        first, second = served.post(body), served.post(body)
        assert second.content == first.content
        names = ("inlay-truncated-inputs", "inlay-truncated-count", "x-compute-tokens", "x-compute-characters")
        assert [second.headers[name] for name in names] == [first.headers[name] for name in names]
        usages = [
            served.http.post("/v1/embeddings", json={"model": "a", "input": text}).json()["usage"]
            for text in (OTHER.text, OTHER.text, "hello abc", "hello abc")
        ]
        assert usages[0] == usages[1]
        assert usages[2] == usages[3]
        metrics = served.http.get("/metrics").text
        assert 'inlay_vector_cache_hits_total{model="a"} 5.0' in metrics
        assert 'inlay_vector_cache_misses_total{model="a"} 3.0' in metrics
        assert f"inlay_vector_cache_bytes {3.0 * (480 + 4 * 32)}" in metrics
