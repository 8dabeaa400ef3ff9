"""vLLM's POST /score, /v1/score and /classify; infinity's /classify, whose body has `raw_scores`.

Unlike those of /v1/embeddings, fields that are not known are ignored, as both servers do, and named in a header.

Source: vLLM 0.33, entrypoints/pooling/scoring and classify; infinity-client 0.0.78.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from time import time
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from service.context import ServiceContext
from service.embedding import truncation
from service.embedding.classifying import Labelled, classify
from service.embedding.requests import Direction, EmbedResult, Input, Text
from service.embedding.scoring import Reading, Scorer
from service.errors import EmptyRequest, MissingField, TooManyInputs, WrongShape
from service.http import ignored_fields
from service.http.formats import JSON, check_json
from service.http.response import Response, json_response
from service.http.routes import Answer, Handler, Request, RequestBody, Route
from service.http.validation_errors import parse_json, validated
from service.http.worker_threads import inline_or_in_thread
from service.protocols.inlay import needs
from service.protocols.inlay.tags import RERANK
from service.protocols.openai.schemas import INPUT, UNNAMED, OpenAIUsage, decode_inputs

SIDES = (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items"))
ROUTE_NAMES = {"/score": "score", "/v1/score": "openai_score"}
Limit = Annotated[int | None, Field(ge=0, description="an integer from 0, which is no limit")]
Texts = Annotated[
    str | Annotated[list[str], Field(fail_fast=True)] | None, Field(description="a text or a list of texts")
]
SCORE_EXAMPLES: dict[str, dict[str, Any]] = {
    "one_to_many": {"text_1": "What is a panda?", "text_2": ["A bear that eats bamboo.", "A city."]},
    "pairs": {"queries": ["panda", "Paris"], "documents": ["A bear.", "A city."]},
}
CLASSIFY_EXAMPLES: dict[str, dict[str, Any]] = {
    "texts": {"input": ["I like it", "I do not"]},
    "infinity": {"input": ["I like it"], "raw_scores": False},
}


class _ScoredBody(BaseModel):
    """The fields that bodies of both routes have. Other fields are ignored."""

    model_config = ConfigDict(strict=True)

    model: Annotated[str | None, Field(description="a model's name; left out: the server's default")] = None
    use_activation: Annotated[bool | None, Field(description="false leaves scores as the model gives them")] = None
    truncate_prompt_tokens: Annotated[
        int | None, Field(ge=-1, description="-1 cuts to what the model reads, an integer from 1 to so many tokens")
    ] = None
    truncation_side: Annotated[
        str | None, Field(pattern="^(left|right)$", description="right keeps the beginning, left the end")
    ] = None
    request_id: Annotated[str | None, Field(description="a text: becomes part of the response's id")] = None

    @property
    def truncate(self) -> bool | None:
        """Whether to cut what is too long."""
        return True if self.truncate_prompt_tokens else None

    @property
    def max_tokens(self) -> int | None:
        """What to cut to."""
        return self.truncate_prompt_tokens if (self.truncate_prompt_tokens or 0) > 0 else None

    @property
    def direction(self) -> Direction:
        """The side to keep."""
        return "left" if self.truncation_side == "left" else "right"

    @property
    def model_name(self) -> str | None:
        """The model; None: the default."""
        return None if self.model == UNNAMED else self.model


class ScoreBody(_ScoredBody):
    """One text or as many as the others, and others to score it with, under one of four pairs of names."""

    text_1: Texts = None
    text_2: Texts = None
    data_1: Texts = None
    data_2: Texts = None
    queries: Texts = None
    documents: Texts = None
    items: Texts = None
    instruction: Annotated[str | None, Field(description="a text: what a causal reranker is to judge by")] = None
    max_tokens_per_query: Limit = None
    max_tokens_per_doc: Limit = None


class ClassifyBody(_ScoredBody):
    """What to classify."""

    input: Annotated[Any, WithJsonSchema(INPUT)]
    raw_scores: Annotated[
        bool | None, Field(description="infinity's: true leaves scores as the model gives them; sent, its answer comes")
    ] = None
    add_special_tokens: Annotated[bool, Field(description="false: a text's bare pieces")] = True


class ScoreEntry(BaseModel):
    """The score of one pair."""

    index: int
    object: str = "score"
    score: float


class ClassifyEntry(BaseModel):
    """The scores of one input's labels."""

    index: int
    label: Annotated[str, Field(description="the best one")]
    probs: Annotated[list[float], Field(description="of all labels, in the order of their numbers")]
    num_classes: int


class ClassifyLabel(BaseModel):
    """One label of infinity's answer."""

    score: float
    label: str


class _Scored(BaseModel):
    id: str
    object: str
    created: int
    model: str
    usage: OpenAIUsage


class ScoreList(_Scored):
    """The scores, in the order of the pairs."""

    data: list[ScoreEntry]


class ClassifyList(_Scored):
    """The labels, in the order of the inputs; infinity's: lists of all labels, the best first."""

    data: list[ClassifyEntry] | list[list[ClassifyLabel]]


def routes(context: ServiceContext) -> list[Route]:
    """Return vLLM's routes for scores and labels."""
    score, label = _score_handler(context), _classify_handler(context)
    about = "A score is what the model's own activation makes of its logit; of a model of sentence vectors the cosine."
    rows = [
        _route(path, score, name, "Score pairs of texts as vLLM does", about, ScoreBody, SCORE_EXAMPLES, ScoreList)
        for path, name in ROUTE_NAMES.items()
    ]
    about = "Probabilities of all labels. A body with `raw_scores` has infinity's answer, lists of scores and labels."
    summary = "Classify texts as vLLM or infinity does"
    return [
        *rows,
        replace(
            _route("/classify", label, "classify", summary, about, ClassifyBody, CLASSIFY_EXAMPLES, ClassifyList),
            need=needs.CLASSIFIER_OF_OPENAI,
        ),
    ]


