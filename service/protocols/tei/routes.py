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

from service.context import Parts
from service.embedding.requests import EmbedRequest, EmbedResult, Text
from service.errors import BadRequest, EmptyRequest, InlayError, TooLarge, WrongModelKind
from service.http import json_arrays as numbers
from service.http.asgi import check_json
from service.http.endpoint import Answer, Call, Endpoint
from service.http.formats import (
    FORMATS,
    JSON,
    Headers,
    negotiate,
)
from service.protocols.inlay import embed
from service.protocols.inlay.embed_body import packed, read
from service.protocols.inlay.inputs import decode
from service.protocols.inlay.pooled_bytes import BYTES, BYTES_ONLY
from service.protocols.tei import bodies
from service.protocols.tei import model_kinds as kinds
from service.protocols.tei import timing_headers as spent
from service.protocols.tei.info import info
from service.protocols.tei.tokenization import decoded, tokenised

SENTENCES = b'"source_sentence"'  # only a body that holds these bytes can be a /similarity
Answers = Callable[[Parts, Call], Awaitable[Answer]]


def routes(parts: Parts) -> APIRouter:
    """Every route of ROUTES and GET /info."""
    posts = [
        Route(path, _endpoint(parts, path, answers), methods=["POST"], include_in_schema=False)
        for path, answers in ROUTES.items()
    ]
    told = Endpoint("tei_info", partial(_info, parts), embed.refusal, parts)
    return APIRouter(routes=[*posts, Route("/info", told, methods=["GET"], include_in_schema=False)])


def _endpoint(parts: Parts, path: str, answers: Answers) -> Endpoint:
    async def answer(call: Call) -> Answer:
        check_json(call.fields.get(b"content-type"))
        return await answers(parts, call)

    return Endpoint(f"tei_{path[1:] or 'root'}", answer, embed.refusal, parts)


async def _either(parts: Parts, call: Call) -> Answer:
    """A body of /embed, or one of /similarity: huggingface_hub sends both to the same address."""
    started, body = perf_counter(), await call.body()
    if SENTENCES in body:
        data = bodies.parsed(body)
        if type(data) is dict and type(data.get("inputs")) is dict and "source_sentence" in data["inputs"]:
            return await _compared(parts, data, started)
    return await embed.answered(parts, body, FORMATS[negotiate(call.fields.get(b"accept"))], started)


async def _embed_all(parts: Parts, call: Call) -> Answer:
    """A vector a token."""
    started, encode = perf_counter(), FORMATS[negotiate(call.fields.get(b"accept"))]
    asked = bodies.valid(bodies.TokenVectorsBody, bodies.parsed(await call.body()))
    output = kinds.token_output(parts.catalog.get(asked.model).card)
    request = EmbedRequest(
        decode(asked.inputs, parts.settings.max_inputs),
        asked.model,
        (output,),
        asked.truncate,
        bodies.side(asked.truncation_direction),
        prompt_name=asked.prompt_name,
    )
    result = await parts.encoder.embed(request)
    headers, body = await numbers.written(numbers.count(result), encode, result._replace(picked=False), False)
    return Answer(headers + spent.headers(result, parts.catalog, started), body)


async def _similarity(parts: Parts, call: Call) -> Answer:
    """How alike a text is to others."""
    started = perf_counter()
    return await _compared(parts, bodies.parsed(await call.body()), started)


async def _compared(parts: Parts, data: Any, started: float) -> Answer:
    asked = bodies.valid(bodies.SimilarityBody, data)
    texts = bodies.inner(bodies.ComparedTexts, asked.inputs, "inputs")
    how = bodies.inner(bodies.ComparedHow, {} if asked.parameters is None else asked.parameters, "parameters")
    output = kinds.pooled_output(parts.catalog.get(asked.model).card)
    if not texts.sentences:
        raise EmptyRequest("`inputs.sentences` cannot be empty: send one at least")
    if len(texts.sentences) >= parts.settings.max_inputs:
        most = parts.settings.max_inputs - 1
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
    result = await parts.encoder.embed(request)
    return _json(_scores(result), spent.headers(result, parts.catalog, started))


