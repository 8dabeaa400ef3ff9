"""OpenTelemetry spans: one for each request, its stages below it. The only module that imports opentelemetry.

Off unless an endpoint is set; else nothing is imported. Continues a caller's W3C trace context and its decision whether
to sample; of requests without one a share is taken. Attributes never hold what a caller sent. Knows no protocol.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from models import VERSION
from service.errors import StartError
from service.observability.request_context import TRACE_ID
from service.observability.stage_times import TRAIL, Embedded, Trail
from service.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
PATH = "v1/traces"  # below the endpoint (OTLP/HTTP)
Attributes = Mapping[str, str | int]


def open_tracing(settings: Settings) -> "Tracing | None":
    """Spans to the collector that the settings name; None where they name none.

    raises   StartError if OpenTelemetry is not installed
    """
    if not settings.otlp_endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
    except ImportError as error:
        raise StartError(f"traces need {error.name}: install the extra `otel`, or unset INLAY_OTLP_ENDPOINT") from error
    resource = Resource.create({"service.name": "inlay", "service.version": VERSION})
    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(settings.trace_ratio), resource=resource)
    exporter = OTLPSpanExporter(f"{settings.otlp_endpoint.rstrip('/')}/{PATH}")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider)


class Tracing:
    """Begins spans of requests at `provider`."""

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("inlay", VERSION)
        self._propagator = TraceContextTextMapPropagator()
        self._trace = trace

    def begin(self, name: str, carrier: Mapping[str, Sequence[str]], attributes: Attributes) -> "Traced":
        """A server span, the child of the caller's; log lines of the running task name its trace from now on.

        carrier   the values of TRACEPARENT and TRACESTATE, as far as they came
        """
        context = self._propagator.extract(carrier) if carrier else None
        kind = self._trace.SpanKind.SERVER
        span = self._tracer.start_span(name, context=context, kind=kind, attributes=dict(attributes))
        TRACE_ID.set(self._trace.format_trace_id(span.get_span_context().trace_id))
        trail: Trail = []
        if span.is_recording():
            TRAIL.set(trail)
        return Traced(self, span, trail)

    def close(self) -> None:
        """Send what is still here; takes until the exporter gives up at most."""
        self._provider.shutdown()

    def stages(self, span: Any, trail: Trail, written: bool) -> None:
        """A child of `span` for each stage of each pass; `written`: the last one's answer became bytes until now."""
        parent = self._trace.set_span_in_context(span)
        now = time.perf_counter()
        epoch = time.time_ns() - round(now * 1e9)
        for each in trail:
            attributes: dict[str, str | int] = {"inlay.model": each.model, "inlay.tokens": each.tokens}
            for name, begun, ended in _spans(each):
                child = self._tracer.start_span(name, parent, attributes=attributes, start_time=_ns(epoch, begun))
                child.end(_ns(epoch, ended))
        if trail and written:
            self._tracer.start_span("encode", parent, start_time=_ns(epoch, trail[-1].at)).end(_ns(epoch, now))


class Traced:
    """The span of a request that is being served."""

    def __init__(self, tracing: Tracing, span: Any, trail: Trail) -> None:
        self._tracing, self._span, self._trail = tracing, span, trail

    def end(self, name: str, attributes: Attributes, failed: bool, written: bool) -> None:
        """The request is answered.

        name      of the span, now that its route is known
        failed    through our own fault, not the caller's
        written   the time since the encoder was done went into writing the answer
        """
        if not self._span.is_recording():
            return
        self._tracing.stages(self._span, self._trail, written)
        self._span.update_name(name)
        self._span.set_attributes(dict(attributes))
        if failed:
            self._span.set_status(self._tracing._trace.StatusCode.ERROR)
        self._span.end()


def _spans(passed: Embedded) -> list[tuple[str, float, float]]:
    """The stages of a pass, one behind the other up to its end; several runs' times are means, pooling is left out."""
    run = passed.at - passed.times.inference
    queue = run - passed.times.queue
    found = [("queue", queue, run), ("run", run, passed.at)]
    if passed.times.tokenization:
        found.insert(0, ("tokenise", queue - passed.times.tokenization, queue))
    return found


def _ns(epoch: int, at: float) -> int:
    return epoch + round(at * 1e9)
