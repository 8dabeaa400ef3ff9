"""POST /models/{name}/similar: the tokens whose rows are nearest to a token, a text, a vector or an analogy's vector.

Over the word table as it is stored: before any scaling, projection or norm of the input layer.
"""

from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import orjson
from fastapi import APIRouter
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from models.errors import BadQuery
from models.tables.row_blocks import Check, floats
from models.tables.similar import MEASURES, Vector, combined, nearest, row_norms
from service.context import ServiceContext
from service.embedding.model import Model
from service.embedding.word_table import WordTable, word_table
from service.errors import BadRequest
from service.http.endpoint import StarletteEndpoint as Endpoint
from service.http.formats import JSON
from service.protocols.inlay.inputs import show
from service.protocols.inlay.positions import fields
from service.protocols.inlay.positions import parsing as asked
from service.protocols.inlay.positions.fields import (
    choice,
    read,
    switch,
    whole,
)
from service.protocols.inlay.positions.parameters import Parameters, exactly
from service.scheduling.serial_executor import Turns

PATH = "/models/{name}/similar"
MAX_TOP = 1000
ITEM: dict[str, Any] = {"anyOf": [{"type": "integer"}, {"type": "string"}, *fields.TENSOR["anyOf"]]}
EXAMPLES: dict[str, dict[str, Any]] = {
    "token": {"token": "king", "top_k": 5},
    "text": {"text": "a warm summer day", "measure": "dot"},
    "analogy": {"positive": ["king", "woman"], "negative": ["man"], "normalize": True},
}


def item(value: Any) -> Any:
    """An id, a text or a vector; raises ValueError."""
    if type(value) in (int, str):
        return value
    if isinstance(value, list | dict | np.ndarray):
        return fields.floats(value)
    raise ValueError(f"{show(value)} is no id, no text and no vector")


def items(value: Any) -> Any:
    """A list of them; raises ValueError."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise ValueError("send a list of ids, texts and vectors")
    return [item(each) for each in value]


def token(value: Any) -> Any:
    """An id or a text; raises ValueError."""
    if value is None or type(value) in (int, str):
        return value
    raise ValueError(f"{show(value)} is no id and no text")


def text(value: Any) -> Any:
    """A text; raises ValueError."""
    if value is None or type(value) is str:
        return value
    raise ValueError(f"{show(value)} is no text")


_LIST = {"type": "array", "items": ITEM}
FIELDS: Parameters = {
    "token": read(token, {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "an id, or the text of one token", None),
    "text": read(text, {"type": "string"}, "a text: the mean of its tokens' rows, special tokens left out", None),
    "vector": read(fields.floats, fields.TENSOR, "a vector as wide as the word table", None),
    "positive": read(items, _LIST, "ids, texts and vectors to add: a - b + c is positive [a, c], negative [b]", None),
    "negative": read(items, _LIST, "ids, texts and vectors to take away", None),
    "normalize": switch("of positive and negative: each to unit length first", False),
    "measure": choice(MEASURES, "what is best: the largest cosine or dot product, the smallest distance", "cosine"),
    "top_k": whole(1, MAX_TOP, "how many tokens", 10),
    "exclude_inputs": switch("leave out the tokens that were sent", True),
}
BODY = exactly("Similar", "What the tokens are to be near to: a token, a text, a vector, or positive.", FIELDS)


class Similar:
    """Answers for every model; keeps the lengths of each table's rows, one float32 a row."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._turns = Turns("similar", "searches")
        self._norms: WeakKeyDictionary[Model, NDArray[np.float32]] = WeakKeyDictionary()  # a model has one table

    async def answer(self, request: Request) -> Response:
        """The tokens, best first."""
        table = word_table(self._context.registry.get(request.path_params["name"]))
        wanted = await asked.of_body(BODY, request)
        _check_one(wanted)
        found = await self._turns.run(partial(self._found, table, wanted))
        return Response(orjson.dumps(found), media_type=JSON)

    def _found(self, table: WordTable, wanted: Any, check: Check) -> dict[str, Any]:
        try:
            query, ids = _query(table, wanted)
            best = nearest(
                table.rows,
                self._lengths(table, check),
                query,
                measure=wanted.measure,
                top_k=wanted.top_k,
                exclude=ids if wanted.exclude_inputs else (),
                check=check,
            )
        except BadQuery as error:
            raise BadRequest(str(error)) from None
        return {
            "model": table.model.card.name,
            "table": {"name": table.name, "shape": table.rows.shape, "dtype": table.dtype},
            "measure": wanted.measure,
            "inputs": [{"id": id_, "token": table.token(id_)} for id_ in ids],
            "results": [{"id": id_, "token": table.token(id_), "score": score} for id_, score in best],
        }

    def _lengths(self, table: WordTable, check: Check) -> NDArray[np.float32]:
        if (found := self._norms.get(table.model)) is None:
            found = self._norms[table.model] = row_norms(table.rows, check)
        return found


def _check_one(wanted: Any) -> None:
    """Raise BadRequest unless exactly one thing is asked about."""
    given = [name for name in ("token", "text", "vector", "positive") if name in wanted.model_fields_set]
    if wanted.negative and not wanted.positive:
        raise BadRequest("negative takes away from positive: send positive as well")
    if len(given) != 1 or ("positive" in given and not wanted.positive):
        came = " and ".join(given) or "none"
        raise BadRequest(f"send one of token, text, vector and positive (with negative or without); {came} came")
    if "normalize" in wanted.model_fields_set and not wanted.positive:
        raise BadRequest("normalize is read with positive alone: leave it out")


def _query(table: WordTable, wanted: Any) -> tuple[Vector, list[int]]:
    """The vector, and the tokens that were sent."""
    ids: list[int] = []
    if wanted.vector is not None:
        return wanted.vector.astype(np.float64), ids
    if wanted.token is not None:
        ids = [_id(table, wanted.token, "token")]
        return _mean(table, ids), ids
    if wanted.text is not None:
        ids = table.ids_of(wanted.text)
        return _mean(table, ids), list(dict.fromkeys(ids))
    parts = [
        [_vector(table, each, name, ids) for each in getattr(wanted, name) or ()] for name in ("positive", "negative")
    ]
    return combined(table.rows, *parts, normalise=wanted.normalize), list(dict.fromkeys(ids))


def _id(table: WordTable, given: int | str, name: str) -> int:
    return table.checked(given, name) if isinstance(given, int) else table.id_of(given)


def _vector(table: WordTable, given: Any, name: str, ids: list[int]) -> Vector:
    """The row of an id, the mean of a text's rows, or the vector itself; ids are noted."""
    if isinstance(given, np.ndarray):
        return given.astype(np.float64)
    own = [table.checked(given, name)] if isinstance(given, int) else table.ids_of(given, entry=True)
    ids.extend(own)
    return _mean(table, own)


def _mean(table: WordTable, ids: list[int]) -> Vector:
    rows = floats(table.rows[np.array(ids, np.int64)], np.float64)
    return np.asarray(rows.mean(axis=0))


def routes(context: ServiceContext) -> APIRouter:
    """The route; table_docs.py describes it."""
    endpoint = Endpoint(PATH, Similar(context).answer, context)
    return APIRouter(routes=[Route(PATH, endpoint, methods=["POST"], include_in_schema=False)])
