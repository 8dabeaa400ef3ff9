"""Traces and access lines of real requests: what they hold, and what they never hold."""

import asyncio
import io
import json
import logging
import logging.config
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

from proto import embed_pb2 as pb
from proto.embed_pb2_grpc import EmbedderStub
from service.observability import logs
from service.observability.tracing import Tracing, open_tracing
from service.settings import Settings
from tests.served import Here, Served, serving, serving_here

ROOT = Path(__file__).parents[3]
SECRET, OPEN = "hunter2planted", "correct-horse-battery"
SECONDS = 60
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"  # W3C trace context's own example
NOT_SERVED = ("httpx", "uvicorn.access")  # the test's own client; what service.cli.startup switches off
STAGES = ["tokenize", "queue", "run"]


class Seen:
    """The spans and log lines of a service."""

    def __init__(self, ratio: float = 1.0) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(ratio)))
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(provider)
        self.stream = io.StringIO()

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def servers(self, number: int = 1) -> list[ReadableSpan]:
        """That many spans of requests: one ends a moment after its client has the answer."""
        ends = monotonic() + SECONDS
        while len(server_spans := [span for span in self.spans if span.kind is SpanKind.SERVER]) < number:
            assert monotonic() < ends
        return server_spans

    def below(self, parent: ReadableSpan) -> list[ReadableSpan]:
        return [span for span in self.spans if span.parent and span.parent.span_id == parent.context.span_id]

    def lines(self, key: str, number: int) -> list[dict[str, Any]]:
        """That many log lines that have the key."""
        ends = monotonic() + SECONDS
        while len(objects := [line for line in self._objects() if key in line]) < number:
            assert monotonic() < ends
        return objects

    def _objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().split("\n")[:-1]]


def request(text: str) -> pb.EmbedRequest:
    return pb.EmbedRequest(inputs=[pb.Input(text=text)])


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """What a service started in the test shows of itself."""
    observed = Seen()
    monkeypatch.setattr("service.app.open_tracing", lambda settings: observed.tracing)
    configured = logs.config("json", "info", False)
    configurator: Any = logging.config.DictConfigurator(configured)
    handler, root = logging.StreamHandler(observed.stream), logging.getLogger()
    handler.setFormatter(configurator.configure_formatter(configurator.config["formatters"]["line"]))
    handler.addFilter(lambda record: record.name not in NOT_SERVED)
    level = root.level
    root.addHandler(handler)
    root.setLevel("INFO")
    yield observed
    root.setLevel(level)
    root.removeHandler(handler)


@pytest.fixture
def traced(tiny_store: Path, seen: Seen) -> Iterator[Served]:
    with serving(tiny_store, default_model="bert", access_log=True) as service:
        yield service


def test_request_continues_its_callers_trace(traced: Served, seen: Seen) -> None:
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "rojo=1"}
    assert traced.http.post("/embed", json={"inputs": "hello"}, headers=headers).status_code == 200
    (server,) = seen.servers()
    assert server.name == "POST /embed"
    assert f"{server.context.trace_id:032x}" == TRACE
    assert f"{server.parent.span_id:016x}" == SPAN
    assert server.context.trace_state.get("rojo") == "1"
    assert dict(server.attributes) == {
        "http.request.method": "POST",
        "url.scheme": "http",
        "http.response.status_code": 200,
        "http.route": "/embed",
        "gen_ai.response.model": "bert",
        "gen_ai.usage.input_tokens": 3,
        "inlay.batch_items": 1.0,
    }
    below = sorted(seen.below(server), key=lambda span: span.start_time)
    assert [span.name for span in below] == [*STAGES, "encode"]
    assert below[0].attributes == {"inlay.model": "bert", "inlay.tokens": 3}
    assert all(before.end_time == after.start_time for before, after in pairwise(below))
    assert below[-1].end_time - below[0].start_time <= server.end_time - server.start_time


def test_grpc_call_continues_its_callers_trace(traced: Served, seen: Seen) -> None:
    traced.stub.Embed(request("hello"), metadata=[("traceparent", f"00-{TRACE}-{SPAN}-01")])
    (server,) = seen.servers()
    assert (server.name, f"{server.context.trace_id:032x}") == ("inlay.v1.Embedder/Embed", TRACE)
    assert dict(server.attributes) == {
        "rpc.system.name": "grpc",
        "rpc.method": "inlay.v1.Embedder/Embed",
        "rpc.response.status_code": "OK",
        "gen_ai.response.model": "bert",
        "gen_ai.usage.input_tokens": 3,
        "inlay.batch_items": 1.0,
    }
    assert [span.name for span in seen.below(server)] == STAGES


