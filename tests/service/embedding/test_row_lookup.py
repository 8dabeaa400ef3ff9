"""Row lookup: its answers equal those of the embedding pipeline bit by bit; it leaves all other requests to that."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.artifacts.export import export
from service.embedding.outputs.rows import RUN_TOKENS, RowLookup
from service.embedding.requests import EmbedRequest, EmbedResult, Ids, Input, Text
from service.errors import InlayError
from service.observability.metrics import Metrics
from service.request_context import RequestContext
from service.settings import Settings
from tests.embed_requests import embed_request
from tests.golden_cases import case, write_checkpoint, write_tiny_bert
from tests.service.registry.registry_service import Service
from tests.sweeps import sampled

MODELS = ("bert", "gpt2", "llama", "roberta")
VOCABULARY = 20  # fewer than any of them has


class Both:
    """A service's pipeline and its row lookup over the same models."""

    def __init__(self, store: Path, **changes: Any) -> None:
        self.service = Service(store, **changes)
        self.observed: list[tuple[int, str, int]] = []
        metrics = Metrics()
        metrics.passes = lambda contexts, model, tokens, times, batch: self.observed.append((batch, model, sum(tokens)))  # type: ignore[method-assign]
        self.lookup = RowLookup(self.service.registry, Settings(store=store, device="cpu", **changes), metrics)

    def answer(self, requests: list[EmbedRequest]) -> list[EmbedResult | None]:
        return self.lookup.answer([(request, RequestContext()) for request in requests])

    async def expected(self, request: EmbedRequest) -> EmbedResult | InlayError:
        try:
            return await self.service.pipeline.embed(request)
        except InlayError as error:
            return error


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lookup")
    export(write_tiny_bert(folder / "bert", pooling="mean"), folder / "store/bert")
    for name in MODELS[1:]:
        export(write_checkpoint(case(f"input_{name}"), folder / name), folder / "store" / name)
    return folder / "store"


@pytest.fixture
def make(store: Path) -> Callable[..., Both]:
    return lambda **changes: Both(store, **({"default_model": "bert"} | changes))


def ids(*values: int) -> Ids:
    return Ids(np.array(values, np.int64))


def an_input(chance: random.Random) -> Input:
    kind = chance.random()
    length = chance.choice([1, 2, 3, 8, 16, 24, 25])
    values = [chance.randrange(VOCABULARY) for _ in range(length)]
    array = np.array(values, np.int64)
    if kind < 0.75:
        return Ids(array)
    if kind < 0.78:
        return ids(*values, chance.choice([-1, 10**6, 2**63 - 1, -(2**63)]))
    if kind < 0.81:
        return Ids(np.zeros(0, np.int64))
    if kind < 0.84:
        return Ids(array, mask=np.array([chance.randrange(2) for _ in values], np.int64))
    if kind < 0.87:
        return Ids(array, types=np.array([chance.randrange(2) for _ in values], np.int64))
    if kind < 0.90:
        return Ids(array, positions=np.arange(length)[::-1].copy())
    if kind < 0.95:
        return Ids(np.array([chance.randrange(VOCABULARY) for _ in range(60)], np.int64))  # longer than most models
    return Text("hello world")


OPTIONS: list[dict[str, Any]] = [
    {},
    {"outputs": ("input_embeddings",)},
    {"outputs": ("token_embeddings", "input_embeddings")},
    {"outputs": ("input_embeddings", "input_embeddings")},
    {"outputs": ("position_embeddings",)},
    {"outputs": ("sentence_embedding",)},
    {"outputs": ("input_embeddings",), "dtype": "float16"},
    {"outputs": ("input_embeddings",), "max_tokens": 2},
    {"outputs": ("input_embeddings",), "truncate": False},
    {"outputs": ("input_embeddings",), "truncate": True, "truncation_direction": "left"},
    {"outputs": ("input_embeddings",), "normalize": True},
    {"outputs": ("input_embeddings",), "prompt_name": "none such"},
    {"outputs": ("input_embeddings",), "task": "none such"},
    {"outputs": ("rope_cos",)},
    {"outputs": ("no such output",)},
    {"model": "nobody"},
]


def a_request(chance: random.Random) -> EmbedRequest:
    inputs = [an_input(chance) for _ in range(chance.choice([0, 1, 1, 1, 1, 2, 3, 9]))]
    options = chance.choice(OPTIONS[:4] * 4 + OPTIONS)
    return embed_request(inputs, **({"model": chance.choice(MODELS)} | options))