def _scores(result: EmbedResult) -> Any:
    """Products of the first unit vector with the others."""
    source, *_ = rows = result.outputs[0].rows.astype(np.float64)
    return (rows[1:] @ source).astype(np.float32)


async def _tokenize(parts: Parts, call: Call) -> Answer:
    asked = bodies.valid(bodies.TokenizeBody, bodies.parsed(await call.body()))
    texts = [asked.inputs] if isinstance(asked.inputs, str) else asked.inputs
    model = parts.catalog.get(asked.model)
    return _json(await tokenised(parts, model, texts, asked.add_special_tokens, asked.prompt_name))


async def _decode(parts: Parts, call: Call) -> Answer:
    asked = bodies.valid(bodies.DecodeBody, bodies.parsed(await call.body()))
    model = parts.catalog.get(asked.model)
    return _json(await decoded(parts, model, bodies.id_lists(asked.ids), asked.skip_special_tokens))


async def _embed_sparse(parts: Parts, call: Call) -> Answer:
    asked = bodies.valid(bodies.TokenVectorsBody, bodies.parsed(await call.body()))
    if not decode(asked.inputs):
        raise EmptyRequest("`inputs` cannot be empty: send one at least")
    raise kinds.not_sparse(parts.catalog.get(asked.model).card)


async def _predict(parts: Parts, call: Call) -> Answer:
    asked = bodies.valid(bodies.PredictBody, bodies.parsed(await call.body()))
    bodies.check_predicted(asked.inputs)
    raise kinds.not_a_classifier(parts.catalog.get(asked.model).card)


async def _rerank(parts: Parts, call: Call) -> Answer:
    raise _ranked(parts, bodies.parsed(await call.body()))


def _ranked(parts: Parts, data: Any) -> WrongModelKind:
    asked = bodies.valid(bodies.RerankBody, data)
    if not asked.texts:
        raise EmptyRequest("`texts` cannot be empty: send one at least")
    return kinds.not_a_ranker(parts.catalog.get(asked.model).card)


async def _vertex(parts: Parts, call: Call) -> Answer:
    """Bodies of /embed, answered together; the first that cannot be is the whole call's refusal."""
    asked = bodies.valid(bodies.VertexBody, bodies.parsed(await call.body()))
    counts = [_inputs(parts, index, each) for index, each in enumerate(asked.instances)]
    if sum(counts) > (most := parts.settings.max_inputs):
        raise TooLarge(f"batch size {sum(counts)} > maximum allowed batch size {most}: send fewer inputs")
    tasks = [asyncio.ensure_future(_predicted(parts, index, each)) for index, each in enumerate(asked.instances)]
    try:
        predictions = [await task for task in tasks]
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    return _bytes(b'{"predictions":[' + b",".join(predictions) + b"]}")


def _inputs(parts: Parts, index: int, data: dict[str, Any]) -> int:
    """How many inputs an instance holds; raises what is wrong with it before any is embedded."""
    try:
        if "query" in data and "texts" in data:
            raise _ranked(parts, data)
        request, wanted = read(packed(data))
        if not request.inputs:
            raise EmptyRequest("`inputs` cannot be empty: send one at least")
        if wanted.encoding in (BYTES, BYTES_ONLY):
            raise BadRequest(f"encoding_format is {wanted.encoding}, which no list of predictions holds: send base64")
        return len(request.inputs)
    except InlayError as error:
        raise _placed(index, error) from None


async def _predicted(parts: Parts, index: int, data: dict[str, Any]) -> bytes:
    try:
        answer = await embed.answered(parts, packed(data), FORMATS[JSON], perf_counter())
    except InlayError as error:
        raise _placed(index, error) from None
    return b"".join(answer.body)


def _placed(index: int, error: InlayError) -> InlayError:
    error.message = f"in instances[{index}]: {error.message}"
    return error


async def _info(parts: Parts, call: Call) -> Answer:
    """GET /info; `?model=` names another model than the default."""
    query = dict(parse_qsl(call.scope["query_string"].decode("latin-1"), keep_blank_values=True))
    if unknown := query.keys() - {"model"}:
        raise BadRequest(f'"{sorted(unknown)[0][:80]}" is not known here; allowed: model')
    return _json(info(parts, parts.catalog.get(query.get("model"))))


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
