"""Errors as Cohere's message and id, with the field names of its requests."""

from pydantic import BaseModel, Field

from service.embedding.outputs.dense import AS_THE_MODEL_GIVES
from service.error_status import INVALID_REQUESTS, STATUSES, retry_headers
from service.errors import SHORTEN_OR_TRUNCATE, InlayError, Spelling
from service.http.response import Response, json_response
from service.request_context import CURRENT_CALL

RANKING = Spelling(
    fields={"inputs": "documents"}, remedies={SHORTEN_OR_TRUNCATE: 'shorten it or send "truncation": true'}
)
EMBEDDING = Spelling(
    fields={"inputs": "texts", "dimensions": "output_dimension", "dtype": "embedding_types"},
    remedies={
        SHORTEN_OR_TRUNCATE: 'shorten it or send "truncate": "END"',
        AS_THE_MODEL_GIVES: "leave out output_dimension, or ask for binary or ubinary",
    },
)


class CohereError(BaseModel):
    """An error of Cohere's routes."""

    id: str = Field(description="the request's id")
    message: str = Field(description="What came, what is allowed, what to do.")
    detail: str | None = Field(None, description="`message`, as Jina's clients read it, of rankings.")


def render_embed_error(error: InlayError) -> Response:
    """Return an error of the embed routes."""
    return _render(error, {"message": error.render(EMBEDDING)})


def render_rerank_error(error: InlayError) -> Response:
    """Return an error of a rerank route, which Jina's clients read too."""
    message = error.render(RANKING)
    return _render(error, {"message": message, "detail": message})


def _render(error: InlayError, members: dict[str, str]) -> Response:
    """Return an error with these members; invalid requests get 400, as in vLLM."""
    status = 400 if error.code in INVALID_REQUESTS else STATUSES[error.code].http
    return json_response({"id": CURRENT_CALL.get().request_id.decode(), **members}, status, tuple(retry_headers(error)))
