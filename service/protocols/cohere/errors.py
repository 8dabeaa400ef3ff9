"""Errors as Cohere's message and id, with the field names of its requests."""

from typing import Annotated

from pydantic import BaseModel, Field

from service.error_status import INVALID_REQUESTS, STATUSES, retry_headers
from service.errors import SHORTEN_OR_TRUNCATE, InlayError, Spelling
from service.http.response import Response, json_response
from service.request_context import CURRENT_CALL

SPELLING = Spelling(
    fields={"inputs": "documents"}, remedies={SHORTEN_OR_TRUNCATE: 'shorten it or send "truncation": true'}
)


class CohereError(BaseModel):
    """An error of Cohere's routes."""

    id: Annotated[str, Field(description="the request's id")]
    message: Annotated[str, Field(description="What came, what is allowed, what to do.")]
    detail: Annotated[str | None, Field(description="`message`, as Jina's clients read it, of rankings.")] = None


def render_error(error: InlayError) -> Response:
    """Return an error as Cohere's; it answers invalid requests with 400, as vLLM does."""
    status = 400 if error.code in INVALID_REQUESTS else STATUSES[error.code].http
    message = error.render(SPELLING)
    document = {"id": CURRENT_CALL.get().request_id.decode(), "message": message, "detail": message}
    return json_response(document, status, tuple(retry_headers(error)))
