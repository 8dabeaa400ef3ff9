"""GET {scheme}.onnx: the ONNX graph that computes a scheme for any positions, kept once it is made. Emits no node."""

import asyncio
from functools import cache
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from models.graphs.positions.catalog import GRAPHS, graph
from service.embedding.position_tables import Tables
from service.http.formats import OCTETS
from service.protocols.inlay.positions import answers, parameters
from service.protocols.inlay.positions import plots as pictures
from service.protocols.inlay.positions.model_schemes import Bound
from service.protocols.inlay.positions.schemes import Scheme
from service.protocols.inlay.positions.table_call import Call, in_the_callers_words


@cache
def model_of(row: Scheme | Bound) -> type[BaseModel]:
    """The parameters of a scheme's graph: the table's, of which it reads all but positions and lengths."""
    return parameters.exactly(f"{row.parameters.__name__}Graph", "What to compute.", pictures.formless(row))


def emitted(name: str) -> bool:
    """Whether a scheme is computed by a graph."""
    return name in GRAPHS


async def answer(request: Request, tables: Tables, name: str, call: Call, cache: str) -> Response:
    """The file; raises BadParameters."""
    tag = call.tag("onnx")
    headers = {"etag": tag, "cache-control": cache}
    if answers.holds(request.headers.get("if-none-match"), tag):
        return Response(status_code=304, headers=headers)
    body: Any = tables.whole(tag)
    if body is None:
        with in_the_callers_words():
            body = memoryview(await asyncio.to_thread(graph, name, call.arguments))
        tables.keep(tag, body)
    headers["content-disposition"] = f'attachment; filename="{name}.onnx"'
    return Response(body, headers=headers, media_type=OCTETS)
