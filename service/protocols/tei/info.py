"""What text-embeddings-inference's /info says of a server, said of this one. Reads settings and the card."""

from dataclasses import dataclass
from typing import Any

from models.artifacts.card import Card
from service.context import ServiceContext
from service.embedding.model import Model
from service.embedding.output_plan import HIDDEN
from service.process import cpu_count as cores
from service.registry.loading import BATCH_VALUES, ENCODER_TOKENS

SPELLINGS = {"lasttoken": "last_token"}  # our pooling → theirs; they know cls, mean, last_token and splade


@dataclass(frozen=True, slots=True)
class Info:
    """Every member of /info.

    model_id                 the Hub id it was made from; else, since a folder says little, its name here
    model_sha                theirs is a revision of the Hub, which a card does not hold; null
    max_concurrent_requests  of this process
    max_input_length         in tokens, special ones included; what is longer is cut or refused
    max_batch_tokens         tokens that run together; a longer single input runs alone
    max_client_batch_size    inputs of one request
    tokenization_workers     threads that tokenise one request's texts
    """

    model_id: str
    model_sha: str | None
    model_dtype: str
    served_model_name: str
    model_type: dict[str, Any]
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    sha: str | None = None
    docker_label: str | None = None


def info(context: ServiceContext, model: Model) -> Info:
    """What is true of this server and this model."""
    card, settings = model.card, context.settings
    pooling = card.pooling.mode if card.pooling else "none"
    return Info(
        model_id=card.source if "/" in card.source else card.name,
        model_sha=None,
        model_dtype=card.dtype,
        served_model_name=card.name,
        model_type={"embedding": {"pooling": SPELLINGS.get(pooling, pooling)}},
        max_concurrent_requests=settings.max_concurrent_requests,
        max_input_length=_longest(card, settings.max_request_tokens),
        max_batch_tokens=_together(model, settings.max_batch_tokens),
        max_batch_requests=None,
        max_client_batch_size=settings.max_inputs,
        auto_truncate=settings.auto_truncate,
        tokenization_workers=cores.available(),
        version=context.version,
    )


def _longest(card: Card, request: int) -> int:
    limits = (request, card.max_tokens, card.position.longest())
    return min([limit for limit in limits if limit is not None])


def _together(model: Model, chosen: int) -> int:
    if HIDDEN not in model.card.outputs:
        return max(1, BATCH_VALUES // model.card.hidden_size)
    return chosen or ENCODER_TOKENS["cuda" if model.engine.device == "cuda" else "cpu"]
