"""Metrics of requests, refusals and readiness, of which the alerts are made."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from proto import embed_pb2 as pb
from proto import open_inference_pb2 as oip
from proto.embed_pb2_grpc import EmbedderStub
from proto.open_inference_pb2_grpc import GRPCInferenceServiceStub
from service.errors import Overloaded
from service.registry import readiness
from tests.served import Here, serving_here

KEY = "correct-horse-battery"
BEARER = {"authorization": f"Bearer {KEY}"}
PROBES = ["/", "/health", "/health/ready", "/ping", "/v2/health/ready", "/v2/models/bert/ready"]


@pytest.fixture
async def here(tiny_store: Path) -> AsyncIterator[Here]:
    async with serving_here(tiny_store, default_model="bert") as service:
        yield service


@pytest.fixture
async def http(here: Here) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url="http://{}:{}".format(*here.address), trust_env=False, timeout=60) as client:
        yield client


def numbers(here: Here) -> dict[tuple[str, ...], float]:
    """What is not 0: a sample's name and the values of its labels, in the order of their names."""
    return {
        (sample.name, *[value for _, value in sorted(sample.labels.items())]): sample.value
        for family in text_string_to_metric_families(here.context.metrics.text().decode())
        for sample in family.samples
        if sample.value
    }


def refusals(here: Here) -> dict[str, float]:
    return {key[1]: value for key, value in numbers(here).items() if key[0] == "inlay_refusals_total"}


def requests(here: Here) -> dict[tuple[str, ...], float]:
    """By method, protocol and status."""
    return {key[1:]: value for key, value in numbers(here).items() if key[0] == "inlay_requests_total"}


def breaks(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run of the engine fails from now on."""

    def fail(*arguments: object) -> Any:
        raise RuntimeError("the card is gone")

    monkeypatch.setattr(type(here.context.registry.get("bert").engine), "run", fail)
    monkeypatch.setattr(readiness, "VERDICT_SECONDS", 0.0)


async def test_worker_is_ready_only_while_its_model_answers(here: Here, http: httpx.AsyncClient) -> None:
    with pytest.MonkeyPatch.context() as broken:
        assert numbers(here)[("inlay_workers_ready",)] == 1
        breaks(here, broken)
        assert (await http.get("/health/ready")).status_code == 503
        assert ("inlay_workers_ready",) not in numbers(here)
    with pytest.MonkeyPatch.context() as mended:
        mended.setattr(readiness, "VERDICT_SECONDS", 0.0)
        assert (await http.get("/health/ready")).status_code == 200
        assert numbers(here)[("inlay_workers_ready",)] == 1


async def test_engine_failures_are_counted_alike_in_every_protocol(
    here: Here, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(here, monkeypatch)
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    answers = [
        await http.post("/embed", json={"inputs": "a"}),
        await http.post("/v1/embeddings", json={"input": "a", "model": "bert"}),
        await http.post("/v2/models/bert/infer", json={"inputs": [tensor]}),
    ]
    assert [answer.status_code for answer in answers] == [424, 424, 500]
    async with grpc.aio.insecure_channel(here.rpc_address) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await EmbedderStub(channel).Embed(pb.EmbedRequest(inputs=[pb.Input(text="a")]))
    assert refusals(here) == {"engine_failure": 4}
    assert sum(requests(here).values()) == 4
    failures = [value for key, value in numbers(here).items() if key[0] == "inlay_run_failures_total"]
    assert sum(failures) == 4


async def test_faults_of_the_service_are_counted_as_errors(
    here: Here, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fault(*arguments: object) -> Any:
        raise RuntimeError("a fault")

    monkeypatch.setattr(here.context.embedder, "embed", fault)
    monkeypatch.setattr(type(here.context.tables), "run", fault)
    assert (await http.post("/embed", json={"inputs": "a"})).status_code == 500
    assert (await http.get("/positions/rope", params={"rotary_dim": 4, "length": 2})).status_code == 500
    async with grpc.aio.insecure_channel(here.rpc_address) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await EmbedderStub(channel).Embed(pb.EmbedRequest(inputs=[pb.Input(text="a")]))
    assert refusals(here) == {"error": 3}


async def test_failing_probes_are_not_counted_as_refused(here: Here, http: httpx.AsyncClient) -> None:
    here.context.lifecycle.stopping = True
    statuses = [(await http.get(path)).status_code for path in PROBES]
    async with grpc.aio.insecure_channel(here.rpc_address) as channel:
        ready = await GRPCInferenceServiceStub(channel).ServerReady(oip.ServerReadyRequest())
    assert (statuses, ready.ready) == ([503] * len(PROBES), False)
    assert refusals(here) == {}


async def test_refused_table_is_counted_once(here: Here, http: httpx.AsyncClient) -> None:
    assert (await http.get("/positions/rope", params={"rotary_dim": 3, "length": 2})).status_code == 422
    assert sum(refusals(here).values()) == sum(requests(here).values()) == 1


async def test_requests_refused_for_their_key_are_counted_apart(
    tiny_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*arguments: object) -> Any:
        raise Overloaded("the queue is full")

    settings = {"default_model": "bert", "api_keys": f"{KEY} rate=1"}
    async with serving_here(tiny_store, **settings) as here:
        monkeypatch.setattr(here.context.embedder, "embed", full)
        url = "http://{}:{}".format(*here.address)
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
            busy = await http.post("/embed", json={"inputs": "a"}, headers=BEARER)
            spent = [await http.post("/embed", json={"inputs": "a"}, headers=BEARER) for _ in range(3)]
            anonymous = [await http.post("/embed", json={}), await http.get("/v2")]
        assert [each.status_code for each in (busy, *spent, *anonymous)] == [429, 429, 429, 429, 401, 403]
        assert [each.json()["code"] for each in (busy, *spent)] == ["overloaded", *["key_limited"] * 3]
        assert all(int(each.headers["retry-after"]) >= 1 for each in (busy, *spent))
        assert refusals(here) == {"overloaded": 1, "key_limited": 3, "unauthorized": 2}
        assert requests(here) == {
            ("/embed", "http", "429"): 1,
            ("gate", "http", "429"): 3,
            ("gate", "http", "401"): 1,
            ("gate", "http", "403"): 1,
        }
