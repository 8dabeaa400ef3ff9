"""Admission and deadlines of requests, on every kind of route."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from models.artifacts.export import export
from tests.golden_cases import case, write_checkpoint, write_tiny_bert
from tests.served import Here, serving_here
from tests.vision_cases import export_seen

WORKS: list[tuple[str, str, Any]] = [
    ("POST", "/embed", {"inputs": "hello world"}),
    ("POST", "/v1/embeddings", {"input": "hello world", "model": "bert"}),
    ("POST", "/tokenize", {"inputs": "a b"}),
    ("POST", "/decode", {"ids": [5, 6]}),
    ("POST", "/models/deit/images", {"inputs": {"pixel_values": np.zeros((3, 24, 24)).tolist()}}),
    ("POST", "/models/bert/similar", {"token": 5}),
    ("GET", "/models/bert/analysis", None),
    ("GET", "/positions/sinusoidal?length=4&dim=8", None),
    ("HEAD", "/positions/sinusoidal?length=4&dim=8", None),
    ("POST", "/positions/rope", {"length": 4, "rotary_dim": 8}),
    ("GET", "/positions/rope.png?length=4&rotary_dim=8", None),
]
PROBES = ["/", "/health", "/health/live", "/health/ready", "/metrics", "/models", "/v1/models", "/info"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("admission")
    export(write_tiny_bert(folder / "bert", pooling="mean"), folder / "store/bert")
    export(write_checkpoint(case("input_llama"), folder / "llama"), folder / "store/llama")
    export_seen(case("vision_deit"), folder / "deit", folder / "store/deit")
    return folder / "store"


@pytest.fixture
async def here(store: Path) -> AsyncIterator[Here]:
    async with serving_here(store, default_model="bert") as running:
        yield running


@pytest.fixture
async def client(here: Here) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url="http://{}:{}".format(*here.address), trust_env=False, timeout=60) as client:
        yield client


@pytest.mark.parametrize(("method", "path", "body"), WORKS)
async def test_every_request_is_admitted_once(
    here: Here, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: Any
) -> None:
    admission, active = here.context.admission, list[int]()
    acquire = admission.acquire

    def counted(caller: str) -> None:
        acquire(caller)
        active.append(admission.active)

    monkeypatch.setattr(admission, "acquire", counted)
    answer = await client.request(method, path, json=body)
    assert answer.status_code == 200, answer.text
    assert active == [1]
    async with asyncio.timeout(20):
        while admission.active:  # until the last byte has been sent
            await asyncio.sleep(0)


async def test_full_server_rejects_work_and_answers_probes(store: Path) -> None:
    async with (
        serving_here(store, default_model="bert", max_concurrent_requests=1) as here,
        httpx.AsyncClient(base_url="http://{}:{}".format(*here.address), trust_env=False, timeout=60) as client,
    ):
        here.context.admission.acquire()
        for method, path, body in (*WORKS, ("POST", "/embed", {"inputs": [5, 6]})):
            answer = await client.request(method, path, json=body)
            assert (answer.status_code, answer.headers.get("retry-after")) == (429, "1"), path
        for path in PROBES:
            assert (await client.get(path)).status_code == 200, path
        assert here.context.admission.active == 1
        here.context.admission.release()


async def test_rejects_malformed_timeouts_on_every_route(client: httpx.AsyncClient) -> None:
    for method, path, body in WORKS:
        for sent in ([("inlay-timeout-ms", "soon")], [("inlay-timeout-ms", "50"), ("inlay-timeout-ms", "60")]):
            answer = await client.request(method, path, json=body, headers=sent)
            assert answer.status_code in (400, 422), path
            assert method == "HEAD" or "inlay-timeout-ms" in answer.text, path


async def test_waiting_images_are_dropped_at_their_deadline(
    here: Here, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = here.context.registry.get("deit")
    entered, released, run, runs = threading.Event(), threading.Event(), model.engine.run, list[int]()

    def held(graph: str, feeds: Any, outputs: Any) -> Any:
        runs.append(len(feeds["pixel_values"]))
        entered.set()
        assert released.wait(20)
        return run(graph, feeds, outputs)

    monkeypatch.setattr(model.engine, "run", held)
    path, body = "/models/deit/images", {"inputs": {"pixel_values": np.zeros((3, 24, 24)).tolist()}}
    first = asyncio.create_task(client.post(path, json=body))
    assert await asyncio.to_thread(entered.wait, 20)
    late = [client.post(path, json=body, headers={"inlay-timeout-ms": "100"}) for _ in range(4)]
    answers = await asyncio.gather(*late)
    assert {answer.status_code for answer in answers} == {504}
    assert all("the time allowed is over" in answer.text for answer in answers)
    released.set()
    assert (await first).status_code == 200
    assert (await client.post(path, json=body, headers={"inlay-timeout-ms": "20000"})).status_code == 200
    assert runs == [1, 1]


async def test_body_that_is_still_being_sent_holds_no_place(here: Here) -> None:
    admission = here.context.admission
    reader, writer = await asyncio.open_connection(*here.address)
    body = b'{"head_dim": 8, "length": 4}'
    head = b"POST /positions/rope HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    writer.write(head % len(body) + body[:5])
    await writer.drain()
    await asyncio.sleep(0.1)
    assert admission.active == 0
    writer.write(body[5:])
    assert b" 200 " in await reader.readline()
    writer.close()
    async with asyncio.timeout(20):
        while admission.active:
            await asyncio.sleep(0)


async def test_response_that_is_being_sent_holds_no_place(here: Here, client: httpx.AsyncClient) -> None:
    """Its memory is bounded by the budget, so those who read slowly take no place of those who ask."""
    admission, query = here.context.admission, {"head_dim": 1024, "length": 2**22, "format": "raw"}
    async with client.stream("GET", "/positions/rope", params=query) as answer:
        assert answer.status_code == 200
        assert admission.active == 0


async def test_deadline_does_not_outlive_its_request(client: httpx.AsyncClient) -> None:
    path, query = "/positions/sinusoidal", {"length": 4, "dim": 8}
    assert (await client.get(path, params=query, headers={"inlay-timeout-ms": "2000"})).status_code == 200
    await asyncio.sleep(2.1)
    assert (await client.get(path, params=query)).status_code == 200  # on the same connection


async def test_failed_request_gives_its_place_back(here: Here, client: httpx.AsyncClient) -> None:
    assert (await client.get("/positions/rope")).status_code == 422
    assert (await client.get("/models/none/analysis")).status_code == 404
    assert here.context.admission.active == 0
