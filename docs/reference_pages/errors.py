"""The page of the errors, made from the codes of `service.error_status` and the classes of `service.errors`."""

from reference_pages.markdown import page, plain, table
from service.error_status import INVALID_REQUESTS, STATUSES
from service.errors import InlayError

INTRODUCTION = """\
An error over HTTP is `application/problem+json` (RFC 9457) with a stable `code`; gRPC has it in the trailing
metadata `inlay-code`. The message says what came, what is allowed and what to do; its wording may change, the code
does not. The field `index` is the number of the input to blame, where there is one.

The routes of OpenAI, Cohere, text-embeddings-inference and the Open Inference Protocol answer in the form of their
own protocol, with the same code where that form has a place for it. A failed request never fails another caller's."""

ADVICE = {
    "error": "A fault of Inlay. Look for the `x-request-id` of the answer in the log, and report what stands there.",
    "bad_request": "Do what the message says; the same request fails again.",
    "bad_parameters": "Send the parameters that the message names; `GET /positions` lists those of each scheme.",
    "unknown_field": "Correct the name; the message names the nearest one.",
    "missing_field": "Send the field that the message names.",
    "model_required": "Name a model of `GET /models`, or have the operator set `INLAY_DEFAULT_MODEL`.",
    "conflicting_fields": "Send only one of the fields that the message names.",
    "wrong_type": "Send the type that the message names.",
    "wrong_shape": "Send the size that the message names; `GET /models/{name}` has the widths of a model.",
    "out_of_range": "Send a number within the range that the message names.",
    "unknown_value": "Send one of the values that the message lists.",
    "empty": "Send at least one input.",
    "malformed": "Look at the content type and at the end of the body: it is not what its type says, or was cut.",
    "invalid_json": "Correct the body at the character that the message names.",
    "too_large": "Ask for less in one request; the message names the limit and its setting.",
    "too_many_inputs": "Split the request; the limit is `INLAY_MAX_INPUTS`.",
    "too_many_tokens": "Split the request; the limit is `INLAY_MAX_REQUEST_TOKENS`.",
    "too_many_characters": "Split the request; the limit is `INLAY_MAX_REQUEST_CHARACTERS`.",
    "body_too_large": "Split the request; the limit is `INLAY_MAX_BODY_BYTES`.",
    "head_too_large": "Send shorter headers or a shorter query; long parameters can go into the body of a POST.",
    "too_slow": "Send the request faster; the limit is `INLAY_CLIENT_SECONDS`.",
    "bad_input": "Correct the input that `index` names; the others are not to blame.",
    "empty_input": "Leave the input out, or send a text that has a token.",
    "too_long": 'Shorten the input or send `"truncate": true`.',
    "wrong_model_kind": "Name a model that does what the route is for; `GET /models/{name}` lists what each gives.",
    "unsupported": "Use another route, or have the operator enable what the message names.",
    "unauthorized": "Send `authorization: Bearer KEY` with one of the server's keys.",
    "not_found": "Correct the path; `GET /docs` lists all.",
    "unknown_model": "Name a model of `GET /models`.",
    "method_not_allowed": "Use a verb of the header `allow`.",
    "forbidden": "Name the page's origin in `INLAY_CORS_ORIGINS`, or the host in `INLAY_ALLOWED_HOSTS`.",
    "not_acceptable": "Accept a format that the message lists.",
    "unsupported_media": "Send a content type that the message lists.",
    "overloaded": "Try again after `retry-after`; see [Overload](../operate/overload.md).",
    "key_limited": "Try again after `retry-after`, or send fewer requests at a time with this key.",
    "deadline_exceeded": "Allow more time, send less, or try again when the service is less busy.",
    "unavailable": "Try again after `retry-after`: the service is starting or stopping.",
    "engine_failure": "Look at the message: the numbers of this request made the engine fail. Others are not affected.",
}
"""What a caller can do, by code."""


def errors_page() -> str:
    """Return the page: one row for each code, the statuses of client faults before those of the service."""
    meanings = _meanings(InlayError)
    rows = [
        [
            f'<span id="{code}"></span>`{code}`',
            f"{status.http}" + (", 400 over OpenAI and Cohere" if code in INVALID_REQUESTS else ""),
            f"`{status.grpc}`",
            plain(meanings[code]) if code in meanings else f"{status.title}.",
            ADVICE[code],
        ]
        for code, status in sorted(STATUSES.items(), key=lambda item: item[1].http)
    ]
    header = ["code", "HTTP", "gRPC", "meaning", "what to do"]
    return page("Errors", INTRODUCTION, table(header, rows), RETRIES, wide=True)


RETRIES = """\
The answer to `overloaded`, `key_limited` and `unavailable` has `retry-after` in whole seconds and `retry-after-ms`.
The same request fails again with any other code, except for `deadline_exceeded` and `too_slow`."""


def _meanings(error: type[InlayError]) -> dict[str, str]:
    """Return the first clause of the docstring of each code's class."""
    meanings: dict[str, str] = {}
    for kind in error.__subclasses__():
        first, _, _ = (kind.__doc__ or "").partition("\n")
        clause, further, _ = first.partition("; `")
        meanings |= _meanings(kind) | {kind.code: f"{clause}." if further else clause}
    return meanings
