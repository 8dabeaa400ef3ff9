"""POST /models/{name}/similarity: a dual encoder's logits and probabilities for vectors of texts and images."""

from typing import Any

from numpy.typing import NDArray

from models.positions.table import Output, Table
from models.vision.similarity import Similarity, compared
from service.context import ServiceContext
from service.embedding.model import Model
from service.embedding.position_tables import TableCall
from service.errors import NotFound, TooLarge, WrongShape
from service.http.parameter_types import Tensor, TypedArrayOptions, described
from service.request_context import RequestContext

MAX_PAIRS = 1 << 24


class SimilarityParameters(TypedArrayOptions):
    """Vectors of texts and images."""

    text_embeds: Tensor = described("vectors of texts [texts, d], of any length")
    image_embeds: Tensor = described("vectors of images [images, d], of any length")


def comparing(model: Model) -> Similarity:
    """Return how a model compares texts with images; raise NotFound if it does not."""
    if model.card.similarity is None:
        card = model.card
        raise NotFound(f"{card.name} is a {card.family} without a logit_scale", allowed="it compares no images")
    return model.card.similarity


async def similarity_call(
    context: ServiceContext, how: Similarity, parameters: SimilarityParameters, call: RequestContext
) -> TableCall:
    """Return the call that makes the table of logits and probabilities."""
    return TableCall(_table, {"how": how, "texts": parameters.text_embeds, "images": parameters.image_embeds})


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
    return Table("similarity", "exact", {name: Output.of(array) for name, array in arrays.items()}, facts)
