"""Many callers at once on the demo model: few engine runs, as /metrics counts them, and each answer as it is alone."""

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from proto import embed_pb2 as pb
from proto.embed_pb2_grpc import EmbedderStub
from tests.served import Here, array_of, serving_here

CALLERS = 100
SHARED = CALLERS / 2  # runs: on a quiet machine 3 to 12, on a busy one requests arrive apart and 24 were seen
POOLED = 1e-5
OCTETS = "application/octet-stream"
WORDS = ("river", "stone", "market", "engine", "violin", "harbour", "theory", "copper", "garden", "signal")
PATIENCE_SECONDS = 60


@pytest.fixture
async def here(minilm_store: Path) -> AsyncIterator[Here]:
    async with serving_here(minilm_store, max_queue_seconds=60) as running:
        yield running


@dataclass(frozen=True)
class Connection:
    """One open HTTP/1.1 connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, body: Any, accept: str = OCTETS) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"POST /embed HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\ncontent-type: application/json\r\n"
        self.writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)

    async def answer(self) -> tuple[int, bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.partition("content-length:")[2].partition("\r\n")[0])
        return int(head.split(" ")[1]), await self.reader.readexactly(length)

    async def ask(self, body: Any) -> bytes:
        self.send(body)
        status, content = await self.answer()
        assert status == 200, content
        return content


@asynccontextmanager
async def connected(here: Here, count: int) -> AsyncIterator[list[Connection]]:
    connections = [Connection(*await asyncio.open_connection(*here.address)) for _ in range(count)]
    try:
        yield connections
    finally:
        await hang_up(connections)


async def hang_up(connections: Sequence[Connection]) -> None:
    for connection in connections:
        connection.writer.close()
    for connection in connections:
        await connection.writer.wait_closed()


async def measured(here: Here, name: str, **labels: str) -> float:
    """The sum of a metric's samples that carry these labels, as Prometheus would scrape it."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        text = (await client.get("http://{}:{}/metrics".format(*here.address))).raise_for_status().text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())


def mixed_texts(count: int) -> list[str]:
    """Texts of 1 to 40 words, short ones more often, no two alike."""
    draw, texts = random.Random(7), dict[str, None]()
    while len(texts) < count:
        texts[" ".join(draw.choices(WORDS, k=int(40 ** draw.random())))] = None
    return list(texts)


def mixed_ids(count: int, longest: int) -> list[list[int]]:
    draw = random.Random(8)
    return [[draw.randrange(30522) for _ in range(int(longest ** draw.random()))] for _ in range(count)]


@dataclass(frozen=True)
class Crowd:
    """The answer to each body, alone and in the crowd, and the engine runs of the crowd."""

    alone: list[bytes]
    together: list[bytes]
    runs: float
    items: float


async def crowd(here: Here, bodies: list[Any], graph: str) -> Crowd:
    counters = ("inlay_engine_run_seconds_count", "inlay_batch_items_sum")
    async with connected(here, len(bodies)) as connections:
        alone = [await connection.ask(body) for connection, body in zip(connections, bodies, strict=True)]
        before = [await measured(here, name, model="minilm", graph=graph) for name in counters]
        for connection, body in zip(connections, bodies, strict=True):
            connection.send(body)
        answers = await asyncio.gather(*(connection.answer() for connection in connections))
    after = [await measured(here, name, model="minilm", graph=graph) for name in counters]
    assert {status for status, _ in answers} == {200}
    return Crowd(alone, [content for _, content in answers], after[0] - before[0], after[1] - before[1])


async def densest(here: Here, bodies: list[Any], graph: str, most_runs: float) -> Crowd:
    """A crowd of at most so many runs, or the last of five: on a busy machine requests arrive apart and share none."""
    for _ in range(5):
        seen = await crowd(here, bodies, graph)
        if seen.runs <= most_runs:
            break
    return seen


@pytest.mark.parametrize(("longest", "most_runs"), [(20, SHARED), (500, CALLERS * 0.75)])
async def test_callers_of_the_input_layer_share_runs_bitwise(here: Here, longest: int, most_runs: float) -> None:
    """A run holds RUN_TOKENS of them."""
    bodies = [{"inputs": ids, "outputs": "input_embeddings"} for ids in mixed_ids(CALLERS, longest)]
    seen = await densest(here, bodies, "embedding", most_runs)
    assert seen.together == seen.alone
    assert CALLERS <= seen.items < 2 * CALLERS  # a readiness check's item may be among them
    assert seen.runs <= most_runs


async def test_callers_of_the_encoder_share_runs(here: Here) -> None:
    texts = mixed_texts(CALLERS)
    seen = await densest(here, [{"inputs": text} for text in texts], "encoder", SHARED)
    alone, together = (
        np.array([np.frombuffer(content, np.float32) for content in each]) for each in (seen.alone, seen.together)
    )
    assert np.abs(alone - together).max() <= POOLED
    assert len(np.unique(alone.round(3), axis=0)) == len(set(texts))  # so that a mix-up would show
    assert CALLERS <= seen.items < 2 * CALLERS  # a readiness check's item may be among them
    assert seen.runs <= SHARED


async def grpc_crowd(here: Here, output: str) -> tuple[list[NDArray[Any]], list[NDArray[Any]], float]:
    """Each caller's rows alone and among all, and the engine runs of the crowd."""
    requests = [pb.EmbedRequest(inputs=[pb.Input(text=text)], outputs=[output]) for text in mixed_texts(CALLERS)]
    async with grpc.aio.insecure_channel(here.rpc_address) as channel:
        stub: Any = EmbedderStub(channel)
        alone = [await stub.Embed(request) for request in requests]
        before = await measured(here, "inlay_engine_run_seconds_count")
        together = await asyncio.gather(*(stub.Embed(request) for request in requests))
    runs = await measured(here, "inlay_engine_run_seconds_count") - before
    first, second = ([array_of(answer.outputs[0].tensor) for answer in answers] for answers in (alone, together))
    return first, second, runs


