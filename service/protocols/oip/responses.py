"""How the Open Inference Protocol answers over HTTP: JSON, and {"error": message}. Knows no route."""

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from starlette.routing import Route

from service.context import Parts
from service.error_status import STATUSES, retry_headers
from service.errors import InlayError
from service.http.endpoint import Answer, Call, Endpoint
from service.http.formats import JSON

PREFIX = "/v2"
Reply = Callable[[Parts, Call], Awaitable[Answer]]
Row = tuple[Any, ...]  # verb, name in the metrics, Reply, paths
NOTHING = Answer(((b"content-length", b"0"),), [b""])


def route(parts: Parts, path: str, verb: str, method: str, reply: Reply) -> Route:
    """One path of the protocol; `method` is its name in the metrics."""

    async def answers(call: Call) -> Answer:
        return await reply(parts, call)

    return Route(path, Endpoint(method, answers, refusal, parts), methods=[verb], include_in_schema=False)


def refusal(error: InlayError) -> Answer:
    """An error as {"error": message}."""
    answer = answer_json({"error": error.message}, STATUSES[error.code].oip)
    return answer._replace(headers=(*answer.headers, *retry_headers(error)))


def answer_json(document: Any, status: int = 200) -> Answer:
    """A JSON document."""
    body = orjson.dumps(document)
    return Answer(((b"content-type", JSON.encode()), (b"content-length", b"%d" % len(body))), [body], status)
