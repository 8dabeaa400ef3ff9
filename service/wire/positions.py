"""GET /models/{name}/rope: precomputed cos and sin in every format, streamed in blocks and tagged for caches."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.encoder import Encoder
from service.errors import BadRequest
from service.wire.body import explain
from service.wire.formats import (
    JSON,
    NPY,
    OCTETS,
    OFFERS,
    SAFETENSORS,
    buffer,
    negotiate,
    npy_header,
    safetensors_header,
)
from service.wire.openapi import binary_content
from service.wire.parts import Parts
from service.wire.tables import MAX_LENGTH, MAX_POSITION, NUMPY_DTYPES, Span, blocks, span

BINARY = {
    OCTETS: "[2, length, rotary_dim / 2]: cos, then sin; little-endian.",
    NPY: "The same array as a NumPy file; not in bfloat16.",
    SAFETENSORS: "The tensors cos and sin.",
}
OUTPUTS = {"cos": "rope_cos", "sin": "rope_sin"}


class RopeQuery(BaseModel):
    """Which rows of the table, and in what dtype."""

    model_config = ConfigDict(extra="forbid")
    start: Annotated[int, Field(ge=0, lt=MAX_POSITION, description=f"first position, 0 to {MAX_POSITION - 1}")] = 0
    length: Annotated[
        int | None,
        Field(ge=1, le=MAX_LENGTH, description=f"rows, 1 to {MAX_LENGTH}; left out: to the last trained position"),
    ] = None
    dtype: Annotated[Literal["float32", "float16", "bfloat16"], Field(description="float32, float16 or bfloat16")] = (
        "float32"
    )


class RopeTables(BaseModel):
    """The JSON form of the table."""

    model: str
    start: int
    length: int
    rotary_dim: int
    attention_factor: Annotated[float, Field(description="cos and sin are already multiplied by it")]
    arithmetic: str
    layout: Annotated[str, Field(description="how channels pair: half (i, i + r/2) or interleaved (2i, 2i + 1)")]
    dtype: str
    cos: Annotated[list[list[float]], Field(description="[length, rotary_dim / 2]")]
    sin: Annotated[list[list[float]], Field(description="[length, rotary_dim / 2]")]


def routes(parts: Parts) -> APIRouter:
    """GET and HEAD /models/{name}/rope."""
    router, encoder = APIRouter(tags=["positions"]), parts.encoder

    @router.head("/models/{name}/rope", include_in_schema=False)
    @router.get(
        "/models/{name}/rope",
        summary="RoPE cos and sin of consecutive positions",
        response_class=Response,
        responses={
            200: {"model": RopeTables, "content": binary_content(BINARY)},
            304: {"description": "The client's copy is current."},
        },
        openapi_extra={"parameters": _parameters()},
    )
    async def rope(name: str, request: Request, if_none_match: Annotated[str | None, Header()] = None) -> Response:
        query = _query(request)
        media_type = negotiate(_accept(request), OFFERS)
        wanted = span(encoder.catalog.get(name), query.start, query.length, query.dtype)
        head, size = _head(wanted, media_type)
        # no-cache: keep it, but ask; a model may be exported again under the same name
        headers = {"etag": wanted.tag(media_type), "cache-control": "no-cache", "vary": "Accept"}
        if _holds(if_none_match, headers["etag"]):
            return Response(status_code=304, headers=headers)
        headers |= {"content-type": media_type}
        if size is not None:
            headers |= {"content-length": str(size)}
        if media_type in (OCTETS, NPY):
            headers |= {"inlay-shape": f"2,{wanted.length},{wanted.width}", "inlay-dtype": wanted.dtype}
        if request.method == "HEAD":
            return Response(headers=headers)
        body = _json(encoder, wanted, head) if media_type == JSON else _tensors(encoder, wanted, head)
        return StreamingResponse(body, headers=headers)

    return router


def _query(request: Request) -> RopeQuery:
    try:
        return RopeQuery.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise BadRequest(explain(error, RopeQuery)) from None


def _parameters() -> list[dict[str, Any]]:
    properties = RopeQuery.model_json_schema()["properties"]
    return [{"name": name, "in": "query", "schema": schema} for name, schema in properties.items()]


def _accept(request: Request) -> bytes | None:
    return ",".join(request.headers.getlist("accept")).encode("latin-1") or None


def _holds(if_none_match: str | None, etag: str) -> bool:
    tags = [tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")]
    return etag in tags or "*" in tags


def _head(wanted: Span, media_type: str) -> tuple[bytes, int | None]:
    """What goes out before the values, and the size of it all (None for JSON, whose numbers vary in length)."""
    dtype, shape = np.dtype(NUMPY_DTYPES[wanted.dtype]), (wanted.length, wanted.width)
    if media_type == JSON:
        return _json_head(wanted), None
    head = b""
    if media_type == NPY:
        head = npy_header((2, *shape), dtype)
    elif media_type == SAFETENSORS:
        head = safetensors_header({name: (dtype, shape) for name in OUTPUTS}, {"model": wanted.model.card.name})
    return head, len(head) + 2 * wanted.length * wanted.width * dtype.itemsize


def _json_head(wanted: Span) -> bytes:
    rope = wanted.rope
    facts: dict[str, Any] = {
        "model": wanted.model.card.name,
        "start": wanted.start,
        "length": wanted.length,
        "rotary_dim": rope.rotary_dim,
        "attention_factor": rope.attention_factor,
        "arithmetic": rope.arithmetic,
        "layout": rope.layout,
        "dtype": wanted.dtype,
    }
    return orjson.dumps(facts)[:-1]


async def _tensors(encoder: Encoder, wanted: Span, head: bytes) -> AsyncIterator[bytes | memoryview]:
    if head:
        yield head
    for output in OUTPUTS.values():
        async for _, (array,) in blocks(encoder, wanted, (output,)):
            yield buffer(array)


async def _json(encoder: Encoder, wanted: Span, head: bytes) -> AsyncIterator[bytes]:
    yield head
    for name, output in OUTPUTS.items():
        yield b',"%s":[' % name.encode()
        async for start, (array,) in blocks(encoder, wanted, (output,)):
            rows = orjson.dumps(array.astype(np.float32, copy=False), option=orjson.OPT_SERIALIZE_NUMPY)
            yield (b"" if start == wanted.start else b",") + rows[1:-1]
        yield b"]"
    yield b"}"
