"""What costs work passes the door once, is inside until its answer is sent, and ends when its caller's time is over."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from models.artifacts.export import export
from service.errors import Overloaded
from service.protocols.inlay.positions.endpoint import Endpoint
from service.scheduling import deadlines
from tests.golden_cases import case, write_checkpoint, write_tiny_bert
from tests.served import Here, serving_here
from tests.vision_cases import export_seen

WORKS: list[tuple[str, str, Any]] = [
    ("POST", "/embed", {"inputs": [5, 6]}),
    ("POST", "/v1/embeddings", {"input": [5, 6], "model": "bert"}),
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
    folder = tmp_path_factory.mktemp("door")
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
    async with httpx.AsyncClient(base_url="http://{}:{}".format(*here.address), trust_env=False, timeout=20) as client:
        yield client


@pytest.fixture(autouse=True)
def _unhurried() -> Iterator[None]:
    yield
    deadlines.allow(None)


@pytest.mark.parametrize(("method", "path", "body"), WORKS)
async def test_every_kind_of_work_is_counted_once(
    here: Here, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: Any
) -> None:
    door, most = here.parts.encoder.door, list[int]()
    enter = door.enter

    def counted() -> None:
        enter()
        most.append(door.inside)

    monkeypatch.setattr(door, "enter", counted)
    answer = await client.request(method, path, json=body)
    assert answer.status_code == 200, answer.text
    assert most == [1]
    assert door.inside == 0


async def test_where_too_many_are_inside_every_kind_of_work_is_refused_and_no_probe_and_no_list(
    here: Here, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here.parts.encoder.door, "_max_requests", 0)
    for method, path, body in WORKS:
        answer = await client.request(method, path, json=body)
        assert (answer.status_code, answer.headers.get("retry-after")) == (429, "1"), path
    for path in PROBES:
        assert (await client.get(path)).status_code == 200, path
    assert here.parts.encoder.door.inside == 0


async def test_a_header_that_is_no_time_is_refused_by_name_on_every_road(client: httpx.AsyncClient) -> None:
    for method, path, body in WORKS:
        for sent in ([("inlay-timeout-ms", "soon")], [("inlay-timeout-ms", "50"), ("inlay-timeout-ms", "60")]):
            answer = await client.request(method, path, json=body, headers=sent)
            assert answer.status_code in (400, 422), path
            assert method == "HEAD" or "inlay-timeout-ms" in answer.text, path


async def test_images_that_wait_are_dropped_with_their_deadline(
    here: Here, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = here.parts.catalog.get("deit")
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


class Seen:
    """An ASGI conversation: a body that comes in pieces, and how many were inside as each message passed."""

    def __init__(self, here: Here, *pieces: bytes) -> None:
        self.door = here.parts.encoder.door
        self.pieces = list(pieces)
        self.receiving: list[int] = []
        self.sending: list[int] = []

    async def receive(self) -> dict[str, Any]:
        if not self.pieces:
            await asyncio.Event().wait()  # its client stays
        self.receiving.append(self.door.inside)
        return {"type": "http.request", "body": self.pieces.pop(0), "more_body": bool(self.pieces)}

    async def send(self, message: Any) -> None:
        self.sending.append(self.door.inside)

    async def ask(self, here: Here, answer: Any, method: str, *headers: tuple[bytes, bytes]) -> None:
        scope = {"type": "http", "method": method, "path": "/x", "query_string": b"", "headers": headers}
        await Endpoint("/x", answer, here.parts)(scope, self.receive, self.send)


async def _streamed(request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"row"

    await request.body()
    return StreamingResponse(parts())


async def test_who_still_sends_its_body_holds_no_place_and_who_is_being_sent_rows_does(here: Here) -> None:
    seen = Seen(here, b"a", b"b", b"c")
    await seen.ask(here, _streamed, "POST")
    assert seen.receiving == [0, 0, 0]
    assert seen.sending == [1] * 5
    assert seen.door.inside == 0


async def test_a_request_without_a_header_has_no_deadline_of_the_one_before_on_its_connection(here: Here) -> None:
    left = list[float | None]()

    async def answer(request: Request) -> Response:
        left.append(deadlines.current())
        return Response(b"")

    await Seen(here).ask(here, answer, "GET", (b"inlay-timeout-ms", b"5000"))
    await Seen(here).ask(here, answer, "GET")
    assert [each is None for each in left] == [False, True]


async def test_a_place_is_given_back_whatever_becomes_of_the_request(here: Here) -> None:
    async def fails(request: Request) -> Response:
        raise Overloaded("its own")

    async def left(request: Request) -> Response:
        raise asyncio.CancelledError

    for answer, kind in ((fails, Overloaded), (left, asyncio.CancelledError)):
        with pytest.raises(kind):
            await Seen(here).ask(here, answer, "GET")
    assert here.parts.encoder.door.inside == 0
