"""What HttpProtocol needs of the application that uvicorn loads."""

from typing import Any, Protocol

from service.http.client_pace import ConnectionSettings
from service.http.intake import Intake
from service.http.pipeline import Pipeline
from service.http.routes import Head


class HttpApplication(Protocol):
    """The application that uvicorn loads, as HttpProtocol uses it; uvicorn itself calls it for its lifespan.

    Attributes:
        pipeline: serves requests.
        connections: limits of one connection.
        intake: bounds the bodies of all connections together.
        heads: request heads received before, by their bytes (`head_memory.remember`).
    """

    pipeline: Pipeline
    connections: ConnectionSettings
    intake: Intake
    heads: dict[bytes, Head]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer an ASGI call."""