def same(result: EmbedResult, expected: EmbedResult) -> bool:
    """Whether two results are equal but for their times."""
    assert [each._replace(rows=None) for each in result.outputs] == [
        each._replace(rows=None) for each in expected.outputs
    ]
    for ours, theirs in zip(result.outputs, expected.outputs, strict=True):
        assert (ours.rows.dtype, ours.rows.shape) == (theirs.rows.dtype, theirs.rows.shape)
        assert ours.rows.flags.c_contiguous
        assert ours.rows.tobytes() == theirs.rows.tobytes()
    left_out = {"outputs": (), "times": None}
    return result._replace(**left_out) == expected._replace(**left_out)


LIMITS = [{}, {"max_request_tokens": 20}, {"max_input_tokens": 4}, {"max_inputs": 2}, {"max_answer_bytes": 2000}]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("seed", sampled(range(8), 3))
async def test_answers_equal_those_of_the_pipeline(
    make: Callable[..., Both], limits: dict[str, int], seed: int
) -> None:
    """Requests of every kind together: those that the pipeline refuses are left, the others are equal or left."""
    both, chance, answered = make(**limits), random.Random(seed), 0
    for _ in range(12):
        requests = [a_request(chance) for _ in range(chance.choice([1, 2, 5, 20]))]
        for request, result in zip(requests, both.answer(requests), strict=True):
            if result is None:
                continue
            expected = await both.expected(request)
            assert isinstance(expected, EmbedResult), (request, expected)
            assert same(result, expected)
            answered += 1
    assert answered


@pytest.mark.parametrize("model", MODELS)
async def test_answers_plain_token_ids(make: Callable[..., Both], model: str) -> None:
    both = make()
    outputs = ("input_embeddings",)
    inputs = [[ids(5, 6, 7)], [ids(5)], [ids(1, 1, 1), ids(9, 8)], [ids(*range(24))]]
    requests = [embed_request(each, model, outputs) for each in inputs]
    results = both.answer(requests)
    graph_takes_segments = model == "gpt2"  # those are left: their segments are optional
    for request, result in zip(requests, results, strict=True):
        if graph_takes_segments:
            assert result is None
        else:
            expected = await both.expected(request)
            assert isinstance(expected, EmbedResult)
            assert result is not None
            assert same(result, expected)


async def test_wrong_id_changes_no_other_answer(make: Callable[..., Both]) -> None:
    both, outputs = make(), ("input_embeddings",)
    good = embed_request([ids(5, 6)], "bert", outputs)
    bad = embed_request([ids(5, 10**6)], "bert", outputs)
    other = embed_request([ids(5, 6)], "llama", outputs)
    expected = [await both.expected(each) for each in (good, other)]
    results = both.answer([good, bad, other])
    assert results[1] is None
    for result, reference in ((results[0], expected[0]), (results[2], expected[1])):
        assert isinstance(reference, EmbedResult)
        assert result is None or same(result, reference)
    assert results[2] is not None


async def test_leaves_requests_unanswered_while_the_engine_is_busy(make: Callable[..., Both]) -> None:
    both = make()
    request = embed_request([ids(5, 6)], "bert", ("input_embeddings",))
    model = both.service.registry.get("bert")
    (graph,) = {graph for graph in model.card.graphs if "input_embeddings" in model.card.graphs[graph].outputs}
    assert both.answer([request])[0] is not None
    running = asyncio.ensure_future(both.service.pipeline.embed(request))
    await asyncio.sleep(0)
    assert both.answer([request]) == [None]
    await running
    await asyncio.sleep(0)
    assert model.batchers[graph].waiting_items == 0
    assert both.answer([request])[0] is not None


async def test_many_requests_share_runs_of_bounded_tokens(make: Callable[..., Both]) -> None:
    both = make()
    like = embed_request([], "bert", ("input_embeddings",))  # decoders give equal requests the same options
    requests = [like._replace(inputs=[ids(*[number % VOCABULARY] * 16)]) for number in range(64)]
    results = both.answer(requests)
    for request, result in zip(requests, results, strict=True):
        expected = await both.expected(request)
        assert result is not None
        assert isinstance(expected, EmbedResult)
        assert same(result, expected)
    assert [tokens for _, _, tokens in both.observed] == [RUN_TOKENS] * (64 * 16 // RUN_TOKENS)
    assert sum(requests for requests, _, _ in both.observed) == 64


async def test_failing_engine_leaves_its_requests(make: Callable[..., Both], monkeypatch: pytest.MonkeyPatch) -> None:
    both = make()
    engine = both.service.registry.get("bert").engine

    def fail(*arguments: object) -> Any:
        raise RuntimeError("the card is gone")

    monkeypatch.setattr(type(engine), "run", fail)
    assert both.answer([embed_request([ids(5)], "bert", ("input_embeddings",))]) == [None]
    assert both.observed == []
