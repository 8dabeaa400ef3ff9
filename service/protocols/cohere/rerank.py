"""POST /v1/rerank and /v2/rerank as Cohere, Jina, vLLM, Voyage and infinity have them; and /rerank with documents.

Their fields are read together and the answer holds what each of their clients reads.

Source: cohere-python 7.3.1 (v1, v2); vLLM 0.33, entrypoints/pooling/scoring; Jina's rerank API; infinity-client 0.0.78;
voyageai 0.5.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from time import time
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, WithJsonSchema

from service.context import ServiceContext
from service.embedding.ranking import Ranks
from service.embedding.requests import Picture
from service.errors import FieldPath, MissingField, WrongType
from service.http import openapi_data
from service.http.formats import JSON
from service.http.response import Response, json_response
from service.http.routes import Request, Route, RouteGroup
from service.http.validation_errors import parse_json, quoted, validated
from service.http.worker_threads import inline_or_in_thread
from service.protocols.cohere.errors import CohereError, render_rerank_error
from service.protocols.inlay import DATA as INLAY
from service.protocols.inlay import needs, vllm_fields
from service.protocols.inlay.inputs import picture
from service.protocols.inlay.parsing import read_json
from service.protocols.inlay.vllm_fields import PairsBody

PREFIXES = ("/v1/rerank", "/v2/rerank")
INFINITY = "/infinity/rerank"  # for clients of infinity that do not send its raw_scores
DATA = openapi_data.read(__package__, INLAY.parts)
SEARCH_UNIT = 100  # documents that Cohere counts as one search
FORMS = 'texts, or objects with a "text", an "image" or the fields that rank_fields names'
TEXT_OR_OBJECT = {"anyOf": [{"type": "string"}, {"type": "object"}]}
DOCUMENTS_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": TEXT_OR_OBJECT}], "description": FORMS}


class CohereRerankBody(PairsBody):
    """A query and the documents to rank."""

    query: str = Field(description="a text")
    documents: Annotated[Any, WithJsonSchema(DOCUMENTS_SCHEMA)]
    top_n: int | None = Field(None, ge=0, description="an integer from 0: so many results, the best; 0 and null: all")
    top_k: int | None = Field(
        None, ge=1, description="an integer from 1, Voyage's top_n; sent, the results are also in `data`"
    )
    return_documents: bool | Literal["true", "false"] | None = Field(  # RAGFlow sends the text to Xinference
        None, description="true repeats each document in its result; left out: /rerank alone does"
    )
    rank_fields: list[str] | None = Field(
        None, description="names of the fields of objects that are read, one after the other"
    )
    max_chunks_per_doc: int | None = Field(
        None, ge=1, description="an integer from 1: a long document is split into so many chunks; the best one counts"
    )
    truncation: bool | None = Field(None, description="true cuts what is too long, false refuses it")
    raw_scores: bool | None = Field(
        None, description="true leaves scores as the model gives them; infinity's, whose documents are texts"
    )


class Ranking(NamedTuple):
    """A rerank request, read from its body.

    Args:
        body: the fields of the body.
        documents: the documents as they came.
        texts: the text that is read of each document, or its image.
        voyage: whether the body is that of a client of Voyage, which always sends top_k, and null for all.
    """

    body: CohereRerankBody
    documents: list[Any]
    texts: list[str | Picture]
    voyage: bool


def routes(context: ServiceContext) -> RouteGroup:
    """Return Cohere's rerank routes."""
    answer = answer_of(context)

    async def handler(request: Request) -> Response:
        return await answer(request, await read_json(request, parse_json))

    rows = [Route("POST", path, handler, bodies=(CohereRerankBody,)) for path in (*PREFIXES, INFINITY)]
    return RouteGroup(rows, render_rerank_error, (*PREFIXES, INFINITY), (CohereError, JSON), data=DATA)


def answer_of(
    context: ServiceContext, *, with_documents: bool = False
) -> Callable[[Request, Any], Awaitable[Response]]:
    """Return the function that answers a request whose body is a JSON value.

    Args:
        with_documents: results hold their documents where `return_documents` is not sent.
    """
    max_inputs = context.settings.max_inputs

    async def answer(request: Request, data: Any) -> Response:
        request.render_error = render_rerank_error
        size = len(request.body)
        ranking = await inline_or_in_thread(size, read, data, max_inputs)
        body, pairs = ranking.body, [(ranking.body.query, text) for text in ranking.texts]
        reading = body.reading(body.truncation, body.raw_scores, body.max_chunks_per_doc)
        if body.priority > 0:
            request.context.make_bulk()
        model = context.registry.get(body.named, needs.ranks)
        ranks = await context.scorer.score(model, pairs, request.context, reading)
        shown = with_documents if body.return_documents is None else body.return_documents in (True, "true")
        document = await inline_or_in_thread(size, _document, ranking, ranks, request, shown)
        return await inline_or_in_thread(size if shown else 0, json_response, document)

    return answer


def read(data: Any, max_inputs: int) -> Ranking:
    """Return the Ranking in a JSON value; raise BadRequest if it is invalid."""
    body = validated(CohereRerankBody, data)
    if type(body.documents) not in (str, list):
        raise WrongType(f"is {quoted(body.documents)}", field=("documents",), allowed=f"send a list of {FORMS}")
    documents = vllm_fields.listed("documents", body.documents, max_inputs, "document")
    texts = [_text(document, index, body.rank_fields or ()) for index, document in enumerate(documents)]
    return Ranking(body, documents, texts, "top_k" in data)


def _text(document: Any, index: int, fields: Sequence[str]) -> str | Picture:
    """Return what is ranked: a document's text, the fields that `rank_fields` names, or its image."""
    if isinstance(document, str):
        return document
    place: FieldPath = ("documents", index)
    if type(document) is not dict:
        raise WrongType(f"is {quoted(document)}", field=place, allowed=f"send {FORMS}")
    if "image" in document and not fields:
        return picture(document, place)
    parts = [document[name] for name in fields or ("text",) if name in document]
    if not parts:
        raise MissingField(f"has no {' or '.join(fields or ('text',))[:80]}", field=place, remedy="send it, or a text")
    for part in parts:
        if type(part) is not str:
            allowed = "a field that is read is a text"
            raise WrongType(f"has a field that is {quoted(part)}", field=place, allowed=allowed)
    return "\n".join(parts)


def _document(ranking: Ranking, ranks: Ranks, request: Request, shown: bool) -> dict[str, Any]:
    """Return the answer, a superset of the answers of Cohere, Jina, vLLM, infinity and, if it is one, Voyage."""
    body, documents = ranking.body, ranking.documents
    results: list[dict[str, Any]] = [
        {"index": index, "relevance_score": score}
        for index, score in islice(ranks.best_first(), body.top_n or body.top_k)
    ]
    for result in results if shown else ():
        document = documents[result["index"]]
        # infinity-client always sends raw_scores
        bare = (
            isinstance(document, dict) or body.raw_scores is not None or ranking.voyage or request.head.path == INFINITY
        )
        result["document"] = document if bare else {"text": document}
    tokens = ranks.result.tokens
    return {
        "id": request.context.request_id.decode(),
        "object": "rerank",
        "created": int(time()),
        "model": ranks.result.model,
        "results": results,
        **({"data": results} if ranking.voyage else {}),
        "usage": vllm_fields.usage(tokens),
        "meta": {
            "api_version": {"version": "1" if request.head.path.startswith("/v1/") else "2"},
            "billed_units": {"search_units": math.ceil(len(documents) / SEARCH_UNIT)},
            "tokens": {"input_tokens": tokens},
        },
    }
