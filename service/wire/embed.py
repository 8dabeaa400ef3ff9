"""POST /embed: the JSON body, the road, the bytes of the accepted format. Plain ASGI; FastAPI only describes it."""

from fastapi import APIRouter
from starlette.routing import Route

from service.errors import InlayError, UnsupportedMedia
from service.wire import problems
from service.wire.asgi import check_json
from service.wire.body import read
from service.wire.endpoint import Answer, Call, Endpoint
from service.wire.formats import FORMATS, negotiate
from service.wire.parts import Parts

PATH = "/embed"


def routes(parts: Parts) -> APIRouter:
    """POST /embed."""
    return APIRouter(routes=[Route(PATH, endpoint(parts), methods=["POST"], include_in_schema=False)])


def endpoint(parts: Parts) -> Endpoint:
    """The ASGI application behind PATH."""
    encoder = parts.encoder

    async def answer(call: Call) -> Answer:
        fields = call.fields
        encode = FORMATS[negotiate(fields.get(b"accept"))]
        check_json(fields.get(b"content-type"))
        if fields.get(b"content-encoding", b"identity") != b"identity":
            raise UnsupportedMedia("the body is compressed; send it without content-encoding")
        request, base64 = read(await call.body())
        return Answer(*encode(await encoder.embed(request), base64))

    return Endpoint("embed", answer, refusal, parts)


def refusal(error: InlayError) -> Answer:
    """An error as a problem document."""
    status, headers, document = problems.answer(error)
    return Answer(tuple(headers), [document], status)
