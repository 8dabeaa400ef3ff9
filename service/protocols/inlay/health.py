"""The probes and the metrics."""

from typing import Any

from pydantic import BaseModel

from service.context import ServiceContext
from service.errors import Unavailable
from service.http.formats import JSON
from service.http.response import Response, bytes_response, json_response
from service.http.routes import Answer, Handler, Request, Route
from service.observability.metrics import CONTENT_TYPE
from service.protocols.inlay.openapi_parts import OPERATION
from service.scheduling.batcher import abandoned_runs

EMPTY = Answer(description="Ready; no body.")
PROBE: dict[str, Any] = {"needs_key": False, "admitted": False, "probe": True, "management": True}
MOST_ABANDONED = 2  # runs that were given up and do not end; with more, the process should be restarted


class Health(BaseModel):
    """The answer of a probe."""

    status: str


class Ready(Health):
    """The answer of the readiness probe; `detail` says which requests are refused though the service is ready."""

    detail: str | None = None


def routes(context: ServiceContext) -> list[Route]:
    """Return the probes and /metrics."""

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
        return bytes_response(context.metrics.text(), CONTENT_TYPE)

    text = Answer(content={"text/plain": {"type": "string"}})
    return [
        _probe("/health/live", live, "The process answers", Answer(content={JSON: Health})),
        _probe("/health/ready", ready, "Models are loaded and requests are served", Answer(content={JSON: Ready})),
        _probe("/health", ready_without_body, "Requests are served; no body", EMPTY),  # TEI's probe
        _probe("/ping", ready_without_body, "The same, as SageMaker asks", EMPTY),
        _probe("/metrics", metrics, "Prometheus metrics", text),
    ]


def _probe(path: str, handler: Handler, summary: str, answer: Answer) -> Route:
    name = path.rpartition("/")[2]
    return Route("GET", path, handler, name, summary, OPERATION, answers={200: answer}, **PROBE)
