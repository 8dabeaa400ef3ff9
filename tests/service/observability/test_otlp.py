"""Metrics and log lines at an OpenTelemetry collector: what arrives, and what never does."""

import logging
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from service.settings import Settings
from tests.served import serving

SECRET = "hunter2planted"
SIGNALS = ("traces", "metrics", "logs")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
Received = list[tuple[str, Any]]
MESSAGES = {"/v1/metrics": ExportMetricsServiceRequest, "/v1/logs": ExportLogsServiceRequest}


@pytest.fixture
def collector() -> Iterator[tuple[str, Received]]:
    """An OTLP/HTTP collector: its address, and what came."""
    received: Received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append((self.path, MESSAGES[self.path].FromString(body) if self.path in MESSAGES else None))
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


def attributes(entries: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in entries}


def test_collector_gets_the_numbers_of_metrics(tiny_store: Path, collector: tuple[str, Received]) -> None:
    url, received = collector
    with serving(tiny_store, default_model="bert", otlp_endpoint=url, otlp_signals=("metrics",)) as service:
        for _ in range(3):
            service.http.post("/embed", json={"inputs": "a"})
        service.http.post("/embed", json={"inputs": []})
    assert {path for path, _ in received} == {"/v1/metrics"}
    (resource,) = received[-1][1].resource_metrics
    named = attributes(resource.resource.attributes)
    assert named["service.name"] == "inlay"
    assert named["service.instance.id"]
    metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    counted = metrics["inlay_requests"].sum
    by_status = {attributes(point.attributes)["status"]: point.as_double for point in counted.data_points}
    assert (by_status, counted.is_monotonic) == ({"200": 3, "400": 1}, True)
    (times,) = metrics["inlay_request_seconds"].histogram.data_points
    assert (times.count, sum(times.bucket_counts), len(times.explicit_bounds) + 1) == (3, 3, len(times.bucket_counts))
    assert times.sum > 0
    assert 0 < times.start_time_unix_nano < times.time_unix_nano
    assert metrics["inlay_model_bytes"].gauge.data_points[0].as_double > 0


def test_collector_gets_log_lines_with_their_trace(
    tiny_store: Path, collector: tuple[str, Received], caplog: pytest.LogCaptureFixture
) -> None:
    url, received = collector
    caplog.set_level("INFO")
    settings = {"otlp_endpoint": url, "otlp_signals": ("traces", "logs"), "access_log": True}
    with serving(tiny_store, default_model="bert", **settings) as service:
        headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "x-request-id": "abc-1"}
        service.http.post("/embed", json={"inputs": SECRET}, headers=headers)
        logging.getLogger("any").error("cannot read %s", RuntimeError(SECRET))
    records = [
        record
        for path, message in received
        if path == "/v1/logs"
        for resource in message.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]
    (access,) = [record for record in records if record.trace_id]
    assert (access.trace_id.hex(), access.severity_text) == (TRACE, "INFO")
    assert attributes(access.attributes)["method"] == "POST /embed"
    assert attributes(access.attributes)["request_id"] == "abc-1"
    assert any(record.body.string_value.startswith("cannot read (message withheld") for record in records)
    assert SECRET not in str(records)


def test_collector_that_does_not_answer_holds_up_no_stop(tiny_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    asked, answered, go_on = set[str](), list[str](), Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.add(self.path)
            go_on.wait(100)
            answered.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever).start()
        settings = {"otlp_endpoint": f"http://127.0.0.1:{server.server_port}", "otlp_signals": tuple(SIGNALS)}
        with serving(tiny_store, default_model="bert", **settings) as service:
            service.http.post("/embed", json={"inputs": "a"})
            logging.getLogger("any").error("a line")
        assert (asked, answered) == ({f"/v1/{signal}" for signal in SIGNALS}, [])
        go_on.set()
        server.shutdown()


def test_standard_variables_choose_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(Settings().signals) == ["traces"]
    for name, value in {"TRACES": "none", "METRICS": "console,otlp", "LOGS": "otlp"}.items():
        monkeypatch.setenv(f"OTEL_{name}_EXPORTER", value)
    assert list(Settings().signals) == ["metrics", "logs"]
    assert list(Settings(otlp_signals=("traces",)).signals) == ["traces"]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://logs/x")
    chosen = Settings(otlp_endpoint="http://all/")
    assert [chosen.otlp_url(signal) for signal in ("metrics", "logs")] == ["http://all/v1/metrics", "http://logs/x"]
