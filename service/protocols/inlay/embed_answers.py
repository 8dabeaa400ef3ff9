"""The descriptions of the responses of /embed for the OpenAPI document."""

from service.embedding import truncation
from service.http.formats import JSON, NPY, OCTETS, TENSOR_HEADERS
from service.http.problem_details import MEDIA_TYPE, Problem
from service.http.routes import Answer, binary
from service.protocols.inlay.openapi_parts import DATA

BINARY = {media_type: binary(about) for media_type, about in DATA.descriptions["vectors by media type"].items()}
ERRORS = {int(status): about for status, about in DATA.descriptions["errors of /embed by status"].items()}
VECTORS_ANSWER = Answer(
    description="The vectors, in the order of the inputs.",
    headers=dict.fromkeys(TENSOR_HEADERS, f"with {OCTETS} and {NPY}")
    | DATA.descriptions["timing headers"]
    | truncation.HEADERS,
    content={JSON: DATA.parts["embed"], **BINARY},
    examples=DATA.examples["embed answer"],
)
VECTOR_ANSWERS = {
    200: VECTORS_ANSWER,
    **{status: Answer(description=about, content={MEDIA_TYPE: Problem}) for status, about in ERRORS.items()},
}
UNAUTHORIZED = Answer(
    description="No key, or an unknown one.",
    content={MEDIA_TYPE: Problem},
    headers={"www-authenticate": "Bearer"},
)
EMBED_ANSWERS = VECTOR_ANSWERS | {401: UNAUTHORIZED}
