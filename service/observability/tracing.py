"""OpenTelemetry spans: one for each request, with its stages below it.

Nothing is imported unless an endpoint is set. A caller's W3C trace context and its decision whether to sample are
continued; of the requests without one, a share is sampled. Attributes never hold what a caller sent.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from models import VERSION
from service.errors import StartError
from service.observability.otlp import resource
from service.request_context import Pass
from service.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as Span

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
Attributes = Mapping[str, str | int | float]


def open_tracing(settings: Settings) -> "Tracing | None":
    """Return the Tracing that sends spans to the collector of the settings; None if they name none.

    Raises:
        StartError: OpenTelemetry is not installed.
    """
    if not settings.otlp_endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

        sent_by = resource()
    except ImportError as error:
        missing = f"INLAY_OTLP_ENDPOINT needs {error.name}: install the extra `otel`, or unset it"
        raise StartError(missing) from error
    if "traces" not in settings.signals:
        return None
    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(settings.trace_ratio), resource=sent_by)
    exporter = OTLPSpanExporter(settings.otlp_url("traces"))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider)


class Tracing:
    """Begins and ends the spans of requests."""

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("inlay", VERSION)
        self._propagator = TraceContextTextMapPropagator()
        self._trace = trace

    def begin(self, name: str, carrier: Mapping[str, Sequence[str]], attributes: Attributes) -> "Span":
        """Begin a server span below the caller's span.

        Args:
            name: a first name of the span, until its route is known.
            carrier: the values of TRACEPARENT and TRACESTATE that the caller sent.
            attributes: attributes of the span.
        """
        context = self._propagator.extract(carrier) if carrier else None
        kind = self._trace.SpanKind.SERVER
        return self._tracer.start_span(name, context=context, kind=kind, attributes=dict(attributes))

    def trace_id(self, span: "Span") -> str:
        """Return the id of a span's trace, in hexadecimal."""
        return self._trace.format_trace_id(span.get_span_context().trace_id)

    def end(
        self, span: "Span", name: str, attributes: Attributes, failed: bool, passes: Sequence[Pass], written: bool
    ) -> None:
        """End the span of a request that is answered, with a child for each stage of each pass.

        Args:
            name: name of the span, now that its route is known.
            attributes: more of the span.
            failed: whether the request failed through the service's own fault.
            passes: the passes of the request through the core, in the order of time.
            written: whether the time since the last pass went into writing the response.
        """
        if not span.is_recording():
            return
        self._add_stages(span, passes, written)
        span.update_name(name)
        span.set_attributes(dict(attributes) | _used(passes))
        if failed:
            span.set_status(self._trace.StatusCode.ERROR)
        span.end()

    def close(self) -> None:
        """Send the remaining spans; returns when the exporter has sent them or given up."""
        self._provider.shutdown()

    def _add_stages(self, span: "Span", passes: Sequence[Pass], written: bool) -> None:
        parent = self._trace.set_span_in_context(span)
        now = time.perf_counter()
        epoch = time.time_ns() - round(now * 1e9)
        for single_pass in passes:
            attributes: dict[str, str | int] = {"inlay.model": single_pass.model, "inlay.tokens": single_pass.tokens}
            for name, start, end in _stages(single_pass):
                child = self._tracer.start_span(name, parent, attributes=attributes, start_time=_ns(epoch, start))
                child.end(_ns(epoch, end))
        if passes and written:
            self._tracer.start_span("encode", parent, start_time=_ns(epoch, passes[-1].ended)).end(_ns(epoch, now))


def _used(passes: Sequence[Pass]) -> dict[str, str | int | float]:
    """Return attributes that say what a request used of a model; none if it reached none.

    Source: those of OpenTelemetry's gen_ai.* that hold here and kept their names since 1.28 (all are in development).
    """
    if not passes:
        return {}
    batch = sum([each.batch for each in passes]) / len(passes)
    tokens = sum([each.tokens for each in passes])
    return {
        "gen_ai.response.model": passes[-1].model,
        "gen_ai.usage.input_tokens": tokens,
        "inlay.batch_items": round(batch, 1),
    }


def _stages(single_pass: Pass) -> list[tuple[str, float, float]]:
    """Return name, start and end of each stage of a pass, back to back; times of several runs are means."""
    run = single_pass.ended - single_pass.times.inference
    queue = run - single_pass.times.queue
    stages = [("queue", queue, run), ("run", run, single_pass.ended)]
    if single_pass.times.tokenization:
        stages.insert(0, ("tokenize", queue - single_pass.times.tokenization, queue))
    return stages


def _ns(epoch: int, at: float) -> int:
    return epoch + round(at * 1e9)
