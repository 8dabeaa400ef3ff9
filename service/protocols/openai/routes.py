"""OpenAI's routes: /v1/embeddings, /embeddings, /v1/models, and vLLM's /pooling, /score and /classify."""

from functools import partial
from typing import Any

from service.context import ServiceContext
from service.embedding import truncation
from service.embedding.model import Model
from service.http import ignored_fields, openapi_data
from service.http.formats import JSON, OCTETS
from service.http.openapi_data import reference
from service.http.response import Response, json_response
from service.http.routes import Answer, Handler, Request, RequestBody, Route, RouteGroup, binary
from service.protocols.inlay import needs
from service.protocols.inlay.openapi_parts import EMBED, MODELS, RERANK
from service.protocols.openai import token_ids
from service.protocols.openai.embeddings import decode_inputs, handler_of
from service.protocols.openai.errors import OpenAIError, render_error
from service.protocols.openai.schemas import EmbeddingsBody, PoolingBody
from service.protocols.openai.scoring import ClassifyBody, ScoreBody, classify_handler, score_handler
from service.registry.store import created

PREFIXES = ("/v1", "/embeddings", "/pooling", "/score", "/classify")
DATA = openapi_data.read(__package__)
SCORE_HEADERS = truncation.HEADERS | ignored_fields.HEADERS
HEADERS = (
    {"metadata": "with encoding_format bytes: JSON that says where each vector lies, as vLLM has it"}
    | SCORE_HEADERS
    | token_ids.HEADERS
)
ABOUT_SCORES = (
    "A score is what the model's own activation makes of its logit; of a model of sentence vectors the cosine."
)
ABOUT_LABELS = (
    "Probabilities of all labels. A body with `raw_scores` has infinity's answer, lists of scores and labels."
)


def routes(context: ServiceContext) -> RouteGroup:
    """Return OpenAI's routes."""
    rows = [*_embedding_routes(context), *_score_routes(context), *_model_routes(context)]
    return RouteGroup(rows, render_error, PREFIXES, (OpenAIError, JSON), schemas=DATA.schemas)


def _embedding_routes(context: ServiceContext) -> list[Route]:
    def post(path: str, handler: Handler, name: str, summary: str, about: str, schema: str, body: Any) -> Route:
        content = {JSON: reference(schema), OCTETS: binary("vectors in the order of the inputs")}
        answer = Answer(description="The vectors, in the order of the inputs.", content=content, headers=HEADERS)
        body = RequestBody(model=body, examples=DATA.examples["embeddings"])
        others: dict[str, Any] = {"description": about, "body": body}
        return Route("POST", path, handler, name, summary, EMBED, answers={200: answer}, vectors=True, **others)

    embed = partial(post, handler=handler_of(context, EmbeddingsBody), body=EmbeddingsBody)
    embed = partial(embed, schema="EmbeddingList")
    about = "OpenAI's route, with vLLM's and infinity's fields. One vector an input; images need a model of images."
    rows = "vLLM's route: as /v1/embeddings, and rows of tokens where the model or `task` gives them."
    pool, summary = handler_of(context, PoolingBody), "Embed as vLLM's pooling does"
    return [
        embed("/v1/embeddings", name="openai_embeddings", summary="Embed as OpenAI does", about=about),
        embed("/embeddings", name="embeddings", summary="The same without /v1", about=about),
        embed("/infinity/embeddings", name="infinity_embeddings", summary="Embed as infinity does", about=about),
        post("/pooling", pool, "pooling", summary, rows, "PoolingList", PoolingBody),
    ]


def _score_routes(context: ServiceContext) -> list[Route]:
    def post(path: str, handler: Handler, name: str, summary: str, schema: str, **others: Any) -> Route:
        about = "The scores, in the order of the inputs."
        answers = {200: Answer(description=about, content={JSON: reference(schema)}, headers=SCORE_HEADERS)}
        return Route("POST", path, handler, name, summary, RERANK, answers=answers, **others)

    pairs = RequestBody(model=ScoreBody, examples=DATA.examples["score"])
    texts = RequestBody(model=ClassifyBody, examples=DATA.examples["classify"])
    score = partial(post, handler=score_handler(context), summary="Score pairs of texts as vLLM does", body=pairs)
    score = partial(score, schema="ScoreList", description=ABOUT_SCORES)
    classify = partial(
        post, handler=classify_handler(context, decode_inputs), summary="Classify texts as vLLM or infinity does"
    )
    classify = partial(classify, body=texts, schema="ClassifyList", description=ABOUT_LABELS)
    return [
        score("/score", name="score"),
        score("/v1/score", name="openai_score"),
        classify("/classify", name="classify", need=needs.CLASSIFIER._replace(status=400)),
    ]


def _model_routes(context: ServiceContext) -> list[Route]:
    registry, settings = context.registry, context.settings

    def entry(model: Model, name: str) -> dict[str, Any]:
        card, since, parent = model.card, created(settings.store, model.card.name), None
        named: dict[str, Any] = {"id": name, "object": "model", "created": since, "owned_by": "inlay"}
        if name in registry.further:
            parent = card.name
        return named | {"max_model_len": card.max_tokens, "root": card.source, "parent": parent}

    async def list_models(request: Request) -> Response:
        models = [*registry.models.items(), *registry.further.items()]
        return json_response({"object": "list", "data": [entry(model, name) for name, model in models]})

    async def get_model(request: Request) -> Response:
        model, name = registry.get(request.parameters["name"]), request.parameters["name"]
        return json_response(entry(model, name if name in registry.further else model.card.name))

    def get(path: str, handler: Handler, name: str, summary: str, schema: str) -> Route:
        answers = {200: Answer(description="What is loaded.", content={JSON: reference(schema)})}
        return Route("GET", path, handler, name, summary, MODELS, answers=answers, admitted=False)

    about = "Every name of every loaded model, as OpenAI lists them"
    return [
        get("/v1/models", list_models, "openai_models", about, "OpenAIModelList"),
        get("/v1/models/{name:path}", get_model, "openai_model", "One model, as OpenAI has it", "OpenAIModel"),
    ]
