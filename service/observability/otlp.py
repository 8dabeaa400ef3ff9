"""Sends metrics and log lines to an OpenTelemetry collector over OTLP/HTTP, beside the traces of `tracing`.

Metrics are the families of /metrics, of this worker alone: a collector adds workers up. Each worker is a resource of
its own, and one that replaces another goes on with its counters.
"""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
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
LAST_SECONDS = 2.0  # in which a stop still sends; what a collector that does not answer would get is lost
log = logging.getLogger(__name__)


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
async def exporting(settings: Settings, metrics: Metrics, *ends: Callable[[], object]) -> AsyncIterator[None]:
    """Send what the settings say to their collector, and when the block ends the rest, for at most LAST_SECONDS.

    Args:
        ends: functions that send the rest of other signals.
    """
    signals = settings.signals if settings.otlp_endpoint else ()
    try:
        async with AsyncExitStack() as stack:
            for signal, begin in (("logs", _send_logs), ("metrics", _send_metrics)):
                if signal in signals:
                    ends = (*ends, begin(settings, metrics, stack))
            yield
    finally:
        sent = [asyncio.create_task(_beside(end)) for end in ends]
        if sent and (await asyncio.wait(sent, timeout=LAST_SECONDS))[1]:
            log.warning("the collector did not take the rest within %g s", LAST_SECONDS)


async def _beside(work: Callable[[], object]) -> None:
    """Run work in a thread that does not hold up the end of this process, as those of asyncio.to_thread do."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        work()
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=run, name="otlp", daemon=True).start()
    await ended.wait()


def _send_metrics(settings: Settings, metrics: Metrics, stack: AsyncExitStack) -> Callable[[], object]:
    """Send the numbers of this worker again and again until `stack` ends; return what sends the last ones."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    exporter = OTLPMetricExporter(settings.otlp_url("metrics"))
    sent_by, began, last = resource(metrics.store.name), metrics.store.began, list[Any]()

    async def send() -> None:
        while True:
            await asyncio.sleep(settings.metric_export_seconds)
            await _beside(partial(exporter.export, metrics_data(metrics.own(), sent_by, began)))

    stack.callback(lambda: last.append(metrics_data(metrics.own(), sent_by, began)))
    stack.callback(asyncio.create_task(send()).cancel)
    return lambda: exporter.export(last[0])


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


def _send_logs(settings: Settings, metrics: Metrics, stack: AsyncExitStack) -> Callable[[], object]:
    """Send the lines of the log until `stack` ends, without what callers sent; return what sends the last ones."""
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

    provider = LoggerProvider(resource(metrics.store.name))
    provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(settings.otlp_url("logs"))))
    handler, root = _Handler(provider, settings.log_inputs), logging.getLogger()
    root.addHandler(handler)
    stack.callback(root.removeHandler, handler)
    return provider.shutdown


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
