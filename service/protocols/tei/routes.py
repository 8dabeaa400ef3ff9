"""text-embeddings-inference's REST routes besides /embed, whose superset protocols/inlay/embed.py serves.

Refusals are problem documents, which hold TEI's `error` and `error_type` too.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import orjson
from fastapi import APIRouter
from starlette.routing import Route

from service.context import ServiceContext
from service.embedding.requests import EmbedRequest, EmbedResult, Text
from service.errors import BadRequest, EmptyRequest, InlayError, TooLarge, WrongModelKind
from service.http import json_arrays as numbers
from service.http.endpoint import Answer, Call, Endpoint
from service.http.formats import (
    FORMATS,
    JSON,
    Headers,
    check_json,
    negotiate,
)
from service.http.problem_details import render_problem
from service.protocols.inlay.embed import EmbedHandler
from service.protocols.inlay.embed_body import packed, read
from service.protocols.inlay.inputs import decode
from service.protocols.inlay.pooled_bytes import BYTES, BYTES_ONLY
from service.protocols.tei import bodies
from service.protocols.tei import model_kinds as kinds
from service.protocols.tei import timing_headers as spent
from service.protocols.tei.info import info
from service.protocols.tei.tokenization import decoded, tokenised

SENTENCES = b'"source_sentence"'  # only a body that holds these bytes can be a /similarity
Answers = Callable[[ServiceContext, Call], Awaitable[Answer]]


def routes(context: ServiceContext) -> APIRouter:
    """Every route of ROUTES and GET /info."""
    posts = [
        Route(path, _endpoint(context, path, answers), methods=["POST"], include_in_schema=False)
        for path, answers in ROUTES.items()
    ]
    told = Endpoint("tei_info", partial(_info, context), _refusal, context)
    return APIRouter(routes=[*posts, Route("/info", told, methods=["GET"], include_in_schema=False)])


def _endpoint(context: ServiceContext, path: str, answers: Answers) -> Endpoint:
    async def answer(call: Call) -> Answer:
        check_json(call.fields.get(b"content-type"))
        return await answers(context, call)

    return Endpoint(f"tei_{path[1:] or 'root'}", answer, _refusal, context)


async def _either(context: ServiceContext, call: Call) -> Answer:
    """A body of /embed, or one of /similarity: huggingface_hub sends both to the same address."""
    started, body = perf_counter(), await call.body()
    if SENTENCES in body:
        data = bodies.parsed(body)
        if type(data) is dict and type(data.get("inputs")) is dict and "source_sentence" in data["inputs"]:
            return await _compared(context, call, data, started)
    answer = await EmbedHandler(context).answer(call.request, body, FORMATS[negotiate(call.fields.get(b"accept"))])
    return Answer((*answer.headers, *_pairs(answer.lines)), answer.body)


def _refusal(error: InlayError) -> Answer:
    answer = render_problem(error)
    return Answer(answer.headers, answer.body, answer.status)


def _pairs(lines: bytes) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, _, value in (line.partition(b": ") for line in lines.split(b"\r\n")) if name]


async def _embed_all(context: ServiceContext, call: Call) -> Answer:
    """A vector a token."""
    started, encode = perf_counter(), FORMATS[negotiate(call.fields.get(b"accept"))]
    asked = bodies.valid(bodies.TokenVectorsBody, bodies.parsed(await call.body()))
    output = kinds.token_output(context.registry.get(asked.model).card)
    request = EmbedRequest(
        decode(asked.inputs, context.settings.max_inputs),
        asked.model,
        (output,),
        asked.truncate,
        bodies.side(asked.truncation_direction),
        prompt_name=asked.prompt_name,
    )
    result = await context.embedder.embed(request, call.request.context)
    headers, body = await numbers.written(numbers.count(result), encode, result._replace(picked=False), False)
    return Answer(headers + spent.headers(result, context.registry, started), body)


async def _similarity(context: ServiceContext, call: Call) -> Answer:
    """How alike a text is to others."""
    started = perf_counter()
    return await _compared(context, call, bodies.parsed(await call.body()), started)


async def _compared(context: ServiceContext, call: Call, data: Any, started: float) -> Answer:
    asked = bodies.valid(bodies.SimilarityBody, data)
    texts = bodies.inner(bodies.ComparedTexts, asked.inputs, "inputs")
    how = bodies.inner(bodies.ComparedHow, {} if asked.parameters is None else asked.parameters, "parameters")
    output = kinds.pooled_output(context.registry.get(asked.model).card)
    if not texts.sentences:
        raise EmptyRequest("`inputs.sentences` cannot be empty: send one at least")
    if len(texts.sentences) >= context.settings.max_inputs:
        most = context.settings.max_inputs - 1
        raise TooLarge(f"batch size {len(texts.sentences)} > maximum allowed batch size {most}: send fewer sentences")
    request = EmbedRequest(
        [Text(texts.source_sentence), *map(Text, texts.sentences)],
        asked.model,
        (output,),
        how.truncate,
        bodies.side(how.truncation_direction),
        True,
        prompt_name=how.prompt_name,
    )
    result = await context.embedder.embed(request, call.request.context)
    return _json(_scores(result), spent.headers(result, context.registry, started))


def _scores(result: EmbedResult) -> Any:
    """Products of the first unit vector with the others."""
    source, *_ = rows = result.outputs[0].rows.astype(np.float64)
    return (rows[1:] @ source).astype(np.float32)


async def _tokenize(context: ServiceContext, call: Call) -> Answer:
    asked = bodies.valid(bodies.TokenizeBody, bodies.parsed(await call.body()))
    texts = [asked.inputs] if isinstance(asked.inputs, str) else asked.inputs
    model = context.registry.get(asked.model)
    return _json(await tokenised(context, model, texts, asked.add_special_tokens, asked.prompt_name))


async def _decode(context: ServiceContext, call: Call) -> Answer:
    asked = bodies.valid(bodies.DecodeBody, bodies.parsed(await call.body()))
    model = context.registry.get(asked.model)
    return _json(await decoded(context, model, bodies.id_lists(asked.ids), asked.skip_special_tokens))


async def _embed_sparse(context: ServiceContext, call: Call) -> Answer:
    asked = bodies.valid(bodies.TokenVectorsBody, bodies.parsed(await call.body()))
    if not decode(asked.inputs):
        raise EmptyRequest("`inputs` cannot be empty: send one at least")
    raise kinds.not_sparse(context.registry.get(asked.model).card)


async def _predict(context: ServiceContext, call: Call) -> Answer:
    asked = bodies.valid(bodies.PredictBody, bodies.parsed(await call.body()))
    bodies.check_predicted(asked.inputs)
    raise kinds.not_a_classifier(context.registry.get(asked.model).card)


async def _rerank(context: ServiceContext, call: Call) -> Answer:
    raise _ranked(context, bodies.parsed(await call.body()))


def _ranked(context: ServiceContext, data: Any) -> WrongModelKind:
    asked = bodies.valid(bodies.RerankBody, data)
    if not asked.texts:
        raise EmptyRequest("`texts` cannot be empty: send one at least")
    return kinds.not_a_ranker(context.registry.get(asked.model).card)


async def _vertex(context: ServiceContext, call: Call) -> Answer:
    """Bodies of /embed, answered together; the first that cannot be is the whole call's refusal."""
    asked = bodies.valid(bodies.VertexBody, bodies.parsed(await call.body()))
    counts = [_inputs(context, index, each) for index, each in enumerate(asked.instances)]
    if sum(counts) > (most := context.settings.max_inputs):
        raise TooLarge(f"batch size {sum(counts)} > maximum allowed batch size {most}: send fewer inputs")
    tasks = [asyncio.ensure_future(_predicted(context, call.request, index, each)) for index, each in enumerate(asked.instances)]
    try:
        predictions = [await task for task in tasks]
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    return _bytes(b'{"predictions":[' + b",".join(predictions) + b"]}")


