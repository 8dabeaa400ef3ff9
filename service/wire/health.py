"""What machines ask: alive, ready, metrics; and one line for people at `/`. Never queues behind inference."""

from fastapi import APIRouter, Response
from pydantic import BaseModel

from service.errors import Unavailable
from service.metrics import CONTENT_TYPE
from service.wire.parts import Parts


class Health(BaseModel):
    """The answer of a probe."""

    status: str


class Greeting(BaseModel):
    """What this server is."""

    service: str
    version: str
    docs: str


def routes(parts: Parts) -> APIRouter:
    """GET /, /health/live, /health/ready and /metrics."""
    router, life = APIRouter(tags=["operation"]), parts.life

    @router.get("/", summary="What this server is")
    async def greet() -> Greeting:
        return Greeting(service="inlay", version=parts.version, docs="/docs")

    @router.get("/health/live", summary="The process answers")
    async def live() -> Health:
        return Health(status="live")

    @router.get("/health/ready", summary="Models are loaded and new requests are welcome")
    async def ready() -> Health:
        if not life.ready:
            raise Unavailable("the service is stopping" if life.stopping else "the service is starting")
        return Health(status="ready")

    @router.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def expose() -> Response:
        return Response(parts.metrics.text(), media_type=CONTENT_TYPE)

    return router
