"""The probes and the metrics."""

from contextlib import suppress
from typing import Any

from service.context import ServiceContext
from service.errors import NotAcceptable, Unavailable, UnknownField
from service.http.negotiation import negotiate
from service.http.response import Response, bytes_response, json_response
from service.http.routes import Request, Route
from service.http.validation_errors import quoted
from service.observability.metrics import CONTENT_TYPE, OPENMETRICS
from service.protocols.inlay.parsing import query_pairs
from service.scheduling.batcher import abandoned_runs

FORMATS = (CONTENT_TYPE.partition(";")[0], OPENMETRICS.partition(";")[0])
MOST_ABANDONED = 2  # runs that were given up and do not end; with more, the process should be restarted


def routes(context: ServiceContext) -> list[Route]:
    """Return the probes, /metrics and its history."""

    async def live(request: Request) -> Response:
        if (held := abandoned_runs()) > MOST_ABANDONED:
            raise Unavailable(f"{held} runs were given up and each still holds a thread", remedy="restart this process")
        return json_response({"status": "live"})

    async def ready(request: Request) -> Response:
        await context.check_ready()
        if fault := context.registry.default_fault():
            detail = f"{fault}: requests must name a model, or set INLAY_DEFAULT_MODEL where the server starts"
            return json_response({"status": "ready", "detail": detail})
        return json_response({"status": "ready"})

    async def ready_without_body(request: Request) -> Response:
        await context.check_ready()
        return Response()

    async def metrics(request: Request) -> Response:
        with suppress(NotAcceptable):  # what a scraper cannot read helps more than an error
            if negotiate(request.head.headers.get(b"accept"), FORMATS) == FORMATS[1]:
                return bytes_response(context.metrics.openmetrics(), OPENMETRICS)
        return bytes_response(context.metrics.text(), CONTENT_TYPE)

    async def history(request: Request) -> Response:
        if pairs := query_pairs(request):
            raise UnknownField("is no parameter", field=(quoted(pairs[0][0]),), allowed="/metrics/history has none")
        return bytes_response(context.metrics.history(), "application/json")

    handlers = {
        "/health/live": live,
        "/health/ready": ready,
        "/health": ready_without_body,  # TEI's probe
        "/ping": ready_without_body,  # SageMaker's
        "/metrics": metrics,
    }
    probe: dict[str, Any] = {"needs_key": False, "admitted": False, "probe": True, "management": True}
    rows = [Route("GET", path, handler, **probe) for path, handler in handlers.items()]
    return [*rows, Route("GET", "/metrics/history", history, **{**probe, "needs_key": True})]  # it shows request ids