def _inputs(context: ServiceContext, index: int, data: dict[str, Any]) -> int:
    """How many inputs an instance holds; raises what is wrong with it before any is embedded."""
    try:
        if "query" in data and "texts" in data:
            raise _ranked(context, data)
        request, wanted = read(packed(data))
        if not request.inputs:
            raise EmptyRequest("`inputs` cannot be empty: send one at least")
        if wanted.encoding in (BYTES, BYTES_ONLY):
            raise BadRequest(f"encoding_format is {wanted.encoding}, which no list of predictions holds: send base64")
        return len(request.inputs)
    except InlayError as error:
        raise _placed(index, error) from None


async def _predicted(context: ServiceContext, request: Any, index: int, data: dict[str, Any]) -> bytes:
    try:
        answer = await EmbedHandler(context).answer(request, packed(data), FORMATS[JSON])
    except InlayError as error:
        raise _placed(index, error) from None
    return b"".join(answer.body)


def _placed(index: int, error: InlayError) -> InlayError:
    error.received = f"in instances[{index}]: {error.received}"
    return error


async def _info(context: ServiceContext, call: Call) -> Answer:
    """GET /info; `?model=` names another model than the default."""
    query = dict(parse_qsl(call.scope["query_string"].decode("latin-1"), keep_blank_values=True))
    if unknown := query.keys() - {"model"}:
        raise BadRequest(f'"{sorted(unknown)[0][:80]}" is not known here; allowed: model')
    return _json(info(context, context.registry.get(query.get("model"))))


def _json(document: Any, headers: Headers = ()) -> Answer:
    return _bytes(orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY), headers)


def _bytes(body: bytes, headers: Headers = ()) -> Answer:
    own = ((b"content-type", JSON.encode()), (b"content-length", b"%d" % len(body)))
    return Answer(own + headers, [body])


ROUTES: dict[str, Answers] = {
    "/": _either,
    "/invocations": _either,
    "/embed_all": _embed_all,
    "/embed_sparse": _embed_sparse,
    "/similarity": _similarity,
    "/predict": _predict,
    "/rerank": _rerank,
    "/tokenize": _tokenize,
    "/decode": _decode,
    "/vertex": _vertex,
}
