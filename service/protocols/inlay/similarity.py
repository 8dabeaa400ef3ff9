"""POST /models/{name}/similarity: vectors of texts and images → a dual encoder's logits and probabilities."""

from typing import Any

import numpy as np
from fastapi import APIRouter
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from models.positions.table import Output, Table
from models.vision.similarity import Similarity, compared
from service.context import ServiceContext
from service.errors import BadRequest, NotFound
from service.http.endpoint import StarletteEndpoint as Endpoint
from service.protocols.inlay.positions import answers, fields
from service.protocols.inlay.positions import parsing as asked
from service.protocols.inlay.positions.parameters import ANSWER, exactly
from service.protocols.inlay.positions.table_call import Call

PATH = "/models/{name}/similarity"
MOST_PAIRS = 1 << 24
VECTORS: dict[str, Any] = {
    name: fields.read(fields.floats, fields.TENSOR, f"vectors of {what} [{what}, d], of any length")
    for name, what in {"text_embeds": "texts", "image_embeds": "images"}.items()
}
ANSWERS: dict[str, Any] = {name: parameter for name, parameter in ANSWER.items() if name != "arithmetic"}
ASKED = exactly("Similarity", "Vectors of texts and images.", VECTORS | ANSWERS)


def routes(context: ServiceContext) -> APIRouter:
    """POST /models/{name}/similarity."""

    async def answer(request: Request) -> Response:
        card = context.registry.get(request.path_params["name"]).card
        if card.similarity is None:
            raise NotFound(f"{card.name} is a {card.family} without a logit_scale: it compares no texts with images")
        wanted = await asked.of_body(ASKED, request)
        call = Call(_table, {"how": card.similarity, "texts": wanted.text_embeds, "images": wanted.image_embeds})
        return await answers.answer(request, context.tables, call, answers.wanted(wanted, request), None)

    route = Route(PATH, Endpoint(PATH, answer, context), methods=["POST"], include_in_schema=False)
    return APIRouter(routes=[route])


def _table(how: Similarity, texts: NDArray[Any], images: NDArray[Any]) -> Table:
    for name, vectors in (("text_embeds", texts), ("image_embeds", images)):
        if vectors.ndim != 2 or not vectors.size:
            raise BadRequest(f"{name} is {list(vectors.shape)}; send a vector for each, [count, d]")
    if texts.shape[1] != images.shape[1]:
        raise BadRequest(f"text_embeds are {texts.shape[1]} wide and image_embeds {images.shape[1]}: send one width")
    if len(texts) * len(images) > MOST_PAIRS:
        raise BadRequest(f"{len(texts)} x {len(images)} pairs; at most {MOST_PAIRS} at a time")
    found = compared(how, texts, images)
    told = {"kind": how.kind, "scale": how.scale, "bias": how.bias, "formula": "scale * text . image + bias"}
    return Table("similarity", "exact", {name: _output(array) for name, array in found.items()}, told)


def _output(array: NDArray[np.float64]) -> Output:
    rows = np.ascontiguousarray(array)
    return Output(rows.shape, lambda start, stop: rows[start:stop])
