"""vLLM's POST /score, /v1/score and /classify; also infinity's /classify, whose body has `raw_scores`.

Source: vLLM 0.33, entrypoints/pooling/scoring and classify; infinity-client 0.0.78.
"""

from collections.abc import Callable
from time import time
from typing import Annotated, Any

import numpy as np
from pydantic import Field, WithJsonSchema

from service.context import ServiceContext
from service.embedding.ranking import Labelled, Reading
from service.embedding.requests import EmbedResult, Input, Text
from service.errors import MissingField, WrongShape
from service.http.response import Response, json_response
from service.http.routes import Handler, Request
from service.http.validation_errors import body_of, parse_json, validated
from service.http.worker_threads import inline_or_in_thread
from service.protocols.inlay import needs, vllm_fields
from service.protocols.inlay.parsing import read_json
from service.protocols.inlay.vllm_fields import PairsBody, RequestId, ScoredBody
from service.protocols.openai.schemas import INPUT

SIDES = (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items"))
Texts = Annotated[
    str | Annotated[list[str], Field(fail_fast=True)] | None, Field(description="a text or a list of texts")
]


class ScoreBody(PairsBody):
    """Two lists of texts to score pair by pair, or one text and a list, under one of four pairs of names."""

    text_1: Texts = None
    text_2: Texts = None
    data_1: Texts = None
    data_2: Texts = None
    queries: Texts = None
    documents: Texts = None
    items: Texts = None
    request_id: RequestId = None


class ClassifyBody(ScoredBody):
    """What to classify."""

    input: Annotated[Any, WithJsonSchema(INPUT)]
    raw_scores: bool | None = Field(
        None, description="infinity's: true leaves scores as the model gives them; sent, its answer comes"
    )
    add_special_tokens: bool = Field(True, description="false: a text's bare pieces")
    request_id: RequestId = None


def score_handler(context: ServiceContext) -> Handler:
    """Return the handler of /score."""
    max_inputs = context.settings.max_inputs

    async def handler(request: Request) -> Response:
        body, pairs = await read_json(request, read_pairs, max_inputs)
        if body.priority > 0:
            request.context.make_bulk()
        model = context.registry.get(body.named, needs.ranks)
        ranks = await context.scorer.score(model, pairs, request.context, body.reading())
        entries = [{"index": n, "object": "score", "score": score} for n, score in enumerate(ranks.scores.tolist())]
        return _response(request, body, ranks.result, entries, "list", "score")

    return handler


def classify_handler(context: ServiceContext, decode: Callable[[Any], list[Input]]) -> Handler:
    """Return the handler of /classify; `decode` returns the inputs of other forms than texts."""

    async def handler(request: Request) -> Response:
        body, inputs = await read_json(request, read_classify, decode)
        if body.priority > 0:
            request.context.make_bulk()
        infinity, model = body.raw_scores is not None, context.registry.get(body.named, *needs.LABELLING)
        cut = vllm_fields.cut(body.truncate_prompt_tokens, body.truncation_side)
        options = cut._replace(special_tokens=body.add_special_tokens)
        reading = Reading(options, vllm_fields.activation(body.raw_scores, body.use_activation is False))
        labelled = await context.scorer.classify(model, inputs, request.context, reading)
        encode: Callable[[Labelled], list[Any]] = vllm_fields.best_labels if infinity else _labels
        entries = await inline_or_in_thread(labelled.scores.size, encode, labelled)
        return _response(request, body, labelled.result, entries, "classify" if infinity else "list", "classify")

    return handler


def read_classify(body: bytes, decode: Callable[[Any], list[Input]]) -> tuple[ClassifyBody, list[Input]]:
    """Return a body of /classify and its inputs; texts may be empty, unlike for embeddings."""
    data = parse_json(body)
    if type(data) is dict and "messages" in data and "input" not in data:
        raise MissingField("is missing", field=("input",), remedy="send texts or token ids: no chats are read here")
    fields = validated(ClassifyBody, data)
    texts = [fields.input] if type(fields.input) is str else fields.input
    if type(texts) is list and all([type(text) is str for text in texts]):
        return fields, [Text(text) for text in texts]
    return fields, decode(fields.input)


def read_pairs(body: bytes, max_inputs: int) -> tuple[ScoreBody, list[tuple[str, str]]]:
    """Return a body of /score and its pairs; a single text is paired with each of the others."""
    fields = body_of(body, ScoreBody)
    sent = [pair for pair in SIDES if all(getattr(fields, name) is not None for name in pair)]
    if len(sent) != 1:
        names = " or ".join(" and ".join(pair) for pair in SIDES)
        raise MissingField(f"{'more than one' if sent else 'no'} pair of fields came", remedy=f"send {names}")
    one, other = (vllm_fields.listed(name, getattr(fields, name), max_inputs) for name in sent[0])
    if len(one) != len(other) and len(one) != 1:
        raise WrongShape(
            f"holds {len(one)} texts and {sent[0][1]} {len(other)}",
            field=(sent[0][0],),
            allowed="one text is scored with each of the others, or each with its own",
        )
    pairs = list(zip(one, other, strict=True)) if len(one) == len(other) else [(one[0], text) for text in other]
    return fields, pairs


def _labels(labelled: Labelled) -> list[dict[str, Any]]:
    best = np.argmax(labelled.scores, axis=1).tolist()
    return [
        {"index": n, "label": labelled.labels[best[n]], "probs": row, "num_classes": len(row)}
        for n, row in enumerate(labelled.scores.tolist())
    ]


def _response(
    request: Request,
    body: ScoreBody | ClassifyBody,
    result: EmbedResult,
    entries: list[Any],
    kind: str,
    prefix: str,
) -> Response:
    document = {
        "id": f"{prefix}-{body.request_id or request.context.request_id.decode()}",
        "object": kind,
        "created": int(time()),
        "model": result.model,
        "data": entries,
        "usage": vllm_fields.usage(result.tokens),
    }
    return json_response(document)
