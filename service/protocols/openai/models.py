"""GET /v1/models and /v1/models/{id}: the loaded models as OpenAI lists them, vLLM's max_model_len beside."""

from typing import Any

import orjson

from service.context import ServiceContext
from service.embedding.model import Model
from service.http.endpoint import Answer, Call, Endpoint
from service.http.formats import JSON, sized
from service.protocols.inlay.models import created
from service.protocols.openai.errors import refusal

MODELS = "/v1/models"
MODEL = "/v1/models/{name:path}"
OWNER = "inlay"


def endpoints(context: ServiceContext) -> dict[str, Endpoint]:
    """The ASGI application of each path."""
    catalog, settings = context.registry, context.settings

    async def every(call: Call) -> Answer:
        data = [entry(model, created(settings, model)) for model in catalog.models.values()]
        return _json({"object": "list", "data": data})

    async def one(call: Call) -> Answer:
        model = catalog.get(call.path["name"])
        return _json(entry(model, created(settings, model)))

    return {MODELS: Endpoint("models", every, refusal, context), MODEL: Endpoint("models", one, refusal, context)}


def entry(model: Model, created: int) -> dict[str, Any]:
    """A model as OpenAI has it; `created` in seconds since 1970."""
    card = model.card
    found = {"id": card.name, "object": "model", "created": created, "owned_by": OWNER}
    return found | {"max_model_len": card.max_tokens, "root": card.source, "parent": None}


def _json(document: Any) -> Answer:
    return Answer(*sized(JSON, [orjson.dumps(document)]))