def test_stream_is_one_span_with_the_stages_of_its_requests(traced: Served, seen: Seen) -> None:
    assert len(list(traced.stub.EmbedStream(iter([request("a"), request("b")])))) == 2
    (server,) = seen.servers()
    assert server.name == "inlay.v1.Embedder/EmbedStream"
    assert server.attributes["gen_ai.usage.input_tokens"] == 6
    assert sorted(span.name for span in seen.below(server)) == sorted(2 * STAGES)


def test_unsampled_trace_is_named_in_log_lines_alone(traced: Served, seen: Seen) -> None:
    traced.http.post("/embed", json={"inputs": "hello"}, headers={"traceparent": f"00-{TRACE}-{SPAN}-00"})
    (line,) = seen.lines("status", 1)
    assert (line["logger"], line["method"], line["status"]) == (logs.ACCESS, "POST /embed", 200)
    assert line["trace_id"] == TRACE
    assert seen.spans == []


@pytest.mark.parametrize(
    "value",
    [
        "",
        "nonsense",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
    ],
)
def test_invalid_traceparent_begins_a_new_trace(value: str, traced: Served, seen: Seen) -> None:
    assert traced.http.post("/embed", json={"inputs": "a"}, headers={"traceparent": value}).status_code == 200
    (server,) = seen.servers()
    assert server.parent is None
    assert f"{server.context.trace_id:032x}" != TRACE


def test_two_traceparents_begin_a_new_trace(traced: Served, seen: Seen) -> None:
    headers = [("traceparent", f"00-{TRACE}-{SPAN}-01"), ("traceparent", f"00-{TRACE[::-1]}-{SPAN}-01")]
    assert traced.http.post("/embed", json={"inputs": "a"}, headers=headers).status_code == 200
    assert seen.servers()[0].parent is None


async def test_requests_of_one_batch_keep_their_own_traces(tiny_store: Path, seen: Seen) -> None:
    async with serving_here(tiny_store, default_model="bert") as here:
        url = "http://{}:{}".format(*here.address)
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
            numbers = [f"{number:032x}" for number in range(1, 9)]
            await asyncio.gather(
                *[
                    client.post("/embed", json={"inputs": "a"}, headers={"traceparent": f"00-{each}-{SPAN}-01"})
                    for each in numbers
                ]
            )
    for server in seen.servers(8):
        assert {span.context.trace_id for span in seen.below(server)} == {server.context.trace_id}
        assert sorted(span.name for span in seen.below(server)) == sorted([*STAGES, "encode"])
    assert sorted(f"{server.context.trace_id:032x}" for server in seen.servers()) == numbers


@pytest.mark.parametrize(
    ("path", "name", "status"),
    [
        ("/models/bert", "GET /models/{name}", 200),
        ("/models/nobody", "GET /models/{name}", 404),
        (f"/{SECRET}", "GET", 404),
        ("/embed", "GET /embed", 405),
        ("/models/models", "GET /models/{name}", 404),
        ("/v2/models/bert/ready", "GET /v2/models/{name}/ready", 200),
    ],
)
def test_span_is_named_after_its_route(path: str, name: str, status: int, traced: Served, seen: Seen) -> None:
    assert traced.http.get(path).status_code == status
    (server,) = seen.servers()
    assert (server.name, server.attributes["http.response.status_code"]) == (name, status)
    assert server.status.status_code is StatusCode.UNSET


def test_probes_and_scrapes_make_no_spans(traced: Served, seen: Seen) -> None:
    for path in ("/health", "/health/live", "/health/ready", "/ping", "/metrics", "/v2/health/live"):
        assert traced.http.get(path).status_code == 200
    with grpc.insecure_channel(traced.rpc_address) as channel:
        channel.unary_unary("/inference.GRPCInferenceService/ServerReady")(b"")
        channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
    traced.http.post("/embed", json={"inputs": "a"})
    assert [span.name for span in seen.servers()] == ["POST /embed"]


