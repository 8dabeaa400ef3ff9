"""Probes and metrics."""

from typing import Any

from pydantic import BaseModel

from service.context import ServiceContext
from service.errors import Unavailable
from service.http.formats import JSON
from service.http.response import Response, bytes_response, json_response
from service.http.routes import Answer, Request, Route
from service.observability.metrics import CONTENT_TYPE
from service.scheduling.batcher import abandoned_runs

MOST_ABANDONED = 2  # runs that were given up and do not end; with more, the process should be restarted
TAG = "operation"


class Health(BaseModel):
    """The answer of a probe."""

    status: str


class Ready(Health):
    """The answer of a probe of readiness; `detail` says which requests are refused though the service is ready."""

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

    health = {200: Answer(content={JSON: Health})}
    empty = {200: Answer(description="Ready; no body.")}
    text = {200: Answer(content={"text/plain": {"type": "string"}})}
    rows = (
        ("/health/live", live, "live", "The process answers", health),
        (
            "/health/ready",
            ready,
            "ready",
            "Models are loaded and requests are served",
            {200: Answer(content={JSON: Ready})},
        ),
        # text-embeddings-inference's and SageMaker's probes
        ("/health", ready_without_body, "health", "Requests are served; no body", empty),
        ("/ping", ready_without_body, "ping", "The same, as SageMaker asks", empty),
        ("/metrics", metrics, "metrics", "Prometheus metrics", text),
    )
    shared: dict[str, Any] = {"verb": "GET", "tag": TAG, "needs_key": False, "admitted": False, "probe": True}
    return [
        Route(path=path, handler=handler, name=name, summary=summary, answers=answers, management=True, **shared)
        for path, handler, name, summary, answers in rows
    ]
