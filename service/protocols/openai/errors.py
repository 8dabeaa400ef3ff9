"""Errors as OpenAI's nested error object, with the field names of its requests."""

from pydantic import BaseModel, Field

from service.error_status import INVALID_REQUESTS, STATUSES, retry_headers
from service.errors import SHORTEN_OR_TRUNCATE, InlayError, NoSuchPath, Spelling
from service.http.response import Response, json_response

SPELLING = Spelling(
    fields={"inputs": "input", "input_ids": "", "outputs": "output", "dtype": "output_dtype"},
    remedies={SHORTEN_OR_TRUNCATE: 'shorten it or send "truncate_prompt_tokens": -1'},
)
CODES = {
    "unauthorized": "invalid_api_key",
    "not_found": "model_not_found",
    "unknown_model": "model_not_found",
    "overloaded": "rate_limit_exceeded",
    "key_limited": "rate_limit_exceeded",
}
DEFAULT_PARAMS = {
    "not_found": "model",
    "unknown_model": "model",
    "wrong_model_kind": "model",
}  # of errors that name no field
TYPES = {424: "server_error", 429: "rate_limit_exceeded", 500: "server_error", 503: "server_error", 504: "server_error"}
INVALID_REQUEST = "invalid_request_error"


class OpenAIFault(BaseModel):
    """The error object that OpenAI's clients raise as APIStatusError."""

    message: str = Field(description="What came, what is allowed, what to do.")
    type: str = Field(examples=[INVALID_REQUEST, *sorted(set(TYPES.values()))])
    param: str | None = Field(description="the field to blame")
    code: str = Field(json_schema_extra={"enum": [*sorted({CODES.get(code, code) for code in STATUSES})]})


class OpenAIError(BaseModel):
    """An error of OpenAI's routes."""

    error: OpenAIFault


def render_error(error: InlayError) -> Response:
    """Return an error as OpenAI's error object."""
    status = 400 if error.code in INVALID_REQUESTS else STATUSES[error.code].http
    unknown_path = isinstance(error, NoSuchPath)
    fault = {
        "message": error.render(SPELLING),
        "type": TYPES.get(status, INVALID_REQUEST),
        "param": None if unknown_path else _param(error),
        "code": error.code if unknown_path else CODES.get(error.code, error.code),
    }
    return json_response({"error": fault}, status, tuple(retry_headers(error)))


def _param(error: InlayError) -> str | None:
    """Return the field of the body that the error is about."""
    if not error.field:
        return DEFAULT_PARAMS.get(error.code)
    name = str(error.field[0])
    return name if error.verbatim else SPELLING.fields.get(name, name)