def test_span_of_a_refused_call_is_no_error(traced: Served, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(grpc.RpcError):
        traced.stub.Embed(pb.EmbedRequest())
    (refused,) = seen.servers()
    assert refused.attributes["rpc.response.status_code"] == "INVALID_ARGUMENT"
    assert refused.status.status_code is StatusCode.UNSET


async def failing(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(request: Any, *call: Any) -> None:
        raise RuntimeError(f"cannot read {SECRET}")

    monkeypatch.setattr(here.context.embedder, "embed", fail)
    url = "http://{}:{}".format(*here.address)
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
        answer = await client.post("/embed", json={"inputs": SECRET}, headers={"x-request-id": "abc-1"})
        assert answer.status_code == 500
    async with grpc.aio.insecure_channel(here.rpc_address) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await EmbedderStub(channel).Embed(request(SECRET))


async def test_fault_is_logged_without_the_callers_input(
    tiny_store: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_here(tiny_store, default_model="bert", access_log=True) as here:
        await failing(here, monkeypatch)
    faults = seen.lines("exception", 2)
    assert len(faults) == 2
    assert faults[0]["request_id"] == "abc-1"
    assert all("RuntimeError" in line["exception"] and "in fail" in line["exception"] for line in faults)
    assert SECRET not in seen.stream.getvalue()
    assert [span.status.status_code for span in seen.servers(2)] == [StatusCode.ERROR] * 2


ASKED: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/embed", {"json": {"inputs": SECRET}}),
    ("POST", "/embed", {"json": {"inputs": SECRET * 4000, "truncate": False}}),
    ("POST", "/embed", {"json": {"inputs": [5], "model": SECRET}}),
    ("POST", "/embed", {"json": {"inputs": [5], SECRET: 1}}),
    ("POST", "/embed", {"content": SECRET, "headers": {"content-type": "application/json"}}),
    ("POST", "/embed", {"content": b"\xff" + SECRET.encode(), "headers": {"content-type": "application/json"}}),
    ("POST", "/embed", {"content": b"{}", "headers": {"content-type": SECRET}}),
    ("GET", f"/{SECRET}", {}),
    ("GET", f"/models/{SECRET}", {}),
    ("GET", f"/models/bert?{SECRET}={SECRET}", {"headers": {"authorization": f"Bearer {SECRET}"}}),
    ("POST", "/v1/embeddings", {"json": {"input": SECRET, "model": "bert"}}),
    ("POST", "/v1/embeddings", {"json": {"input": [SECRET, 5], "model": SECRET}}),
]


def test_no_span_and_no_log_line_holds_what_a_caller_sent(traced: Served, seen: Seen) -> None:
    for verb, path, body in ASKED:
        traced.http.request(verb, path, **body)
    for model in ("bert", SECRET):
        with pytest.raises(grpc.RpcError):
            traced.stub.Embed(pb.EmbedRequest(model=model, inputs=[pb.Input(text=SECRET)], prompt_name=SECRET))
    assert len(seen.servers(len(ASKED) + 2)) == len(ASKED) + 2
    shown = [span.to_json() for span in seen.spans]
    assert [line for line in [*shown, seen.stream.getvalue()] if SECRET in line] == []


EVIL = f"/{SECRET}%0A2026-01-01%2000:00:00,000%20CRITICAL%20{SECRET}"
UNROUTED = [
    ("GET", EVIL, {}, 401, "GET"),
    ("POST", f"/models/{SECRET}/logits", {}, 401, "POST /models/{name}/logits"),
    ("POST", "/models/logits/logits", {}, 401, "POST /models/{name}/logits"),
    ("GET", f"/v2{EVIL}", {}, 403, "GET"),
    ("POST", f"/v2/models/{SECRET}/infer", {}, 403, "POST /v2/models/{name}/infer"),
    ("POST", f"/embed/{SECRET}", {"authorization": f"Bearer {SECRET}"}, 429, "POST"),
    ("GET", EVIL, {"authorization": f"Bearer {OPEN}", "accept-encoding": "identity;q=0, *;q=0"}, 404, "GET"),
    ("OPTIONS", EVIL, {"origin": "http://a.example", "access-control-request-method": "POST"}, 200, "OPTIONS"),
    (
        "OPTIONS",
        "/embed",
        {"origin": "http://a.example", "access-control-request-method": "POST"},
        200,
        "OPTIONS /embed",
    ),
]


@pytest.fixture
def gated(tiny_store: Path, seen: Seen) -> Iterator[Served]:
    """A service that needs a key, with CORS enabled; the limit of one key is used up."""
    keys = f"spent:{SECRET} rate=0.001,open:{OPEN}"
    with serving(tiny_store, default_model="bert", access_log=True, api_keys=keys, cors_origins="*") as service:
        spent = service.http.get("/models", headers={"authorization": f"Bearer {SECRET}"})
        assert spent.status_code == 200
        yield service


def test_refusals_without_a_route_show_no_callers_input(gated: Served, seen: Seen) -> None:
    for verb, path, headers, status, _ in UNROUTED:
        assert gated.http.request(verb, path, headers=headers).status_code == status, (verb, path)
    lines, spans = seen.lines("status", 1 + len(UNROUTED))[1:], seen.servers(1 + len(UNROUTED))[1:]
    assert [(line["status"], line["method"]) for line in lines] == [row[3:] for row in UNROUTED]
    assert [span.name for span in spans] == [row[4] for row in UNROUTED]
    assert [span.attributes.get("http.route", "") for span in spans] == [row[4].partition(" ")[2] for row in UNROUTED]
    assert SECRET not in seen.stream.getvalue() + "".join(span.to_json() for span in seen.spans)


def test_only_lines_of_rejected_keys_hold_the_peer(gated: Served, seen: Seen) -> None:
    for path, key, _ in (rows := [("/embed", "x", True), ("/v2/models", "x", True), ("/models", OPEN, False)]):
        gated.http.get(path, headers={"authorization": f"Bearer {key}"})
    lines = seen.lines("status", 1 + len(rows))[1:]
    assert [bool(re.fullmatch(r"127\.0\.0\.1:\d+", line.get("peer", ""))) for line in lines] == [row[2] for row in rows]


def test_call_rejected_for_its_key_is_logged_and_counted(gated: Served, seen: Seen) -> None:
    spent = [("authorization", f"Bearer {SECRET}")]
    with grpc.insecure_channel(gated.rpc_address) as channel:
        calls = [channel.unary_unary(f"/{name}", bytes, bytes) for name in ("inlay.v1.Embedder/Embed", f"{SECRET}/x")]
        for call, metadata in [(calls[0], []), (calls[1], []), (calls[0], spent)]:
            with pytest.raises(grpc.RpcError):
                call(b"", metadata=metadata)
    lines, spans = seen.lines("status", 4)[1:], seen.servers(4)[1:]
    logged = [("inlay.v1.Embedder/Embed", "UNAUTHENTICATED"), ("_OTHER", "UNAUTHENTICATED")]
    logged.append(("inlay.v1.Embedder/Embed", "RESOURCE_EXHAUSTED"))
    assert [(line["method"], line["status"]) for line in lines] == logged
    assert [(span.name, span.attributes["rpc.response.status_code"]) for span in spans] == logged
    assert [line.get("peer", "").rpartition(":")[0] for line in lines] == ["127.0.0.1", "127.0.0.1", ""]
    assert [line.get("key") for line in lines] == [None, None, "spent"]
    metrics = gated.http.get("/metrics").text
    for status, number in (("UNAUTHENTICATED", 2), ("RESOURCE_EXHAUSTED", 1)):
        assert f'inlay_requests_total{{method="gate",protocol="grpc",status="{status}"}} {number}.0' in metrics
    assert SECRET not in seen.stream.getvalue() + "".join(span.to_json() for span in seen.spans)


def test_samples_a_share_of_the_traces_begun_here(tiny_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(ratio=0.0)
    monkeypatch.setattr("service.app.open_tracing", lambda settings: seen.tracing)
    with serving(tiny_store, default_model="bert") as service:
        service.http.post("/embed", json={"inputs": "a"})
        service.http.post("/embed", json={"inputs": "a"}, headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
        shown = service.http.get("/metrics", headers={"accept": "application/openmetrics-text"}).text
    assert [f"{server.context.trace_id:032x}" for server in seen.servers()] == [TRACE]
    assert re.findall(r'# \{trace_id="(\w+)"\}', shown) == [TRACE]


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, ExportTraceServiceRequest]]]]:
    """An OTLP/HTTP collector: its address, and what came."""
    received: list[tuple[str, ExportTraceServiceRequest]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()
        thread.join()


def test_collector_gets_the_spans_over_otlp(
    tiny_store: Path, collector: tuple[str, list[tuple[str, ExportTraceServiceRequest]]]
) -> None:
    url, received = collector
    with serving(tiny_store, default_model="bert", otlp_endpoint=f"{url}/") as service:
        service.http.post("/embed", json={"inputs": "a"}, headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
    ((path, exported),) = received
    assert path == "/v1/traces"
    (resource,) = exported.resource_spans
    assert {each.key: each.value.string_value for each in resource.resource.attributes}["service.name"] == "inlay"
    spans = [span for scope in resource.scope_spans for span in scope.spans]
    assert sorted(span.name for span in spans) == sorted(["POST /embed", *STAGES, "encode"])
    assert {span.trace_id.hex() for span in spans} == {TRACE}


def test_own_variable_overrides_the_standard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_tracing(Settings()) is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://theirs")
    assert Settings().otlp_endpoint == "http://theirs"
    monkeypatch.setenv("INLAY_OTLP_ENDPOINT", "http://ours")
    assert Settings().otlp_endpoint == "http://ours"
    assert Settings(otlp_endpoint="http://flag").otlp_endpoint == "http://flag"


def test_imports_no_exporter_without_a_collector(tiny_store: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from service.app import create_app; from service.settings import Settings\n"
        f"create_app(Settings(store=Path({str(tiny_store)!r}), device='cpu'))\n"
        "sys.exit(any(name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
