"""Models that their first requests load, over the wire: budget, keep_alive, pinning, waiting, failures."""

import asyncio
import json
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from models.artifacts import card as cards
from proto import embed_pb2 as pb
from proto.embed_pb2_grpc import EmbedderStub
from service.errors import StartError
from service.observability.metrics import Metrics
from service.registry import loading, on_demand
from service.registry.registry import open_registry
from service.settings import Settings
from tests.served import Here, serving_here
from tests.service.registry.registry_service import write

TEXT = {"inputs": ["hello world"]}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models a, b and c, of one checkpoint."""
    folder = tmp_path_factory.mktemp("demand")
    write(folder / "store", "a")
    for name in ("b", "c"):
        shutil.copytree(folder / "store/a", folder / "store" / name)
    return folder / "store"


@pytest.fixture
def store(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "store"))


def size_of(store: Path, name: str = "a") -> int:
    return sum(file.bytes for file in cards.read(store / name).files.values())


@dataclass(frozen=True)
class Demand:
    """A service that loads on demand, and a client."""

    here: Here
    http: httpx.AsyncClient

    @property
    def loaded(self) -> list[str]:
        return sorted(self.here.context.registry.models)

    async def vector(self, name: str | None = None, **headers: str) -> httpx.Response:
        return await self.http.post("/embed", json=TEXT | ({"model": name} if name else {}), headers=headers)

    async def counted(self, name: str) -> float:
        lines = (await self.http.get("/metrics")).text.splitlines()
        (value,) = [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]
        return float(value)


@asynccontextmanager
async def demand(store: Path, **settings: Any) -> AsyncIterator[Demand]:
    async with serving_here(store, load="on-demand", **settings) as here:
        url = "http://{}:{}".format(*here.address)
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            yield Demand(here, http)


@dataclass
class Held:
    """Loads of one model that wait."""

    entered: asyncio.Event
    go_on: threading.Event
    count: int = 0


def hold(name: str, monkeypatch: pytest.MonkeyPatch) -> Held:
    """Let loads of a model wait until `go_on` is set."""
    loop = asyncio.get_running_loop()
    held, load = Held(asyncio.Event(), threading.Event()), loading.read_model

    def waiting(folder: Path, *arguments: Any) -> Any:
        if folder.name == name:
            held.count += 1
            loop.call_soon_threadsafe(held.entered.set)
            assert held.go_on.wait(30)
        return load(folder, *arguments)

    monkeypatch.setattr(loading, "read_model", waiting)
    return held


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_true():
            await asyncio.sleep(0.01)


# ---- by their first request


async def test_first_request_loads_a_model(store: Path) -> None:
    async with demand(store) as service:
        assert service.loaded == []
        assert (await service.http.get("/health/ready")).status_code == 200
        described = (await service.http.get("/models")).json()["models"]
        assert {each["name"]: each["loaded"] for each in described} == {"a": False, "b": False, "c": False}
        assert (await service.vector("b")).status_code == 200
        assert service.loaded == ["b"]
        described = (await service.http.get("/models/b")).json()
        assert described["loaded"]
        assert 290 < described["unloaded_in_seconds"] <= 300
        assert await service.counted('inlay_model_load_seconds_count{model="b"}') == 1


async def test_answer_is_that_of_a_model_loaded_at_the_start(store: Path) -> None:
    async with demand(store, default_model="a") as service, serving_here(store, default_model="a") as started:
        async with httpx.AsyncClient(base_url="http://{}:{}".format(*started.address), trust_env=False) as http:
            expected = (await http.post("/embed", json=TEXT)).json()
        first, second = await service.vector(), await service.vector()
        assert first.json() == second.json() == expected
        assert service.loaded == ["a"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"model": "b", "input": "hello"}),
        ("/api/embed", {"model": "b:latest", "input": "hello"}),
        ("/api/embed", {"model": "b"}),
        ("/v2/models/b/infer", {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hello"]}]}),
        ("/v2/embed", {"model": "b", "texts": ["hello"], "input_type": "search_query", "embedding_types": ["float"]}),
        ("/tokenize", {"model": "b", "inputs": "hello"}),
        ("/embed", {"model": "b", "inputs": [[1, 2, 3]], "outputs": ["input_embeddings"]}),
    ],
)
async def test_every_protocol_loads(exported: Path, path: str, body: dict[str, Any]) -> None:
    async with demand(exported) as service:
        answer = await service.http.post(path, json=body)
        assert (answer.status_code, service.loaded) == (200, ["b"]), answer.text


async def test_grpc_calls_and_streams_load(exported: Path) -> None:
    async with demand(exported) as service, grpc.aio.insecure_channel(service.here.rpc_address) as channel:
        stub = EmbedderStub(channel)
        text = [pb.Input(text="hello")]
        answer = await stub.Embed(pb.EmbedRequest(model="a", inputs=text))
        assert answer.model == "a"
        stream = stub.EmbedStream(iter([pb.EmbedRequest(model="b", inputs=text)] * 2))
        answers = [each async for each in stream]
        assert [each.WhichOneof("result") for each in answers] == ["response"] * 2
        assert service.loaded == ["a", "b"]


async def test_unknown_names_load_nothing(exported: Path) -> None:
    async with demand(exported) as service:
        for _ in range(3):
            answer = await service.vector("d")
            assert answer.status_code == 404
            assert "no model 'd' here; served: 'a', 'b', 'c'" in answer.json()["detail"]
        assert service.loaded == []


async def test_lists_name_models_that_are_not_loaded(exported: Path) -> None:
    async with demand(exported) as service:
        await service.vector("b")
        names = [model["id"] for model in (await service.http.get("/v1/models")).json()["data"]]
        assert names == ["a", "b", "c"]
        assert len((await service.http.get("/api/tags")).json()["models"]) == 3
        assert (await service.http.post("/api/show", json={"model": "c"})).json()["model_info"]
        assert (await service.http.get("/v2/models/c/ready")).status_code == 200
        assert (await service.http.get("/v2/models/c")).json()["outputs"]
        [running] = (await service.http.get("/api/ps")).json()["models"]
        assert running["name"] == "b"
        index = (await service.http.post("/v2/repository/index")).json()
        assert {each["name"]: (each["state"], each["reason"]) for each in index} == {
            "a": ("UNAVAILABLE", "its first request loads it"),
            "b": ("READY", ""),
            "c": ("UNAVAILABLE", "its first request loads it"),
        }
        assert service.loaded == ["b"]


# ---- while a model is loaded


async def test_loaded_model_is_served_beside_a_load(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with demand(exported) as service:
        await service.vector("a")
        held = hold("b", monkeypatch)
        waiting = [asyncio.create_task(service.vector("b")) for _ in range(3)]
        await held.entered.wait()
        for _ in range(3):
            assert (await service.vector("a")).status_code == 200
        assert not any(task.done() for task in waiting)
        held.go_on.set()
        assert [(await task).status_code for task in waiting] == [200] * 3
        assert held.count == 1


async def test_requests_that_wait_are_bounded(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with demand(exported, max_concurrent_requests=8) as service:
        await service.vector("a")
        held = hold("b", monkeypatch)
        waiting = [asyncio.create_task(service.vector("b")) for _ in range(2)]
        await until(lambda: service.here.context.admission.active == 2)
        refused = await service.vector("c")
        assert refused.status_code == 503
        assert "2 requests wait for models that are being loaded" in refused.json()["detail"]
        assert int(refused.headers["retry-after"]) >= 1
        assert (await service.vector("a")).status_code == 200
        held.go_on.set()
        assert [(await task).status_code for task in waiting] == [200] * 2


async def test_a_deadline_ends_the_wait_and_not_the_load(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with demand(exported) as service:
        held = hold("b", monkeypatch)
        late = await service.vector("b", **{"inlay-timeout-ms": "50"})
        assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")
        held.go_on.set()
        await until(lambda: service.loaded == ["b"])


async def test_a_model_that_cannot_be_loaded_is_not_tried_at_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with demand(store) as service:
        held = hold("b", monkeypatch)
        held.go_on.set()
        (store / "b/encoder.onnx").write_bytes(b"\xff" * (store / "b/encoder.onnx").stat().st_size)
        for _ in range(2):
            answer = await service.vector("b")
            assert answer.status_code == 503
            assert "b cannot be loaded" in answer.json()["detail"]
            assert str(store) not in answer.text
            assert int(answer.headers["retry-after"]) >= 1
        assert held.count == 1


# ---- the budget


async def test_least_recently_used_model_makes_room(exported: Path) -> None:
    async with demand(exported, model_memory_bytes=2 * size_of(exported)) as service:
        for name in ("a", "b", "a", "c"):
            assert (await service.vector(name)).status_code == 200
        assert service.loaded == ["a", "c"]
        assert await service.counted('inlay_model_evictions_total{reason="memory"}') == 1
        assert (await service.vector("b")).status_code == 200
        assert service.loaded == ["b", "c"]


async def test_eviction_waits_for_running_requests(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with demand(exported, model_memory_bytes=size_of(exported)) as service:
        expected = (await service.vector("a")).json()
        engine = service.here.context.registry.models["a"].engine
        run, entered, go_on = engine.run, asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def wait(*arguments: Any) -> Any:
            loop.call_soon_threadsafe(entered.set)
            assert go_on.wait(30)
            return run(*arguments)

        monkeypatch.setattr(engine, "run", wait)
        # two texts run in a thread, one alone may run on the event loop
        under_way = asyncio.create_task(service.http.post("/embed", json={"model": "a", "inputs": ["hello world"] * 9}))
        await entered.wait()
        next_one = asyncio.create_task(service.vector("b"))
        await until(lambda: service.here.context.admission.active == 2)
        await asyncio.sleep(3 * on_demand.ROOM_SECONDS)
        assert service.loaded == ["a"]
        go_on.set()
        assert (await under_way).json()[0] == pytest.approx(expected[0], abs=1e-6)
        assert (await next_one).status_code == 200
        assert service.loaded == ["b"]


async def test_pinned_models_are_loaded_at_the_start_and_stay(exported: Path) -> None:
    size = size_of(exported)
    async with demand(exported, pinned_models="c", model_memory_bytes=2 * size, keep_alive="0") as service:
        assert service.loaded == ["c"]
        for name in ("a", "b"):
            assert (await service.vector(name)).status_code == 200
        await service.http.post("/api/embed", json={"model": "c", "keep_alive": 0})
        await service.here.context.registry.on_demand.look()
        assert service.loaded == ["c"]
        [running] = (await service.http.get("/api/ps")).json()["models"]
        assert running["expires_at"].startswith("9999")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model_memory_bytes": 1000}, r"a has \d+ bytes, and INLAY_MODEL_MEMORY_BYTES is 1000: raise it"),
        ({"pinned_models": "d"}, "INLAY_PINNED_MODELS names 'd', which is not served; served: 'a', 'b', 'c'"),
        ({"pinned_models": "a,b", "model_memory_bytes": "2"}, r"a has \d+ bytes beside \d+ of pinned models"),
    ],
)
def test_a_budget_that_is_too_small_ends_the_start(exported: Path, settings: dict[str, Any], said: str) -> None:
    if settings.get("model_memory_bytes") == "2":
        settings = settings | {"model_memory_bytes": size_of(exported) * 3 // 2}
    with pytest.raises(StartError, match=said):
        open_registry(Settings(store=exported, load="on-demand", **settings), Metrics())


# ---- keep_alive


async def test_models_go_when_their_time_is_over(exported: Path) -> None:
    async with demand(exported, keep_alive="2m") as service:
        await service.vector("a")
        await service.http.post("/api/embed", json={"model": "b", "input": "hello", "keep_alive": "1h"})
        await service.http.post("/api/embeddings", json={"model": "c", "prompt": "hello", "keep_alive": -1})
        policy = service.here.context.registry.on_demand
        assert policy is not None
        now = policy.clock()
        policy.clock = lambda: now + 60
        await policy.look()
        assert service.loaded == ["a", "b", "c"]
        policy.clock = lambda: now + 600
        await policy.look()
        assert service.loaded == ["b", "c"]
        policy.clock = lambda: now + 1e9
        await policy.look()
        assert service.loaded == ["c"]
        assert await service.counted('inlay_model_evictions_total{reason="keep_alive"}') == 2


async def test_keep_alive_is_set_for_models_by_name(exported: Path) -> None:
    async with demand(exported, keep_alive="2m, b=1h,c=-1") as service:
        for name in ("a", "b", "c"):
            await service.vector(name)
        models = service.here.context.registry.models.values()
        kept = {model.card.name: model.residency.keep_seconds for model in models if model.residency}
        assert kept == {"a": 120, "b": 3600, "c": float("inf")}


async def test_keep_alive_of_an_unknown_model_ends_the_start(exported: Path) -> None:
    with pytest.raises(StartError, match=r"INLAY_KEEP_ALIVE names 'd', which is not served; served: 'a', 'b', 'c'"):
        open_registry(Settings(store=exported, load="on-demand", keep_alive="d=1h"), Metrics())


async def test_keep_alive_of_0_unloads_after_the_answer(exported: Path) -> None:
    async with demand(exported) as service:
        answer = await service.http.post("/api/embed", json={"model": "a", "input": "hello", "keep_alive": 0})
        assert len(answer.json()["embeddings"]) == 1
        assert service.loaded == []
        await service.vector("a")
        await service.http.post("/api/embed", json={"model": "a", "keep_alive": "0s"})
        assert service.loaded == []


@pytest.mark.parametrize(
    ("sent", "left"), [(90, 90), ("90", 90), ("1m30s", 90), ("1.5m", 90), ("500ms", 0.5), (-1, None), ("-5m", None)]
)
async def test_keep_alive_is_read_as_ollama_reads_it(exported: Path, sent: Any, left: float | None) -> None:
    async with demand(exported) as service:
        await service.http.post("/api/embed", json={"model": "a", "input": "hello", "keep_alive": sent})
        registry = service.here.context.registry
        found = registry.models["a"].residency
        assert found is not None
        assert found.keep_seconds == (float("inf") if left is None else left)


async def test_a_keep_alive_without_a_date_is_for_ever(exported: Path) -> None:
    async with demand(exported) as service:
        await service.http.post("/api/embed", json={"model": "a", "keep_alive": "99999999999999h"})
        [running] = (await service.http.get("/api/ps")).json()["models"]
        assert running["expires_at"].startswith("9999")


@pytest.mark.parametrize("sent", ["5 minutes", "", True, [5], "1d"])
async def test_other_keep_alives_are_refused(exported: Path, sent: Any) -> None:
    async with demand(exported) as service:
        answer = await service.http.post("/api/embed", json={"model": "a", "input": "hello", "keep_alive": sent})
        assert answer.status_code == 400
        assert "keep_alive" in answer.json()["error"]
        assert service.loaded == []


async def test_probes_do_not_keep_a_model(exported: Path) -> None:
    async with demand(exported, keep_alive="60") as service:
        await service.vector("a")
        policy = service.here.context.registry.on_demand
        assert policy is not None
        now = policy.clock()
        policy.clock = lambda: now + 100
        assert (await service.http.get("/health/ready")).status_code == 200
        await service.http.get("/v2/models/a/ready")
        await service.http.get("/models")
        await policy.look()
        assert service.loaded == []


# ---- a store that changes, and changes by request


async def test_watched_store_offers_and_takes_back(store: Path) -> None:
    async with demand(store, watch_store=1000) as service:
        registry = service.here.context.registry
        shutil.rmtree(store / "c")
        write(store, "d", seed=1)
        for name in ("c", "d"):
            await registry.sync(name)
        assert (await service.vector("c")).status_code == 404
        assert service.loaded == []
        different = (await service.vector("d")).json()
        assert different != (await service.vector("a")).json()
        write(store, "a", seed=1)
        await registry.sync("a")
        assert (await service.vector("a")).json() == different


async def test_unloaded_by_request_is_not_served_until_loaded(store: Path) -> None:
    async with demand(store, model_control="explicit") as service:
        await service.vector("a")
        for name in ("a", "b"):
            assert (await service.http.post(f"/v2/repository/models/{name}/unload")).status_code == 200
            assert (await service.vector(name)).status_code == 404
        assert service.loaded == []
        assert (await service.http.post("/v2/repository/models/b/load")).status_code == 200
        assert service.loaded == ["b"]
        assert json.loads((await service.vector("b")).text)


async def test_a_load_by_request_stays_within_the_budget(exported: Path) -> None:
    async with demand(exported, model_control="explicit", model_memory_bytes=size_of(exported)) as service:
        assert (await service.http.post("/v2/repository/models/b/unload")).status_code == 200
        await service.vector("a")
        assert (await service.http.post("/v2/repository/models/b/load")).status_code == 200
        assert service.loaded == ["b"]


async def test_unloaded_while_requests_wait_is_not_loaded(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = hold("a", monkeypatch)
    async with demand(exported, model_control="explicit") as service:
        first = asyncio.create_task(service.vector("a"))
        await held.entered.wait()
        second = asyncio.create_task(service.vector("b"))
        await until(lambda: service.here.context.admission.active == 2)
        assert (await service.http.post("/v2/repository/models/b/unload")).status_code == 200
        held.go_on.set()
        assert (await first).status_code == 200
        assert (await second).status_code == 404
        assert service.loaded == ["a"]
