"""What machines ask: alive, ready, metrics; and one line for people at `/`. Never queues behind inference."""

from fastapi import APIRouter, Response
from pydantic import BaseModel

from service.context import Parts
from service.errors import Unavailable
from service.observability.metrics import CONTENT_TYPE
from service.scheduling.batcher import runs_held

MOST_HELD = 2  # runs that were given up and do not end; from the next one on, the process should be started anew


class Health(BaseModel):
    """The answer of a probe."""

    status: str


class Greeting(BaseModel):
    """What this server is."""

    service: str
    version: str
    docs: str


def routes(parts: Parts) -> APIRouter:
    """GET /, /health, /ping, /health/live, /health/ready and /metrics."""
    router, refuse_unready = APIRouter(tags=["operation"]), parts.refuse_unready

    @router.get("/", summary="What this server is")
    async def greet() -> Greeting:
        await refuse_unready()
        return Greeting(service="inlay", version=parts.version, docs="/docs")

    @router.get("/health/live", summary="The process answers")
    async def live() -> Health:
        if (held := runs_held()) > MOST_HELD:
            raise Unavailable(f"{held} runs were given up and each still holds a thread: start this process anew")
        return Health(status="live")

    @router.get("/health/ready", summary="Models are loaded and new requests are welcome")
    async def ready() -> Health:
        await refuse_unready()
        return Health(status="ready")

    # text-embeddings-inference's: an empty body, for probes that ask for nothing but the status
    @router.get("/health", summary="New requests are welcome; no body", response_class=Response)
    @router.get("/ping", summary="The same, as SageMaker asks", response_class=Response)
    async def probe() -> Response:
        await refuse_unready()
        return Response()

    @router.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def expose() -> Response:
        return Response(parts.metrics.text(), media_type=CONTENT_TYPE)

    return router
