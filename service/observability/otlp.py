"""Sends metrics and log lines to an OpenTelemetry collector over OTLP/HTTP, beside the traces of `tracing`.

Metrics are the families of /metrics, of this worker alone: a collector adds workers up. Each worker is a resource of
its own, and one that replaces another goes on with its counters.
"""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from models import VERSION
from service.observability.logs import TextFormatter, context_fields
from service.observability.metric_families import BY_NAME, Family
from service.observability.metric_store import Key
from service.observability.metrics import Metrics
from service.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricsData
    from opentelemetry.sdk.resources import Resource

OWN = "opentelemetry"  # loggers whose lines are not sent: they are about sending


def resource(worker: str = "") -> "Resource":
    """Return what OTLP says of this process; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win.

    Args:
        worker: a name that no other worker has.
    """
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    own = {"service.name": "inlay", "service.version": VERSION}
    if worker:
        own["service.instance.id"] = f"{socket.gethostname()}-{worker}"
    return Resource.create(own).merge(OTELResourceDetector().detect())


@asynccontextmanager
async def exporting(settings: Settings, metrics: Metrics) -> AsyncIterator[None]:
    """Send what the settings say to the collector that they name, while the block lasts."""
    signals = settings.signals if settings.otlp_endpoint else ()
    with _sending_logs(settings, metrics.store.name) if "logs" in signals else nullcontext():
        if "metrics" not in signals:
            yield
            return
        task = asyncio.create_task(_send_metrics(settings, metrics))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _send_metrics(settings: Settings, metrics: Metrics) -> None:
    """Send the numbers of this worker again and again, and a last time when the task is cancelled."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    exporter = OTLPMetricExporter(settings.otlp_url("metrics"))
    sent_by, began = resource(metrics.store.name), metrics.store.began
    try:
        while True:
            await asyncio.sleep(settings.metric_export_seconds)
            await asyncio.to_thread(exporter.export, metrics_data(metrics.own(), sent_by, began))
    finally:
        await asyncio.to_thread(exporter.export, metrics_data(metrics.own(), sent_by, began))
        exporter.shutdown()


def metrics_data(
    numbers: Mapping[str, Mapping[Key, Sequence[float]]], sent_by: "Resource", began: float
) -> "MetricsData":
    """Return families as OTLP has them.

    Args:
        numbers: of each family, by the values of its labels.
        began: since when they are counted, in seconds since the epoch.
    """
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics = [_metric(BY_NAME[name], found, began) for name, found in numbers.items() if found]
    scope = ScopeMetrics(InstrumentationScope("inlay", VERSION), metrics, "")
    return MetricsData([ResourceMetrics(sent_by, [scope], "")])


def _metric(family: Family, found: Mapping[Key, Sequence[float]], began: float) -> "Metric":
    from opentelemetry.sdk.metrics import export as sdk

    times: dict[str, Any] = {"start_time_unix_nano": int(began * 1e9), "time_unix_nano": time.time_ns()}
    labelled = [(dict(zip(family.labels or ("worker",), values, strict=False)), each) for values, each in found.items()]
    data: Any
    if family.kind in ("histogram", "summary"):
        unknown: dict[str, Any] = {"explicit_bounds": family.bounds, "min": None, "max": None}
        points = [
            sdk.HistogramDataPoint(
                labels,
                **times,
                **unknown,
                count=int(sum(each[:-1])),
                sum=each[-1],
                bucket_counts=[*map(int, each[:-1])],
            )
            for labels, each in labelled
        ]
        data = sdk.Histogram(points, sdk.AggregationTemporality.CUMULATIVE)
    else:
        numbers = [sdk.NumberDataPoint(labels, **times, value=each[0]) for labels, each in labelled]
        counted = partial(sdk.Sum, aggregation_temporality=sdk.AggregationTemporality.CUMULATIVE, is_monotonic=True)
        data = counted(numbers) if family.kind == "counter" else sdk.Gauge(numbers)
    return sdk.Metric(family.name, family.help, "", data)


@contextmanager
def _sending_logs(settings: Settings, worker: str) -> Iterator[None]:
    """Send the lines of the log too, without what callers sent."""
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

    provider = LoggerProvider(resource(worker))
    provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(settings.otlp_url("logs"))))
    handler, root = _Handler(provider, settings.log_inputs), logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        provider.shutdown()


class _Handler(logging.Handler):
    """Gives log records to OpenTelemetry, which sends them from a thread of its own."""

    def __init__(self, provider: Any, inputs: bool) -> None:
        super().__init__()
        self._provider, self._formatter = provider, TextFormatter(inputs)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record to be sent; a full queue drops the oldest."""
        from opentelemetry import trace
        from opentelemetry._logs import SeverityNumber

        if record.name.partition(".")[0] == OWN:
            return
        record, attributes = self._formatter.without_inputs(record), context_fields(record)
        traced = trace.SpanContext(int(attributes.pop("trace_id", "0"), 16), trace.INVALID_SPAN_ID, is_remote=False)
        if record.exc_info and record.exc_info[0]:
            attributes["exception.type"] = record.exc_info[0].__name__
            attributes["exception.stacktrace"] = self._formatter.formatException(record.exc_info)
        self._provider.get_logger(record.name).emit(
            timestamp=int(record.created * 1e9),
            context=trace.set_span_in_context(trace.NonRecordingSpan(traced)),
            severity_number=SeverityNumber(max(1, min(24, record.levelno // 10 * 4 + 1))),
            severity_text=record.levelname,
            body=record.getMessage(),
            attributes=attributes,
        )
