"""API keys on real sockets: who is served, how each protocol rejects, the limits of a key, routes that need none."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from proto import embed_pb2 as pb
from proto import open_inference_pb2 as oip
from proto import tei_pb2 as tei
from proto.embed_pb2_grpc import EmbedderStub
from proto.open_inference_pb2_grpc import GRPCInferenceServiceStub
from proto.tei_pb2_grpc import EmbedStub
from service.embedding.requests import EmbedRequest
from service.observability import logs
from tests.served import Here, Served, serving, serving_here

KEY, OTHER = "correct-horse-battery", "staple.0123456789=="
BEARER = {"authorization": f"Bearer {KEY}"}
EMBED = {"inputs": "a"}


@pytest.fixture(scope="module")
def guarded(tiny_store: Path) -> Iterator[Served]:
    """Two keys, one of them named; pages of one origin may call."""
    keys = f"{KEY},second:{OTHER}"
    with serving(tiny_store, default_model="bert", api_keys=keys, cors_origins="https://a.example") as service:
        yield service


@pytest.mark.parametrize("key", [KEY, OTHER])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_every_key_opens_the_service(guarded: Served, key: str, scheme: str) -> None:
    answer = guarded.http.post("/embed", json=EMBED, headers={"authorization": f"{scheme} {key}"})
    assert answer.status_code == 200


WRONG: list[dict[str, str]] = [
    {},
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": KEY},
    {"authorization": f"Basic {KEY}"},
    {"authorization": f"Bearer {KEY[:-1]}"},
    {"authorization": f"Bearer {KEY}x"},
    {"authorization": f"Bearer {KEY} {KEY}"},
    {"authorization": f"Bearer {KEY},second:{OTHER}"},
    {"authorization": "Bearer second"},
    {"authorization": f"Bearer second:{OTHER}"},
    {"x-api-key": KEY},
    {"api-key": KEY},
    {"cookie": f"authorization=Bearer {KEY}"},
]


@pytest.mark.parametrize("headers", WRONG, ids=str)
def test_rejects_any_other_key(guarded: Served, headers: dict[str, str]) -> None:
    assert guarded.http.post("/embed", json=EMBED, headers=headers).status_code == 401


@dataclass(frozen=True)
class Refusal:
    """The response to a caller without a valid key: status, and a document or its members."""

    verb: str
    path: str
    status: int
    document: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


OPENAI = {"type": "invalid_request_error", "code": "invalid_api_key", "param": None}
PROBLEM = {"status": 401, "code": "unauthorized", "type": "urn:inlay:problem:unauthorized"}
REFUSALS = [
    *[Refusal("POST", path, 401, PROBLEM) for path in ("/", "/embed", "/embed_all", "/rerank", "/tokenize", "/decode")],
    Refusal("POST", "/predict", 401, PROBLEM),
    *[Refusal("POST", path, 401, {"error": OPENAI}) for path in ("/score", "/v1/score", "/classify")],
    Refusal("GET", "/info", 401, PROBLEM),
    *[Refusal("POST", path, 401, {"error": OPENAI}) for path in ("/v1/embeddings", "/embeddings", "/pooling")],
    Refusal("GET", "/v1/models", 401, {"error": OPENAI}),
    Refusal("POST", "/v2/models/bert/infer", 403, {}),
    Refusal("GET", "/v2", 403, {}),
    Refusal("GET", "/v2/models/bert", 403, {}),
    Refusal("GET", "/models", 401, PROBLEM),
    Refusal("GET", "/positions/rope", 401, PROBLEM),
    Refusal("GET", "/no/such/path", 401, PROBLEM),
    Refusal("DELETE", "/models", 401, PROBLEM),
    Refusal("POST", "/health", 401, PROBLEM),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_rejection_has_the_format_of_the_protocol(guarded: Served, refusal: Refusal) -> None:
    answer = guarded.http.request(refusal.verb, refusal.path)
    assert answer.status_code == refusal.status
    assert answer.headers.get("www-authenticate") == ("Bearer" if refusal.status == 401 else None)
    assert answer.headers["x-request-id"]
    document = answer.json()
    error = document["error"]
    assert "Bearer" in (error["message"] if isinstance(error, dict) else error)
    nested = refusal.document.get("error")
    if nested:
        assert document["error"].items() >= nested.items()
    else:
        assert document.items() >= refusal.document.items()


def test_cohere_refusal_shows_the_id_of_its_request(guarded: Served) -> None:
    for path in ("/v2/embed", "/v2/rerank"):
        answer = guarded.http.post(path, json={})
        assert (answer.status_code, answer.json()["id"]) == (401, answer.headers["x-request-id"])


WEB = "/web/{file:path}"
OPEN = ["/", "/health", "/health/live", "/health/ready", "/ping", "/v2/health/live", "/v2/health/ready", "/metrics"]
OPEN += ["/docs", "/docs/swagger-ui.js", "/docs/swagger-ui.css", "/docs/favicon.png", "/openapi.json", WEB]


def test_only_listed_routes_need_no_key(guarded: Served) -> None:
    routes = [(route.verb, route.path) for route in guarded.app.pipeline.router.routes if not route.needs_key]
    assert sorted(routes) == sorted(("GET", path) for path in OPEN)


@pytest.mark.parametrize("verb", ["GET", "HEAD"])
@pytest.mark.parametrize("path", OPEN)
def test_open_routes_answer_without_a_key(guarded: Served, path: str, verb: str) -> None:
    assert (
        guarded.http.request(
            verb, path.replace("{file:path}", "style.css" if path == WEB else "swagger-ui.css")
        ).status_code
        == 200
    )


HIDDEN = ["/health/../models", "/docs/../embed", "/health/%2e%2e/models", "/web/../models", "//models"]


@pytest.mark.parametrize("path", HIDDEN)
def test_no_spelling_of_a_path_avoids_the_key(guarded: Served, path: str) -> None:
    host, port = guarded.address

    async def ask() -> bytes:  # a client of ours would tidy the path up
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer

    answer = asyncio.run(ask())
    assert int(answer.split()[1]) in (401, 404)
    assert b"bert" not in answer


def test_preflight_needs_no_key_and_pages_read_the_error(guarded: Served) -> None:
    origin = {"origin": "https://a.example"}
    headers = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    preflight = guarded.http.options("/embed", headers=origin | headers)
    assert preflight.status_code == 200
    assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
    refused = guarded.http.post("/embed", json=EMBED, headers=origin)
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "https://a.example")


def test_openapi_says_which_operations_need_a_key(guarded: Served, served: Served) -> None:
    document = guarded.http.get("/openapi.json").json()
    scheme = document["components"]["securitySchemes"]
    assert {each["scheme"] for each in scheme.values()} == {"bearer"}
    for path, verbs in document["paths"].items():
        for verb in verbs.keys() & {"get", "post"}:
            anonymous = guarded.http.request(verb, path.replace("{name}", "bert"))
            needs = verbs[verb].get("security", document["security"])
            assert bool(needs) is (anonymous.status_code in (401, 403)), (verb, path)
    assert "security" not in served.http.get("/openapi.json").json()


def test_rejections_are_counted(guarded: Served) -> None:
    def counted() -> float:
        line = next(line for line in guarded.http.get("/metrics").text.splitlines() if 'reason="unauthorized"' in line)
        return float(line.split()[-1])

    before = counted()
    guarded.http.post("/embed", json=EMBED)
    assert counted() == before + 1


# ---- gRPC

CALLS = {
    "inlay.v1": lambda channel, **options: EmbedderStub(channel).Embed(
        pb.EmbedRequest(inputs=[pb.Input(text="a")]), **options
    ),
    "inlay.v1 stream": lambda channel, **options: next(
        EmbedderStub(channel).EmbedStream(iter([pb.EmbedRequest(inputs=[pb.Input(text="a")])]), **options)
    ),
    "tei.v1": lambda channel, **options: EmbedStub(channel).Embed(tei.EmbedRequest(inputs="a"), **options),
    "inference": lambda channel, **options: GRPCInferenceServiceStub(channel).ServerMetadata(
        oip.ServerMetadataRequest(), **options
    ),
}
SAYS = {"tei.v1": "No valid auth token: "}


@pytest.fixture(scope="module")
def channel(guarded: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(guarded.rpc_address) as opened:
        yield opened


@pytest.mark.parametrize("service", CALLS)
def test_grpc_call_with_a_key_is_answered(channel: grpc.Channel, service: str) -> None:
    assert CALLS[service](channel, metadata=[("authorization", f"Bearer {KEY}")])


@pytest.mark.parametrize("service", CALLS)
@pytest.mark.parametrize("metadata", [(), [("authorization", "Bearer x")], [("authorization", KEY)]], ids=str)
def test_grpc_call_without_a_key_is_unauthenticated(channel: grpc.Channel, service: str, metadata: Any) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        CALLS[service](channel, metadata=metadata)
    error: Any = refused.value
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert error.details().startswith(SAYS.get(service, ""))
    assert "authorization: Bearer" in error.details()
    assert {"inlay-code", "x-request-id"} <= {key for key, _ in error.trailing_metadata()}


def test_message_of_an_anonymous_caller_is_not_read(tiny_store: Path) -> None:
    """A message that every caller with a key is refused for by its size."""
    with serving(tiny_store, default_model="bert", api_keys=KEY, max_body_bytes=1000) as service:
        large = pb.EmbedRequest(inputs=[pb.Input(text="a" * 10_000)])
        codes = []
        for metadata in [[], [("authorization", f"Bearer {KEY}")]]:
            with pytest.raises(grpc.RpcError) as refused:
                service.stub.Embed(large, metadata=metadata)
            codes.append(refused.value.code())
        assert codes == [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED]


def test_health_and_reflection_need_no_key(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    listed = next(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request])))
    assert "inlay.v1.Embedder" in {each.name for each in listed.list_services_response.service}


def test_service_without_keys_is_open(served: Served) -> None:
    assert served.http.post("/embed", json=EMBED).status_code == 200
    assert served.http.post("/embed", json=EMBED, headers={"authorization": "Bearer anything"}).status_code == 200


# ---- limits, and a file that changes


class Held:
    """Runs that wait until they are let go."""

    def __init__(self, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running, self.free = asyncio.Event(), asyncio.Event()
        embed = here.context.embedder.embed

        async def held(request: EmbedRequest, *call: Any) -> Any:
            self.running.set()
            await self.free.wait()
            return await embed(request, *call)

        monkeypatch.setattr(here.context.embedder, "embed", held)


@pytest.fixture
async def limited(tiny_store: Path) -> AsyncIterator[Here]:
    keys = f"one:{KEY} concurrent=1,other:{OTHER}"
    async with serving_here(tiny_store, default_model="bert", api_keys=keys) as here:
        yield here


async def test_only_the_key_at_its_limit_is_refused(limited: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(limited, monkeypatch)
    url = "http://{}:{}".format(*limited.address)
    async with (
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http,
        grpc.aio.insecure_channel(limited.rpc_address) as channel,
    ):
        mine, others = BEARER, {"authorization": f"Bearer {OTHER}"}
        first = asyncio.create_task(http.post("/embed", json=EMBED, headers=mine))
        await held.running.wait()
        refused = await http.post("/embed", json=EMBED, headers=mine)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        infer = await http.post("/v2/models/bert/infer", json={}, headers=mine)
        assert infer.status_code == 503
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await EmbedderStub(channel).Embed(pb.EmbedRequest(), metadata=[("authorization", f"Bearer {KEY}")])
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert int(dict(failed.value.trailing_metadata())["grpc-retry-pushback-ms"]) > 0
        second = asyncio.create_task(http.post("/embed", json=EMBED, headers=others))
        held.free.set()
        assert [(await each).status_code for each in (first, second)] == [200, 200]
        assert (await http.post("/embed", json=EMBED, headers=mine)).status_code == 200


async def test_cancelled_grpc_call_frees_its_key(limited: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(limited, monkeypatch)
    metadata = [("authorization", f"Bearer {KEY}")]
    request = pb.EmbedRequest(inputs=[pb.Input(text="a")])
    async with grpc.aio.insecure_channel(limited.rpc_address) as channel:
        stub: Any = EmbedderStub(channel)
        call = stub.Embed(request, metadata=metadata)
        await held.running.wait()
        call.cancel()
        held.free.set()
        code = None
        while code is not grpc.StatusCode.OK:  # the server hears of it a little later
            answer = stub.Embed(request, metadata=metadata)
            code = await answer.code()
            assert code in (grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED)


async def test_log_lines_hold_the_name_of_a_key_and_not_the_key(
    limited: Here, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lines: list[str] = []
    line = logs.TextFormatter()

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(line.format(record))

    async def broken(request: EmbedRequest, *call: Any) -> Any:
        raise RuntimeError("a fault")

    handler = Kept()
    monkeypatch.setattr(limited.context.embedder, "embed", broken)
    logging.getLogger().addHandler(handler)
    url = "http://{}:{}".format(*limited.address)
    try:
        async with (
            httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http,
            grpc.aio.insecure_channel(limited.rpc_address) as channel,
        ):
            assert (await http.post("/embed", json=EMBED, headers=BEARER)).status_code == 500
            with pytest.raises(grpc.aio.AioRpcError):
                await EmbedderStub(channel).Embed(
                    pb.EmbedRequest(inputs=[pb.Input(text="a")]), metadata=[("authorization", f"Bearer {KEY}")]
                )
    finally:
        logging.getLogger().removeHandler(handler)
    faults = [each for each in lines if "fault" in each]
    assert len(faults) == 2
    assert all("key=one" in each.splitlines()[0] for each in faults)
    assert not any(KEY in each for each in lines)


def test_vectors_are_the_same_with_and_without_a_key(guarded: Served, served: Served) -> None:
    accept = {"accept": "application/octet-stream"}
    closed = guarded.http.post("/embed", json=EMBED, headers=BEARER | accept).content
    np.testing.assert_array_equal(
        np.frombuffer(closed, "<f4"), np.frombuffer(served.post(EMBED, accept["accept"]).content, "<f4")
    )
