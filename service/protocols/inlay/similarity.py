"""POST /models/{name}/similarity: a dual encoder's logits and probabilities for vectors of texts and images."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.positions.table import Output, Table
from models.vision.similarity import Similarity, compared
from service.context import ServiceContext
from service.embedding.position_tables import TableCall
from service.errors import NotFound, TooLarge, WrongShape
from service.http.parameter_types import Tensor, TypedArrayOptions, described
from service.http.response import Response
from service.http.routes import Request, Route
from service.protocols.inlay import needs
from service.protocols.inlay.openapi_parts import EXAMPLES
from service.protocols.inlay.parsing import from_body
from service.protocols.inlay.positions.responses import table_form, table_response, tensor_route
from service.protocols.inlay.tags import EMBED

MAX_PAIRS = 1 << 24


class SimilarityParameters(TypedArrayOptions):
    """Vectors of texts and images."""

    text_embeds: Tensor = described("vectors of texts [texts, d], of any length")
    image_embeds: Tensor = described("vectors of images [images, d], of any length")


def routes(context: ServiceContext) -> list[Route]:
    """Return POST /models/{name}/similarity."""

    async def handler(request: Request) -> Response:
        card = context.registry.get(request.parameters["name"]).card
        if card.similarity is None:
            raise NotFound(f"{card.name} is a {card.family} without a logit_scale", allowed="it compares no images")
        parameters = await from_body(SimilarityParameters, request)
        values = {"how": card.similarity, "texts": parameters.text_embeds, "images": parameters.image_embeds}
        form = table_form(request, parameters, parameters.dtype)
        return await table_response(request, context.tables, TableCall(_table, values), form)

    path, summary = "/models/{name}/similarity", "Compare texts with images"
    parameters, name = SimilarityParameters, "model_similarity"
    return [
        tensor_route(
            path, handler, name, summary, parameters, tag=EMBED, examples=EXAMPLES["similarity"], need=needs.TWO_TOWERS
        )
    ]


def _table(how: Similarity, texts: NDArray[Any], images: NDArray[Any]) -> Table:
    for name, vectors in (("text_embeds", texts), ("image_embeds", images)):
        if vectors.ndim != 2 or not vectors.size:
            raise WrongShape(f"is {list(vectors.shape)}", field=(name,), allowed="send a vector for each, [count, d]")
    if texts.shape[1] != images.shape[1]:
        raise WrongShape(
            f"text_embeds are {texts.shape[1]} wide and image_embeds {images.shape[1]}", remedy="send one width"
        )
    if len(texts) * len(images) > MAX_PAIRS:
        raise TooLarge(f"{len(texts)} x {len(images)} pairs", allowed=f"at most {MAX_PAIRS} at a time")
    arrays = compared(how, texts, images)
    facts = {"kind": how.kind, "scale": how.scale, "bias": how.bias, "formula": "scale * text . image + bias"}
    return Table("similarity", "exact", {name: _output(array) for name, array in arrays.items()}, facts)


def _output(array: NDArray[np.float64]) -> Output:
    rows = np.ascontiguousarray(array)
    return Output(rows.shape, lambda start, stop: rows[start:stop])
