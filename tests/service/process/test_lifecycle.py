"""Responses of a service that stops, fails or is cancelled."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from models import VERSION
from service.errors import EngineFailure
from service.scheduling.batcher import Batcher, abandoned_runs
from service.scheduling.fair_queue import FairQueue
from tests.served import serving_here

ROOT = Path(__file__).parents[3]


async def test_stopping_service_is_alive_and_not_ready(tiny_store: Path) -> None:
    async with serving_here(tiny_store, default_model="bert") as here:
        url = "http://{}:{}".format(*here.address)
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
            assert (await client.get("/health/ready")).status_code == 200
            here.context.lifecycle.stopping = True
            refused = await client.get("/health/ready")
            assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
            assert (await client.get("/health/live")).status_code == 200
            answer = await client.post("/embed", json={"inputs": [5]})
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")


async def test_readiness_says_that_requests_must_name_a_model(tiny_store: Path) -> None:
    async with serving_here(tiny_store) as here:
        url = "http://{}:{}".format(*here.address)
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
            ready = await client.get("/health/ready")
            assert (ready.status_code, ready.json()["status"]) == (200, "ready")
            assert "several models and none is the default" in ready.json()["detail"]
            refused = [
                await client.post("/embed", json={"inputs": "hello world"}),
                await client.post("/v1/embeddings", json={"input": "hello world"}),
                await client.get("/info"),
            ]
            assert [answer.status_code // 100 for answer in refused] == [4, 4, 4]
            assert all("INLAY_DEFAULT_MODEL" in answer.text for answer in refused)
            await here.context.registry.unload("llama")
            assert (await client.get("/health/ready")).json() == {"status": "ready"}
            assert (await client.post("/embed", json={"inputs": "hello world"})).status_code == 200


async def test_fault_is_a_500_without_details(tiny_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("secret")

    async with serving_here(tiny_store, default_model="bert") as here:
        monkeypatch.setattr(here.context.embedder, "embed", fail)
        url = "http://{}:{}".format(*here.address)
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
            answer = await client.post("/embed", json={"inputs": [5]})
    assert (answer.status_code, answer.json()["code"]) == (500, "error")
    assert "secret" not in answer.text


async def test_headers_of_one_name_are_joined(tiny_store: Path) -> None:
    async with serving_here(tiny_store, default_model="bert") as here:
        url = "http://{}:{}".format(*here.address)
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
            accept = [("accept", "text/html"), ("accept", "application/x-npy")]
            answer = await client.post("/embed", json={"inputs": [5]}, headers=accept)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-npy")


def test_version_is_that_of_pyproject() -> None:
    assert f'version = "{VERSION}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


async def test_request_longer_than_the_stop_gets_an_error(tiny_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = asyncio.Event()

    async def wait(*_: object) -> None:
        entered.set()
        await asyncio.Event().wait()

    async with serving_here(tiny_store, default_model="bert") as here:
        monkeypatch.setattr(here.context.embedder, "embed", wait)
        url = "http://{}:{}".format(*here.address)
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
            request = asyncio.create_task(client.post("/embed", json={"inputs": [5]}))
            await entered.wait()
            here.context.lifecycle.stopping = True
            for connection in [*here.server.server_state.connections]:  # as uvicorn stops
                connection.shutdown()
            for task in here.server.server_state.tasks:  # as it does when its patience ends
                task.cancel()
            answer = await request
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")


async def test_liveness_returns_once_stuck_runs_have_ended(tiny_store: Path) -> None:
    gate = threading.Event()

    async def gives_up() -> None:
        batcher: Batcher[bool, bool] = Batcher(
            lambda items: [gate.wait(20)] * len(items),
            FairQueue(1, None),
            max_batch_cost=1,
            max_inline_cost=0,
            new_executor=lambda: ThreadPoolExecutor(1),
            observe=lambda *figures: None,
            stuck_seconds=0.01,
        )
        with pytest.raises(EngineFailure):
            await batcher.submit([True], [1])[0]

    async with serving_here(tiny_store, default_model="bert") as here:
        url = "http://{}:{}".format(*here.address)
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
            for expected in (200, 200, 503):
                await gives_up()  # of a model that is gone since
                assert (await client.get("/health/live")).status_code == expected
            assert "3 runs were given up and each still holds a thread" in (await client.get("/health/live")).text
            gate.set()
            async with asyncio.timeout(20):
                while abandoned_runs():
                    await asyncio.sleep(0)
            assert (await client.get("/health/live")).status_code == 200
