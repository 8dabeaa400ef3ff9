"""An InlayError as OpenAI's nested error object, in the members of its requests. Decides nothing else."""

import re

import orjson

from service.error_status import STATUSES, retry_headers
from service.errors import BadInput, EmptyRequest, InlayError, NoSuchPath, NotFound, TooLarge, WrongModelKind
from service.http.endpoint import Answer
from service.http.formats import JSON
from service.http.response import Response
from service.protocols.openai.bodies import PoolingBody

CODES = {
    "unauthorized": "invalid_api_key",
    "not_found": "model_not_found",
    "overloaded": "rate_limit_exceeded",
    "key_limited": "rate_limit_exceeded",
}
# What the road says of /embed's members, in those of these paths
WORDS = (
    ('"inputs" is empty', '"input" is empty'),
    ("inputs[", "input["),
    ("].input_ids", "]"),
    ('send "truncate": true', 'send "truncate_prompt_tokens": -1'),
)
MEMBERS = {"dtype": "embed_dtype", "outputs": "output"}
_UNKNOWN = re.compile(r'"([^"]*)" is not known')


def refusal(error: InlayError) -> Answer:
    """The status, the headers and {"error": {message, type, param, code}}."""
    status, kind = STATUSES[error.code].openai
    message = in_these_words(error.message)
    code = error.code if isinstance(error, NoSuchPath) else CODES.get(error.code, error.code)
    body = orjson.dumps({"error": {"message": message, "type": kind, "param": _param(error, message), "code": code}})
    headers = ((b"content-type", JSON.encode()), (b"content-length", b"%d" % len(body)), *retry_headers(error))
    return Answer(headers, [body], status)


def render_error(error: InlayError) -> Response:
    """Return an error as OpenAI's error object."""
    answer = refusal(error)
    return Response(answer.body, answer.headers, answer.status)


def in_these_words(message: str) -> str:
    """The message with the names that members have here."""
    for theirs, ours in WORDS:
        message = message.replace(theirs, ours)
    return message


def _param(error: InlayError, message: str) -> str | None:
    """The member to blame, where one is."""
    if isinstance(error, BadInput | EmptyRequest | TooLarge):
        return "input"
    if isinstance(error, NoSuchPath):
        return None
    if isinstance(error, NotFound | WrongModelKind):
        return "model"
    if unknown := _UNKNOWN.match(message):
        return unknown[1]
    word = message.split(maxsplit=1)[0]
    member = MEMBERS.get(word, word)
    return member if member in PoolingBody.model_fields else None
