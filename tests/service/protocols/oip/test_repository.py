"""The model repository extension over HTTP and gRPC: what clients may load and unload, and what they cannot reach."""

import asyncio
import shutil
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from models.artifacts.export import export
from proto import open_inference_pb2 as pb
from proto.open_inference_pb2_grpc import GRPCInferenceServiceStub
from service.registry import loading
from tests.collector import collect
from tests.golden_cases import tiny_bert, tiny_config, write_folder
from tests.served import Served, serving, serving_here

ASKED = {"inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [1, 2], "data": [5, 6]}]}


@pytest.fixture
def moving(tiny_store: Path, tmp_path: Path) -> Iterator[Served]:
    """bert served, llama in the store."""
    shutil.copytree(tiny_store, tmp_path / "store")
    with serving(tmp_path / "store", models=("bert",), model_control="explicit") as service:
        yield service


@pytest.fixture(scope="module")
def still(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The same for requests that move nothing; outside of the store, another bert."""
    folder = tmp_path_factory.mktemp("still")
    shutil.copytree(tiny_store, folder / "store")
    shutil.copytree(tiny_store / "bert", folder / "outside/bert")
    with serving(folder / "store", models=("bert",), model_control="explicit") as service:
        yield service


@pytest.fixture(scope="module")
def still_stub(still: Served) -> Iterator[GRPCInferenceServiceStub]:
    with grpc.insecure_channel(still.rpc_address) as channel:
        yield GRPCInferenceServiceStub(channel)


@pytest.fixture
def stub(moving: Served) -> Iterator[GRPCInferenceServiceStub]:
    with grpc.insecure_channel(moving.rpc_address) as channel:
        yield GRPCInferenceServiceStub(channel)


def index(service: Served, **body: Any) -> list[tuple[str, ...]]:
    answer = service.http.post("/v2/repository/index", json=body or None).raise_for_status()
    return [tuple(each[name] for name in ("name", "version", "state", "reason")) for each in answer.json()]


def infer(service: Served, name: str) -> int:
    return service.http.post(f"/v2/models/{name}/infer", json=ASKED).status_code


def test_models_are_loaded_and_unloaded_over_http(moving: Served) -> None:
    assert index(moving) == [("bert", "1", "READY", ""), ("llama", "1", "UNAVAILABLE", "not loaded")]
    assert index(moving, ready=True) == [("bert", "1", "READY", "")]
    assert infer(moving, "llama") == 404
    answer = moving.http.post("/v2/repository/models/llama/load")
    assert (answer.status_code, answer.json()) == (200, {"name": "llama", "load": True})
    assert infer(moving, "llama") == 200
    assert index(moving) == [("bert", "1", "READY", ""), ("llama", "1", "READY", "")]
    answer = moving.http.post("/v2/repository/models/llama/unload", json={"parameters": {"unload_dependents": True}})
    assert (answer.status_code, answer.json()) == (200, {"name": "llama", "unload": True})
    assert infer(moving, "llama") == 404
    assert index(moving) == [("bert", "1", "READY", ""), ("llama", "1", "UNAVAILABLE", "unloaded")]


def test_tritons_and_kserves_messages_name_the_same_model(moving: Served, stub: GRPCInferenceServiceStub) -> None:
    triton, kserve = b"\x12\x05llama", b"\x0a\x05llama"  # field 2, and field 1 alone
    for sent in (triton, kserve):
        loaded = stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest.FromString(sent))
        assert (loaded.SerializeToString(), infer(moving, "llama")) == (b"\x0a\x05llama\x10\x01", 200)
        gone = stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest.FromString(sent))
        assert (gone.SerializeToString(), infer(moving, "llama")) == (b"\x0a\x05llama\x10\x01", 404)
    models = stub.RepositoryIndex(pb.RepositoryIndexRequest()).models
    assert [(each.name, each.version, each.state, each.reason) for each in models] == index(moving)
    assert [each.name for each in stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=True)).models] == ["bert"]


def test_every_protocol_follows_what_is_loaded(moving: Served, stub: GRPCInferenceServiceStub) -> None:
    def known() -> list[bool]:
        paths = ("/models/llama", "/models/llama/rope?length=2", "/v2/models/llama", "/models/llama/analysis")
        statuses = [moving.http.get(path).status_code for path in paths]
        statuses.append(moving.http.post("/embed", json={"model": "llama", "inputs": [5]}).status_code)
        assert set(statuses) in ({200}, {404})
        names = [each["name"] for each in moving.http.get("/models").json()["models"]]
        ready = stub.ModelReady(pb.ModelReadyRequest(name="llama")).ready
        gauge = 'inlay_model_bytes{model="llama"}' in moving.http.get("/metrics").text
        return [statuses[0] == 200, "llama" in names, ready, gauge]

    assert known() == [False] * 4
    for verb, there in (("load", True), ("unload", False), ("load", True)):
        moving.http.post(f"/v2/repository/models/llama/{verb}").raise_for_status()
        assert known() == [there] * 4


def test_tables_follow_the_version_that_is_loaded(moving: Served, tiny_store: Path, tmp_path: Path) -> None:
    """The same name, other weights: nothing that was kept of the old ones answers for the new."""

    def answers() -> list[bytes]:
        learned = moving.http.get("/models/bert/learned?length=40&format=raw").raise_for_status()
        similar = moving.http.post("/models/bert/similar", json={"token": 5}).raise_for_status()
        analysis = moving.http.get("/models/bert/analysis").raise_for_status()
        return [learned.headers["etag"].encode(), learned.content, similar.content, analysis.content]

    before = answers()
    tensors = tiny_bert(seed=7)
    export(write_folder(tmp_path / "new", tiny_config(tensors), tensors), tmp_path / "store/bert", dtype="int8")
    assert answers() == before
    moving.http.post("/v2/repository/models/bert/load").raise_for_status()
    middle = answers()
    assert all(new != old for new, old in zip(middle, before, strict=True))
    row = tensors["embeddings.position_embeddings.weight"][20]
    middle_of = np.argsort(row)[len(row) // 2]
    row[middle_of] = row.min() + 0.9 * (row.max() - row.min())  # one code of int8 more, the same ranges
    export(write_folder(tmp_path / "newer", tiny_config(tensors), tensors), tmp_path / "store/bert", dtype="int8")
    moving.http.post("/v2/repository/models/bert/load").raise_for_status()
    assert all(new != old for new, old in zip(answers()[:2], middle[:2], strict=True))


NAMES = [
    "..",
    "../outside/bert",
    "%2e%2e",
    "..%2foutside%2fbert",
    ".",
    ".hidden",
    "%2fetc",
    "bert%2f..",
    "bert%00",
    "bert%5c",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_path_in_a_request_reaches_the_filesystem(name: str, still: Served) -> None:
    host, port = still.address
    for verb in ("load", "unload"):
        with httpx.Client(trust_env=False, timeout=60) as client:
            url = httpx.URL(f"http://{host}:{port}").copy_with(raw_path=f"/v2/repository/models/{name}/{verb}".encode())
            answer = client.post(url)
        assert answer.status_code == 404
    assert index(still)[0] == ("bert", "1", "READY", "")


@pytest.mark.parametrize("name", ["../outside/bert", "..", "/etc", "bert\0", ".bert"])
def test_no_name_over_grpc_reaches_the_filesystem(name: str, still_stub: GRPCInferenceServiceStub) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        still_stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name=name))
    assert refusal.value.code().name == "NOT_FOUND"
    assert "names no model" in refusal.value.details()


# path, body, status, what the message says
REFUSALS: list[tuple[str, Any, int, str]] = [
    ("models/bart/load", {}, 404, "the store holds no model 'bart'; it holds 'bert', 'llama'"),
    ("models/llama/unload", {}, 404, "no model 'llama' here; loaded: 'bert'"),
    ("models/llama/load", {"parameters": {"config": "{}"}}, 501, "parameter 'config' of a load is not supported"),
    ("models/llama/load", {"parameters": {"file:1/model.onnx": "eA=="}}, 501, "parameter 'file:1/model.onnx'"),
    ("models/bert/unload", {"parameters": {"now": True}}, 501, "parameter 'now' of an unload is not supported"),
    ("models/llama/load", {"parameters": [1]}, 400, "parameters is a list of 1; allowed: an object"),
    ("models/llama/load", [1], 400, "the body is a list of 1"),
    ("models/llama/load", b"{", 400, "the body is not JSON"),
    ("index", {"ready": "yes"}, 400, "ready is 'yes'; allowed: true or false"),
]


@pytest.mark.parametrize(("path", "body", "status", "message"), REFUSALS)
def test_rejects_unsupported_or_invalid_requests(
    path: str, body: Any, status: int, message: str, still: Served
) -> None:
    sent = {"content": body} if isinstance(body, bytes) else {"json": body}
    answer = still.http.post(f"/v2/repository/{path}", **sent)
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}
    assert message in answer.json()["error"].replace('"', "'")


def test_a_named_repository_is_refused(still_stub: GRPCInferenceServiceStub) -> None:
    both = {"repository_name": "other", "model_name": "llama"}
    for method, message in (
        (still_stub.RepositoryIndex, pb.RepositoryIndexRequest(repository_name="other")),
        (still_stub.RepositoryModelLoad, pb.RepositoryModelLoadRequest(**both)),
        (still_stub.RepositoryModelUnload, pb.RepositoryModelUnloadRequest(**both)),
    ):
        with pytest.raises(grpc.RpcError, match="repository_name is 'other'; this server has one store"):
            method(message)
    with pytest.raises(grpc.RpcError, match="model_name is empty"):
        still_stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest())


def test_a_broken_version_leaves_the_old_one_serving(moving: Served, tmp_path: Path) -> None:
    before = moving.post({"inputs": [5, 6]}).raise_for_status().content
    (tmp_path / "store/bert/tokenizer.json").unlink()
    answer = moving.http.post("/v2/repository/models/bert/load")
    assert answer.status_code == 400
    assert "the version loaded before goes on serving" in answer.json()["error"]
    assert moving.post({"inputs": [5, 6]}).raise_for_status().content == before
    assert "tokenizer.json" in index(moving)[0][3]


def test_loading_needs_the_operators_permission(served: Served) -> None:
    for verb in ("load", "unload"):
        answer = served.http.post(f"/v2/repository/models/bert/{verb}")
        assert answer.status_code == 501
        assert "INLAY_MODEL_CONTROL=explicit" in answer.json()["error"]
    assert index(served) == [("bert", "1", "READY", ""), ("llama", "1", "READY", "")]


async def test_load_does_not_delay_requests(tiny_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, began, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    opened = loading.read_model

    def slow(*arguments: Any) -> Any:
        loop.call_soon_threadsafe(began.set)
        assert go_on.wait(30)
        return opened(*arguments)

    async with serving_here(tiny_store, default_model="bert", model_control="explicit") as here:
        monkeypatch.setattr(loading, "read_model", slow)
        url = "http://{}:{}".format(*here.address)
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
            load = asyncio.create_task(client.post("/v2/repository/models/bert/load"))
            await began.wait()
            responses = await asyncio.gather(*[client.post("/embed", json={"inputs": [5, 6]}) for _ in range(20)])
            assert [each.status_code for each in responses] == [200] * 20
            assert not load.done()
            go_on.set()
            assert (await load).status_code == 200
            after = await client.post("/embed", json={"inputs": [5, 6]})
    np.testing.assert_array_equal(np.array(after.json()), np.array(responses[0].json()))


ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "/health/ready", None),
    ("GET", "/metrics", None),
    ("GET", "/models", None),
    ("GET", "/models/llama", None),
    ("GET", "/models/llama/rope?length=4", None),
    ("GET", "/models/llama/analysis", None),
    ("POST", "/models/llama/similar", {"token": 5}),
    ("POST", "/embed", {"model": "llama", "inputs": [5, 6]}),
    ("POST", "/embed", {"model": "llama", "inputs": [5, 6], "outputs": ["nothing"]}),
    ("POST", "/v2/models/llama/infer", ASKED),
    ("GET", "/v2/models/llama/config", None),
    ("GET", "/v1/models", None),
]


async def test_no_route_keeps_a_model_that_was_unloaded(tiny_store: Path) -> None:
    async with serving_here(tiny_store, default_model="bert", model_control="explicit") as here:
        url = "http://{}:{}".format(*here.address)
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
            for _ in range(2):
                for verb, path, body in ROUTES:
                    assert (await client.request(verb, path, json=body)).status_code in (200, 422)
                old = weakref.ref(here.context.registry.models["llama"])
                assert (await client.post("/v2/repository/models/llama/load")).status_code == 200
                collect()  # a refusal's traceback is a circle
                assert old() is None
            left = weakref.ref(here.context.registry.models["llama"])
            for verb, path, body in ROUTES:
                await client.request(verb, path, json=body)
            assert (await client.post("/v2/repository/models/llama/unload")).status_code == 200
            assert (await client.get("/health/ready")).status_code == 200
            collect()
            assert left() is None
