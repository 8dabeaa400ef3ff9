"""POST /models/{name}/logits: hidden states → logits, or the likeliest tokens with their probabilities."""

from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from models.positions.table import MAX_WIDTH, Table
from service.context import ServiceContext
from service.embedding import logits
from service.errors import BadRequest
from service.http.endpoint import StarletteEndpoint as Endpoint
from service.http.formats import (
    JSON,
    NPY,
    OCTETS,
    SAFETENSORS,
)
from service.protocols.inlay.positions import answers, fields
from service.protocols.inlay.positions import parsing as asked
from service.protocols.inlay.positions.fields import (
    choice,
    number,
    read,
    whole,
)
from service.protocols.inlay.positions.parameters import ANSWER, Parameters, exactly
from service.protocols.inlay.positions.table_call import Call
from service.scheduling.serial_executor import Turns

PATH = "/models/{name}/logits"
EXAMPLES: dict[str, dict[str, Any]] = {
    "tokens": {"hidden": [[0.1, -0.2, 0.3]], "top_k": 5, "temperature": 0.7},
    "whole": {"hidden": [[0.1, -0.2, 0.3]], "dtype": "float16", "format": "npy"},
}
FIELDS: Parameters = {
    "hidden": read(fields.floats, fields.TENSOR, "what the last block and the final norm give [..., hidden_size]"),
    "top_k": whole(1, MAX_WIDTH, "how many tokens of each row, the likeliest first; left out: every token", None),
    "temperature": number("what logits are divided by, above 0", 1.0),
    **{name: field for name, field in ANSWER.items() if name not in ("arithmetic", "output")},
    "output": choice(
        ("ids", *logits.OUTPUTS), "with top_k: one alone; left out: all. Without: which, left out: logits", None
    ),
}
BODY = exactly("Logits", "Hidden states, and what is wanted of their logits.", FIELDS)


class Logits:
    """Answers for every model."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._turns = Turns("logits", "requests for the likeliest tokens")

    async def answer(self, request: Request) -> Response:
        """Logits, or the likeliest tokens, in the format the caller accepts."""
        model = self._context.registry.get(request.path_params["name"])
        logits.head_of(model)
        wanted = await asked.of_body(BODY, request)
        form = answers.wanted(wanted, request)
        rows = logits.asked(model, wanted.hidden, wanted.temperature)
        if wanted.top_k is None:
            output = _whole(wanted.output)
            call = _call(rows, logits.whole(rows, output), output=output)
        else:
            found = await self._turns.run(partial(logits.best, rows, wanted.top_k))
            call = _call(rows, found, top_k=wanted.top_k)
        return await answers.answer(request, self._context.tables, call, form, None)


def _whole(output: str | None) -> str:
    if output == "ids":
        raise BadRequest(f"output ids goes with top_k; without it there are {', '.join(logits.OUTPUTS)}")
    return output or logits.OUTPUTS[0]


def _call(rows: logits.Asked, table: Table, **form: Any) -> Call:
    """A table whose tag says what decides its values."""

    def logits_of(**_: Any) -> Table:
        return table

    return Call(logits_of, rows.identity | form)


def routes(context: ServiceContext) -> APIRouter:
    """The route."""
    endpoint = Endpoint(PATH, Logits(context).answer, context)
    return APIRouter(routes=[Route(PATH, endpoint, methods=["POST"], include_in_schema=False)])


def paths(problem: dict[str, Any]) -> dict[str, Any]:
    """The path in the OpenAPI document; `problem` describes a refusal."""
    binary = {"type": "string", "format": "binary"}
    sent = {JSON: {"schema": {"$ref": f"#/components/schemas/{BODY.__name__}"}, "examples": _examples()}}
    answered = {
        JSON: {"schema": ANSWERED},
        OCTETS: {"schema": binary | {"description": "One output, little-endian: with top_k send `output`."}},
        NPY: {"schema": binary | {"description": "One output as a NumPy file: with top_k send `output`."}},
        SAFETENSORS: {"schema": binary | {"description": "A tensor for each output; facts in __metadata__."}},
    }
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}, "description": "of a model"}
    operation = {
        "tags": ["models"],
        "summary": "Logits of hidden states, or the likeliest tokens",
        "operationId": "model_logits",
        "description": "JSON, or safetensors: a tensor `hidden`, other parameters in __metadata__.",
        "parameters": [name],
        "requestBody": {"required": True, "content": sent | {SAFETENSORS: {"schema": binary}}},
        "responses": {"200": {"description": "What was found.", "content": answered}, "default": problem},
    }
    return {PATH: {"post": operation}}


def _examples() -> dict[str, Any]:
    return {name: {"value": value} for name, value in EXAMPLES.items()}


_NUMBERS = {"type": "array", "items": {}}
ANSWERED = {
    "type": "object",
    "description": "Facts, then each array by its name: nested lists, or base64 of its bytes.",
    "required": ["scheme", "model", "temperature", "vocab_size", "shapes"],
    "properties": {
        "model": {"type": "string"},
        "temperature": {"type": "number"},
        "vocab_size": {"type": "integer"},
        "tied": {"type": "boolean", "description": "the matrix is the input layer's table"},
        "tokens": _NUMBERS | {"description": "with top_k and a tokenizer: entries of the vocabulary, null: none"},
        "texts": _NUMBERS | {"description": "what each of them decodes to"},
        "ids": _NUMBERS | {"description": "with top_k"},
        "logits": _NUMBERS | {"description": "divided by the temperature"},
        "probabilities": _NUMBERS | {"description": "softmax over the whole vocabulary, in float64"},
        "log_probabilities": _NUMBERS,
    },
    "additionalProperties": True,
}
