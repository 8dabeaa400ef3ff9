"""POST /embed: the JSON body, the road, the bytes of the accepted format. Plain ASGI; FastAPI only describes it."""

from time import perf_counter

from fastapi import APIRouter
from starlette.routing import Route

from service.context import Parts
from service.embedding.requests import EmbedResult
from service.errors import InlayError
from service.http import json_arrays as numbers
from service.http import problem_details as problems
from service.http.asgi import check_json
from service.http.endpoint import Answer, Call, Endpoint
from service.http.formats import (
    FORMATS,
    Body,
    Encode,
    Headers,
    negotiate,
)
from service.protocols.inlay import pooled_bytes
from service.protocols.inlay import prompt_embeds as precomputed
from service.protocols.inlay.embed_body import Wanted, read
from service.protocols.inlay.pooled_bytes import BYTES, BYTES_ONLY
from service.protocols.inlay.prompt_embeds import INPUT_EMBEDS, PROMPT_EMBEDS
from service.protocols.tei import timing_headers as spent

PATH = "/embed"


def routes(parts: Parts) -> APIRouter:
    """POST /embed."""
    return APIRouter(routes=[Route(PATH, endpoint(parts), methods=["POST"], include_in_schema=False)])


def endpoint(parts: Parts) -> Endpoint:
    """The ASGI application behind PATH."""

    async def answer(call: Call) -> Answer:
        started = perf_counter()
        encode = FORMATS[negotiate(call.fields.get(b"accept"))]
        check_json(call.fields.get(b"content-type"))
        return await answered(parts, await call.body(), encode, started)

    return Endpoint("embed", answer, refusal, parts)


async def answered(parts: Parts, body: bytes, encode: Encode, started: float) -> Answer:
    """The answer to a body of PATH in one of FORMATS; `started` is when it arrived."""
    request, wanted = read(body, parts.settings.max_inputs)
    if wanted.encoding in (PROMPT_EMBEDS, INPUT_EMBEDS):
        card = parts.catalog.get(request.model).card
        request = precomputed.asked(card, request, wanted.encoding, wanted.dtype_sent)
    result = await parts.encoder.embed(request)
    headers, encoded = await numbers.written(numbers.count(result), _encoded, result, wanted, encode, request.dtype)
    return Answer(headers + spent.headers(result, parts.catalog, started), encoded)


def _encoded(result: EmbedResult, wanted: Wanted, encode: Encode, dtype: str) -> tuple[Headers, Body]:
    """In the encoding_format that was sent, else as `encode` has it."""
    if wanted.encoding in (PROMPT_EMBEDS, INPUT_EMBEDS):
        return precomputed.answer(result, wanted.encoding, wanted.bare)
    if wanted.encoding in (BYTES, BYTES_ONLY):
        return pooled_bytes.answer(result, wanted.encoding, dtype)
    return encode(result, wanted.encoding == "base64")


def refusal(error: InlayError) -> Answer:
    """An error as a problem document."""
    status, headers, document = problems.answer(error)
    return Answer(tuple(headers), [document], status)
