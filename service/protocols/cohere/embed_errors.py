"""Errors of Cohere's embed routes, with the field names of their requests."""

from service.embedding.outputs.dense import AS_THE_MODEL_GIVES
from service.error_status import STATUSES, retry_headers
from service.errors import SHORTEN_OR_TRUNCATE, InlayError, Spelling
from service.http.response import Response, json_response
from service.request_context import CURRENT_CALL

SPELLING = Spelling(
    fields={"inputs": "texts", "dimensions": "output_dimension", "dtype": "embedding_types"},
    remedies={
        SHORTEN_OR_TRUNCATE: 'shorten it or send "truncate": "END"',
        AS_THE_MODEL_GIVES: "leave out output_dimension, or ask for binary or ubinary",
    },
)
INVALID_REQUESTS = frozenset(
    {code for code, status in STATUSES.items() if status.http in (406, 408, 416, 422, 431)} | {"wrong_model_kind"}
)
"""Codes that Cohere answers with 400, whatever their HTTP status is elsewhere."""


def render_error(error: InlayError) -> Response:
    """Return an error as Cohere's message and id."""
    status = 400 if error.code in INVALID_REQUESTS else STATUSES[error.code].http
    document = {"id": CURRENT_CALL.get().request_id.decode(), "message": error.render(SPELLING)}
    return json_response(document, status, tuple(retry_headers(error)))
