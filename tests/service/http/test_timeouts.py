"""Deadlines of HTTP requests: answered in time in every protocol's format, and the work dropped."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.errors import BadRequest
from service.http.timeouts import allowed_seconds
from tests.served import Here, serving_here

IDS, OTHERS, NEW = [5, 6], [6, 5], [6, 6]  # equal ones would share a run
INFER = {"inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [1, 2], "data": IDS}]}
# path, body, status of a deadline that passed, status of a bad header
ROUTES: list[tuple[str, dict[str, Any], int, int]] = [
    ("/embed", {"inputs": IDS}, 504, 422),
    ("/embed_all", {"inputs": "a"}, 504, 422),
    ("/v1/embeddings", {"input": IDS, "model": "bert"}, 504, 400),
    ("/v2/models/bert/infer", INFER, 503, 400),
]


class Held:
    """An engine whose runs wait until they are let go."""

    def __init__(self, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
        model = here.context.registry.get("bert")
        self.batcher = model.batchers["encoder"]
        self.entered, self.released = threading.Event(), threading.Event()
        run = model.engine.run

        def held(*arguments: Any) -> Any:
            self.entered.set()
            assert self.released.wait(20)
            return run(*arguments)

        monkeypatch.setattr(model.engine, "run", held)


@pytest.fixture
async def here(tiny_store: Path) -> AsyncIterator[Here]:
    async with serving_here(tiny_store, default_model="bert") as running:
        yield running


@pytest.fixture
async def client(here: Here) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url="http://{}:{}".format(*here.address), trust_env=False, timeout=60) as client:
        yield client


@pytest.mark.parametrize("header", ["inlay-timeout-ms", "x-envoy-expected-rq-timeout-ms"])
@pytest.mark.parametrize(("path", "body", "status"), [row[:3] for row in ROUTES])
async def test_deadline_is_answered_before_the_run_ends(
    here: Here,
    client: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
    status: int,
    header: str,
) -> None:
    held = Held(here, monkeypatch)
    answer = await client.post(path, json=body, headers={header: "50"})
    assert not held.released.is_set()  # the run it waited for goes on
    assert answer.status_code == status
    assert "time allowed" in answer.text
    held.released.set()
    assert (await client.post(path, json=body, headers={header: "60000"})).status_code == 200


async def test_queued_work_is_dropped_at_its_deadline(
    here: Here, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(here, monkeypatch)
    first = asyncio.create_task(client.post("/embed", json={"inputs": IDS}))
    assert await asyncio.to_thread(held.entered.wait, 20)
    late = [client.post("/embed", json={"inputs": IDS}, headers={"inlay-timeout-ms": "100"}) for _ in range(8)]
    assert {answer.status_code for answer in await asyncio.gather(*late)} == {504}
    held.released.set()
    assert (await first).status_code == 200
    assert (await client.post("/embed", json={"inputs": IDS})).status_code == 200
    text = (await client.get("/metrics")).text
    (items,) = [line for line in text.splitlines() if line.startswith("inlay_batch_items_sum") and "encoder" in line]
    assert float(items.split()[-1]) == 2
    assert (held.batcher.waiting_items, here.context.admission.active) == (0, 0)


async def test_timeout_of_open_inference_is_in_microseconds(
    here: Here, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(here, monkeypatch)
    answer = await client.post("/v2/models/bert/infer", json=INFER | {"parameters": {"timeout": 50_000}})
    assert (answer.status_code, "time allowed" in answer.text) == (503, True)
    held.released.set()
    for timeout in (0, 60_000_000):
        answer = await client.post("/v2/models/bert/infer", json=INFER | {"parameters": {"timeout": timeout}})
        assert answer.status_code == 200
    for timeout in (-1, 1.5, "1"):
        answer = await client.post("/v2/models/bert/infer", json=INFER | {"parameters": {"timeout": timeout}})
        assert (answer.status_code, "timeout" in answer.text) == (400, True)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon", "9" * 16])
@pytest.mark.parametrize(("path", "body", "status"), [(path, body, bad) for path, body, _, bad in ROUTES])
async def test_rejects_malformed_timeouts_by_name(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], status: int, value: str
) -> None:
    answer = await client.post(path, json=body, headers={"inlay-timeout-ms": value})
    assert (answer.status_code, "inlay-timeout-ms" in answer.text) == (status, True)


def test_shorter_of_two_timeouts_counts() -> None:
    both = {b"inlay-timeout-ms": b"2000", b"x-envoy-expected-rq-timeout-ms": b"1500"}
    assert allowed_seconds(both) == 1.5
    with pytest.raises(BadRequest, match="x-envoy-expected-rq-timeout-ms is ''"):
        allowed_seconds({b"x-envoy-expected-rq-timeout-ms": b""})


async def test_full_queue_refuses_text_and_ids_alike(tiny_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_here(tiny_store, default_model="bert", max_queue_tokens=3) as here:
        held = Held(here, monkeypatch)
        url = "http://{}:{}".format(*here.address)
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
            first = asyncio.create_task(client.post("/embed", json={"inputs": IDS}))
            assert await asyncio.to_thread(held.entered.wait, 20)
            second = asyncio.create_task(client.post("/embed", json={"inputs": OTHERS}))
            async with asyncio.timeout(20):
                while not held.batcher.waiting_items:
                    await asyncio.sleep(0)
            for inputs in ("hello", ["hello"], NEW, [NEW]):
                answer = await client.post("/embed", json={"inputs": inputs})
                assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
            held.released.set()
            assert [(await each).status_code for each in (first, second)] == [200, 200]
