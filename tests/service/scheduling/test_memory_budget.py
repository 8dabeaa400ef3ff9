"""Memory is reserved before it is used, refused where there is none, and given back in every case."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from models.artifacts.export import export
from proto import embed_pb2 as pb
from proto.embed_pb2_grpc import EmbedderStub
from service.embedding.pipeline import EmbeddingPipeline
from service.embedding.requests import Ids, Text
from service.errors import Overloaded, TooLarge
from service.request_context import RequestContext
from service.scheduling.memory_budget import SMALL_BYTES, MemoryBudget
from service.settings import Settings, available_memory
from tests.embed_requests import embed_request
from tests.golden_cases import write_tiny_bert
from tests.served import Here, serving_here
from tests.service.registry.registry_service import Service

MIB = 2**20
ROWS = {"inputs": [[5, 6, 7, 8] * 6] * 2048, "outputs": ["input_embeddings"]}  # of 32 values: 6 MiB


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory")
    export(write_tiny_bert(folder / "bert", pooling="mean"), folder / "store/bert")
    return folder / "store"


@pytest.fixture
async def here(store: Path) -> AsyncIterator[Here]:
    async with serving_here(store, max_inputs=4096, max_answering_bytes=24 * MIB, max_answer_bytes=64 * MIB) as running:
        yield running


@pytest.fixture
async def client(here: Here) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url="http://{}:{}".format(*here.address), trust_env=False, timeout=60) as client:
        yield client


async def given_back(budget: MemoryBudget) -> None:
    async with asyncio.timeout(20):
        while budget.held:
            await asyncio.sleep(0.001)


# ---- the budget


def test_room_is_taken_and_given_back() -> None:
    budget, context = MemoryBudget(100), RequestContext()
    budget.reserve(60, context)
    budget.reserve(20, context)
    assert budget.held == 80
    with pytest.raises(Overloaded, match="hold 80 bytes and this one needs 30; this server has 100") as refused:
        budget.reserve(30, RequestContext())
    assert refused.value.retry_after == 1
    context.release()
    context.release()
    assert budget.held == 0


def test_request_that_never_fits_is_told_so() -> None:
    with pytest.raises(TooLarge, match=r"needs 101 bytes of memory; .*INLAY_MAX_ANSWERING_BYTES"):
        MemoryBudget(100).reserve(101, RequestContext())


def test_large_requests_leave_room_for_small_ones() -> None:
    budget = MemoryBudget(64 * SMALL_BYTES)
    for _ in range(7):
        budget.reserve(8 * SMALL_BYTES, RequestContext())
    with pytest.raises(Overloaded):
        budget.reserve(2 * SMALL_BYTES, RequestContext())
    for _ in range(8):
        budget.reserve(SMALL_BYTES, RequestContext())
    assert not budget.has_room


def test_last_part_is_for_callers_that_hold_little() -> None:
    budget, bulk, light = MemoryBudget(64 * SMALL_BYTES), RequestContext(), RequestContext()
    bulk.caller, light.caller = "bulk", "light"
    for _ in range(60):
        budget.reserve(SMALL_BYTES, bulk)
    with pytest.raises(Overloaded):
        budget.reserve(1, bulk)
    budget.reserve(SMALL_BYTES, light)
    with pytest.raises(Overloaded):
        budget.reserve(1, light)
    bulk.release()
    budget.reserve(1, light)
    light.release()
    assert budget.held == 0
    budget.reserve(64 * SMALL_BYTES, bulk)  # nobody else holds any


def test_one_large_request_has_the_whole_budget() -> None:
    budget = MemoryBudget(64 * SMALL_BYTES)
    with budget.held_for(64 * SMALL_BYTES):
        assert not budget.has_room
    assert budget.held == 0


def test_what_needs_nothing_is_admitted_beside_unread_answers() -> None:
    budget = MemoryBudget(100)
    budget.add(150)
    with budget.held_for(0):
        assert budget.held == 150
    with pytest.raises(Overloaded):
        budget.reserve(1, RequestContext())


# ---- the settings


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({"memory.max": "536870912"}, "0::/\n", 512),
        ({"memory.max": "max"}, "0::/\n", None),
        ({"a/memory.max": "1073741824", "a/b/memory.max": "max"}, "0::/a/b\n", 1024),
        ({"a/memory.max": "1073741824", "a/b/memory.max": "2147483648"}, "0::/a/b\n", 1024),
        ({"memory.max": "536870912"}, "0::/host/path/of/the/container\n", 512),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, "4:memory:/\n", None),
        ({"memory/a/memory.limit_in_bytes": "536870912"}, "4:memory:/a\n", 512),
        ({"memory/memory.limit_in_bytes": "536870912"}, "4:memory:/docker/0123\n", 512),
        ({}, "", None),
    ],
)
def test_memory_is_that_of_the_cgroup(tmp_path: Path, files: dict[str, str], own: str, expected: int | None) -> None:
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (tmp_path / "own").write_text(own)
    physical = available_memory(tmp_path / "none", tmp_path / "none")
    assert available_memory(tmp_path / "fs", tmp_path / "own") == (expected * MIB if expected else physical)


def test_defaults_are_shares_of_each_workers_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.settings.available_memory", lambda: 1024 * MIB)
    one, two = Settings(), Settings(workers=2)
    for settings, memory in ((one, 832 * MIB), (two, 320 * MIB)):
        assert settings.max_answering_bytes == memory // 4
        assert settings.max_answer_bytes == memory // 9
        assert settings.max_receiving_bytes == settings.table_cache_bytes == memory // 16
    monkeypatch.setattr("service.settings.available_memory", lambda: 64 * 1024 * MIB)
    assert Settings().max_answer_bytes == 512 * MIB
    assert Settings(max_answer_bytes=5).max_answer_bytes == 5


# ---- requests


@pytest.mark.parametrize(
    ("accept", "fields"),
    [
        ("application/json", {}),
        ("application/json", {"encoding_format": "base64"}),
        ("application/x-npy", {}),
        ("application/vnd.safetensors", {}),
    ],
)
async def test_answer_reserves_memory_until_it_has_left(
    here: Here, client: httpx.AsyncClient, accept: str, fields: dict[str, Any]
) -> None:
    budget = here.context.budget
    async with client.stream("POST", "/embed", json=ROWS | fields, headers={"accept": accept}) as answer:
        assert answer.status_code == 200
        assert budget.held >= 6 * MIB
        assert len(await answer.aread()) >= 3 * MIB
    await given_back(budget)


async def test_client_that_leaves_gives_its_memory_back(here: Here, client: httpx.AsyncClient) -> None:
    async with client.stream("POST", "/embed", json=ROWS) as answer:
        assert answer.status_code == 200
    await given_back(here.context.budget)


async def test_readers_that_wait_are_counted_and_others_refused(here: Here, client: httpx.AsyncClient) -> None:
    budget = here.context.budget
    async with asyncio.timeout(20):
        async with (
            client.stream("POST", "/embed", json=ROWS) as first,
            client.stream("POST", "/embed", json=ROWS) as second,
            client.stream("POST", "/embed", json=ROWS) as third,
        ):
            assert [each.status_code for each in (first, second, third)] == [200] * 3
            refused = await client.post("/embed", json=ROWS)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert (await client.post("/embed", json={"inputs": [[5, 6]]})).status_code == 200
            assert here.context.admission.active == 0
            for answer in (first, second, third):
                await answer.aread()
        await given_back(budget)
    assert (await client.post("/embed", json=ROWS)).status_code == 200


async def test_request_above_the_budget_is_refused_before_its_run(here: Here, client: httpx.AsyncClient) -> None:
    body = {
        "inputs": [[5, 6, 7, 8] * 6] * 2600,
        "outputs": ["input_embeddings", "token_embeddings"],
        "dtype": "float16",
    }
    refused = await client.post("/embed", json=body)
    assert refused.status_code == 422
    assert "INLAY_MAX_ANSWERING_BYTES" in refused.text
    assert here.context.budget.held == 0


def padded_ids(rows: int, longest: int) -> dict[str, Any]:
    """A body of Open Inference whose rows but the first are one token and padding."""
    masks = [[1] * longest] + [[1] + [0] * (longest - 1)] * (rows - 1)
    tensors = {"input_ids": [[5] * longest] * rows, "attention_mask": masks}
    inputs = [
        {"name": name, "datatype": "INT64", "shape": [rows, longest], "data": data} for name, data in tensors.items()
    ]
    return {"inputs": inputs, "outputs": [{"name": "input_embeddings"}]}


GRADIENT = {"input_ids": [5] * 4096, "lengths": [32] * 128, "gradient": [[0.5] * 32] * 4096}  # four copies: 4 MiB


@pytest.mark.parametrize(
    ("path", "body", "refused"),
    [("/v2/models/bert/infer", padded_ids(2000, 24), 503), ("/models/bert/gradient", GRADIENT, 429)],
    ids=["padding of Open Inference", "gradients"],
)
async def test_other_arrays_reserve_memory_too(
    here: Here, client: httpx.AsyncClient, path: str, body: dict[str, Any], refused: int
) -> None:
    budget = here.context.budget
    budget.add(18 * MIB)
    assert (await client.post(path, json=body)).status_code == refused
    assert budget.held == 18 * MIB
    budget.give_back(18 * MIB)
    answered = await client.post(path, json=body)
    assert answered.status_code == 200, answered.text
    await given_back(budget)


async def test_failed_requests_give_their_memory_back(here: Here, client: httpx.AsyncClient) -> None:
    body = ROWS | {"inputs": [[5, 10**6]] * 1024}
    assert (await client.post("/embed", json=body)).status_code == 422
    late = await client.post("/embed", json=ROWS, headers={"inlay-timeout-ms": "1"})
    assert late.status_code == 504
    await given_back(here.context.budget)


async def test_texts_reserve_memory_while_they_are_tokenized(
    here: Here, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, held = here.context.registry.get(None), list[int]()
    encode = type(model.tokenizer).encode

    def watched(tokenizer: Any, *arguments: Any) -> Any:
        if tokenizer is model.tokenizer:  # not that of another test's service
            held.append(here.context.budget.held)
        return encode(tokenizer, *arguments)

    monkeypatch.setattr(type(model.tokenizer), "encode", watched)
    assert (await client.post("/embed", json={"inputs": " " * 20_000 + "hello"})).status_code == 200
    assert max(held) >= 1000 * 20_000  # a readiness check may have come first
    await given_back(here.context.budget)


async def test_grpc_answers_reserve_memory_until_they_have_left(here: Here) -> None:
    budget = here.context.budget
    request = pb.EmbedRequest(
        inputs=[pb.Input(ids=pb.TokenIds(input_ids=each)) for each in ROWS["inputs"]], outputs=ROWS["outputs"]
    )
    async with grpc.aio.insecure_channel(here.rpc_address, [("grpc.max_receive_message_length", -1)]) as channel:
        stub: Any = EmbedderStub(channel)
        calls = [stub.Embed(request) for _ in range(6)]
        codes = [await call.code() for call in calls]
        assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
        await given_back(budget)
        stream = stub.EmbedStream()
        for _ in range(3):  # answers that nobody reads
            await stream.write(request)
        async with asyncio.timeout(20):
            while budget.held < 12 * MIB:
                await asyncio.sleep(0.001)
        stream.cancel()
        await given_back(budget)


async def test_hidden_states_are_pooled_as_they_come(store: Path) -> None:
    budget = MemoryBudget(2 * MIB)
    service, context = Service(store, max_answer_bytes=1 * MIB), RequestContext()
    service.pipeline = EmbeddingPipeline(service.registry, Settings(), budget=budget)
    many = embed_request([Ids(np.arange(5, 25)), Text("hello world")] * 500, outputs=("sentence_embedding",))
    result = await service.pipeline.embed(many, context)
    assert result.outputs[0].rows.shape == (1000, 32)
    assert budget.held == 2 * result.outputs[0].rows.nbytes
    context.release()
    assert budget.held == 0
