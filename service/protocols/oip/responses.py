"""How the Open Inference Protocol answers over HTTP: JSON, and {"error": message}. Knows no route."""

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from starlette.routing import Route

from service.context import ServiceContext
from service.error_status import STATUSES, retry_headers
from service.errors import InlayError
from service.http.endpoint import Answer, Call, Endpoint
from service.http.formats import JSON
from service.http.response import Response

PREFIX = "/v2"
Reply = Callable[[ServiceContext, Call], Awaitable[Answer]]
Row = tuple[Any, ...]  # verb, name in the metrics, Reply, paths
NOTHING = Answer(((b"content-length", b"0"),), [b""])


def route(context: ServiceContext, path: str, verb: str, method: str, reply: Reply) -> Route:
    """One path of the protocol; `method` is its name in the metrics."""

    async def answers(call: Call) -> Answer:
        return await reply(context, call)

    return Route(path, Endpoint(method, answers, refusal, context), methods=[verb], include_in_schema=False)


def render_error(error: InlayError) -> Response:
    """Return an error as {"error": message}."""
    answer = refusal(error)
    return Response(answer.body, answer.headers, answer.status)


def refusal(error: InlayError) -> Answer:
    """An error as {"error": message}."""
    answer = answer_json({"error": error.message}, STATUSES[error.code].oip)
    return answer._replace(headers=(*answer.headers, *retry_headers(error)))


def answer_json(document: Any, status: int = 200) -> Answer:
    """A JSON document."""
    body = orjson.dumps(document)
    return Answer(((b"content-type", JSON.encode()), (b"content-length", b"%d" % len(body))), [body], status)
