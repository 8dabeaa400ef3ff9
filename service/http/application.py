"""The interface of the application that uvicorn loads, and the ASGI application that has its lifespan."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

from starlette.routing import Router

from service.http.client_pace import ConnectionSettings
from service.http.intake import Intake

if TYPE_CHECKING:
    from service.http.head_memory import HeadMemory
    from service.http.pipeline import Pipeline

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


class HttpApplication(Protocol):
    """The application that uvicorn loads, as HttpProtocol uses it; uvicorn calls it only for its lifespan.

    Attributes:
        pipeline: serves requests.
        connections: limits of one connection.
        intake: bounds the bodies of all connections together.
        heads: request heads received before.
    """

    pipeline: "Pipeline"
    connections: ConnectionSettings
    intake: Intake
    heads: "HeadMemory"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer an ASGI call."""


def lifespan_application(lifespan: Lifespan | None) -> Router:
    """Return the ASGI application that uvicorn starts and stops; requests never reach it."""
    return Router(lifespan=lifespan)