async def test_grpc_callers_of_the_encoder_share_runs(here: Here) -> None:
    for _ in range(5):  # as `densest`
        alone, together, runs = await grpc_crowd(here, "sentence_embedding")
        if runs <= SHARED:
            break
    assert np.abs(np.concatenate(alone) - np.concatenate(together)).max() <= POOLED
    assert runs <= SHARED


async def test_grpc_callers_of_the_input_layer_get_their_own_rows(here: Here) -> None:
    # how many runs they share depends on how fast calls arrive: a client as slow as the engine shares none
    alone, together, _ = await grpc_crowd(here, "input_embeddings")
    for mine, crowded in zip(alone, together, strict=True):
        np.testing.assert_array_equal(mine, crowded)


BAD: dict[str, tuple[Any, int]] = {
    "an id outside the vocabulary": ({"inputs": [[101, 30522]]}, 422),
    "an id below 0": ({"inputs": [[101, -1]]}, 422),
    "too long and not to be cut": ({"inputs": "a " * 300, "truncate": False}, 422),
    "a mask of zeros": ({"inputs": {"input_ids": [101, 102], "attention_mask": [0, 0]}}, 422),
    "a mask too short": ({"inputs": {"input_ids": [101, 102], "attention_mask": [1]}}, 422),
    "an unknown output": ({"inputs": "a", "outputs": "logits"}, 422),
    "an unknown model": ({"inputs": "a", "model": "nobody"}, 404),
    "no inputs": ({"inputs": []}, 400),
    "half a body": (b'{"inputs": "a', 400),
    "not an input": ({"inputs": [None]}, 422),
}


async def test_bad_request_changes_no_other_answer(here: Here) -> None:
    texts = mixed_texts(6)
    async with connected(here, len(texts) + 1) as [*connections, bad]:
        alone = [await each.ask({"inputs": text}) for each, text in zip(connections, texts, strict=True)]
        for name, (body, expected) in BAD.items():
            for index, (connection, text) in enumerate(zip(connections, texts, strict=True)):
                if index == 3:
                    bad.send(body)
                connection.send({"inputs": text})
            answers = await asyncio.gather(*(connection.answer() for connection in connections))
            status, problem = await bad.answer()
            assert (status, json.loads(problem)["status"]) == (expected, expected), name
            for mine, (status, content) in zip(alone, answers, strict=True):
                assert status == 200, name
                assert np.abs(np.frombuffer(content, np.float32) - np.frombuffer(mine, np.float32)).max() <= POOLED, (
                    name
                )


async def test_bad_input_fails_its_request_and_is_named(here: Here) -> None:
    async with connected(here, 1) as [connection]:
        connection.send({"inputs": ["fine", [101, 102], [101, 999999], "fine"]})
        status, problem = await connection.answer()
    assert (status, json.loads(problem)["index"]) == (422, 2)


class HeldEngine:
    """An engine whose runs wait until they are let go, so that a test decides what is queued."""

    def __init__(self, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
        model = here.context.registry.get("minilm")
        self.batcher = model.batchers["encoder"]
        self.entered, self.released = threading.Event(), threading.Event()
        run = model.engine.run

        def held(*arguments: Any) -> Any:
            self.entered.set()
            assert self.released.wait(PATIENCE_SECONDS)
            return run(*arguments)

        monkeypatch.setattr(model.engine, "run", held)

    async def busy(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, PATIENCE_SECONDS)

    async def queued(self, tokens: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.batcher.waiting_cost < tokens:
                await asyncio.sleep(0)


async def test_requests_of_disconnected_clients_do_not_run(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldEngine(here, monkeypatch)
    async with connected(here, 21) as [first, *others]:
        first.send({"inputs": [[101, 7591, 102]]})  # no longer than the others, so that none runs beside it
        await held.busy()
        for number, connection in enumerate(others):
            connection.send({"inputs": [[101, 7592 + number, 102]]})
        await held.queued(20 * 3)
        leaving, staying = others[:15], others[15:]
        await hang_up(leaving)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await measured(here, "inlay_requests_total", status="499") < len(leaving):
                pass
        held.released.set()
        answers = await asyncio.gather(*(connection.answer() for connection in (first, *staying)))
    assert {status for status, _ in answers} == {200}
    assert await measured(here, "inlay_batch_items_sum", graph="encoder") == 1 + len(staying)
    assert await measured(here, "inlay_engine_run_seconds_count", graph="encoder") == 2


async def test_cancelled_grpc_calls_do_not_run(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldEngine(here, monkeypatch)
    inputs = [pb.Input(ids=pb.TokenIds(input_ids=[101, 7592 + number, 102])) for number in range(11)]
    requests = [pb.EmbedRequest(inputs=[each]) for each in inputs]
    async with grpc.aio.insecure_channel(here.rpc_address) as channel:
        stub: Any = EmbedderStub(channel)
        calls = [stub.Embed(requests[0])]
        await held.busy()
        calls += [stub.Embed(request) for request in requests[1:]]
        await held.queued(10 * 3)
        for call in calls[5:]:
            assert call.cancel()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await measured(here, "inlay_requests_total", protocol="grpc", status="CANCELLED") < 6:
                pass
        held.released.set()
        await asyncio.gather(*calls[:5])
    assert await measured(here, "inlay_batch_items_sum", graph="encoder") == 5