def _route(
    path: str,
    handler: Handler,
    name: str,
    summary: str,
    about: str,
    body: type[BaseModel],
    examples: Mapping[str, Any],
    answer: type[BaseModel],
) -> Route:
    headers = truncation.HEADERS | ignored_fields.HEADERS
    return Route(
        verb="POST",
        path=path,
        handler=handler,
        name=name,
        summary=summary,
        tag=RERANK,
        description=about,
        body=RequestBody(model=body, examples=examples),
        answers={
            200: Answer(description="The scores, in the order of the inputs.", content={JSON: answer}, headers=headers)
        },
    )


def _score_handler(context: ServiceContext) -> Handler:
    scorer, max_inputs = Scorer(context.embedder, context.budget, context.settings), context.settings.max_inputs

    async def handler(request: Request) -> Response:
        check_json(request.headers.get(b"content-type"))
        data, body, pairs = await inline_or_in_thread(len(request.body), read_pairs, request.body, max_inputs)
        model = context.registry.get(body.model_name)
        reading = Reading(
            body.truncate,
            body.direction,
            "identity" if body.use_activation is False else None,
            body.max_tokens,
            body.max_tokens_per_query,
            body.max_tokens_per_doc,
            instruction=body.instruction,
            cosine=True,
        )
        ranks = await scorer.score(model, pairs, request.context, reading)
        entries = [{"index": n, "object": "score", "score": score} for n, score in enumerate(ranks.scores.tolist())]
        return _response(request, data, body, ranks.result, entries, "list", "score")

    return handler


def _classify_handler(context: ServiceContext) -> Handler:
    async def handler(request: Request) -> Response:
        check_json(request.headers.get(b"content-type"))
        data = await inline_or_in_thread(len(request.body), parse_json, request.body)
        if type(data) is dict and "messages" in data and "input" not in data:
            raise MissingField("is missing", field=("input",), remedy="send texts or token ids: no chats are read here")
        body = validated(ClassifyBody, data)
        inputs = await inline_or_in_thread(len(request.body), read_inputs, body.input)
        labelled = await classify(
            context.embedder,
            context.registry.get(body.model_name),
            inputs,
            request.context,
            body.truncate,
            body.direction,
            "identity" if body.raw_scores or body.use_activation is False else None,
            body.max_tokens,
            body.add_special_tokens,
        )
        infinity = body.raw_scores is not None
        encode: Callable[[Labelled], list[Any]] = _infinity_labels if infinity else _labels
        entries = await inline_or_in_thread(labelled.scores.size, encode, labelled)
        return _response(request, data, body, labelled.result, entries, "classify" if infinity else "list", "classify")

    return handler


def read_pairs(body: bytes, max_inputs: int) -> tuple[dict[str, Any], ScoreBody, list[tuple[str, str]]]:
    """Return a body of /score and its pairs; one text is paired with each of the others."""
    data = parse_json(body)
    fields = validated(ScoreBody, data)
    sent = [pair for pair in SIDES if all(getattr(fields, name) is not None for name in pair)]
    if len(sent) != 1:
        names = " or ".join(" and ".join(pair) for pair in SIDES)
        raise MissingField(f"{'more than one' if sent else 'no'} pair of fields came", remedy=f"send {names}")
    one, other = (_listed(name, getattr(fields, name), max_inputs) for name in sent[0])
    if len(one) != len(other) and len(one) != 1:
        raise WrongShape(
            f"holds {len(one)} texts and {sent[0][1]} {len(other)}",
            field=(sent[0][0],),
            allowed="one text is scored with each of the others, or each with its own",
        )
    pairs = list(zip(one, other, strict=True)) if len(one) == len(other) else [(one[0], text) for text in other]
    return data, fields, pairs


def _listed(name: str, texts: str | list[str], max_inputs: int) -> list[str]:
    listed = [texts] if isinstance(texts, str) else texts
    if not listed:
        raise EmptyRequest("is empty", field=(name,), remedy="send one text at least")
    if len(listed) > max_inputs:
        allowed = f"this server takes {max_inputs} a request"
        raise TooManyInputs(f"holds {len(listed)} texts", field=(name,), allowed=allowed, remedy="send fewer")
    return listed


def read_inputs(value: Any) -> list[Input]:
    """Return what to classify; unlike embeddings, texts may be empty."""
    texts = [value] if type(value) is str else value
    if type(texts) is list and all([type(text) is str for text in texts]):
        return [Text(text) for text in texts]
    return decode_inputs(value)


def _labels(labelled: Labelled) -> list[dict[str, Any]]:
    best = np.argmax(labelled.scores, axis=1).tolist()
    return [
        {"index": n, "label": labelled.labels[best[n]], "probs": row, "num_classes": len(row)}
        for n, row in enumerate(labelled.scores.tolist())
    ]


def _infinity_labels(labelled: Labelled) -> list[list[dict[str, Any]]]:
    return [
        [{"score": score, "label": label} for label, score in labelled.best_first(index)]
        for index in range(len(labelled.scores))
    ]


def _response(
    request: Request,
    data: dict[str, Any],
    body: _ScoredBody,
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
        "usage": {"prompt_tokens": result.tokens, "total_tokens": result.tokens},
    }
    unused = [name for name in data if name not in type(body).model_fields]
    return json_response(document, headers=ignored_fields.headers(unused))
