"""POST /models/{name}/similar: the tokens whose rows are nearest to a token, a text, a vector or an analogy.

It searches the word table as it is stored: before any scaling, projection or norm of the input layer.
"""

from functools import partial
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PlainValidator, WithJsonSchema

from models.errors import BadQuery
from models.tables.row_blocks import Check, floats
from models.tables.similar import MEASURES, Vector, combined, nearest
from service.context import ServiceContext
from service.embedding.limits import check_inputs
from service.embedding.word_table import WordTable
from service.errors import BadRequest, ConflictingFields, MissingField, TooManyCharacters
from service.http.parameter_types import TENSOR, Parameters, Tensor, described, one_of, read_tensor, switch, whole
from service.http.validation_errors import quoted
from service.request_context import RequestContext

MAX_TOP = 1000
MAX_ITEMS, MAX_CHARACTERS = 1024, 65536  # of positive and negative; of all texts together
MEAN_ROWS = 1024  # of a text's mean that are held at a time


def _item(value: Any) -> int | str | NDArray[Any]:
    """Return an id, a text or a vector; raise ValueError for anything else."""
    if type(value) is int or type(value) is str:
        return value
    if isinstance(value, list | dict | np.ndarray):
        return read_tensor(value)
    raise ValueError(f"{quoted(value)} is not an id, a text or a vector")


Item = Annotated[
    int | str | NDArray[Any],
    PlainValidator(_item),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}, *TENSOR["anyOf"]]}),
]


class SimilarParameters(Parameters):
    """The token, text, vector or analogy (positive, negative) to find similar tokens for."""

    token: int | str | None = described("an id, or the text of one token", None)
    text: str | None = described("a text: the mean of its tokens' rows, special tokens left out", None)
    vector: Tensor | None = described("a vector as wide as the word table", None)
    positive: Annotated[list[Item], Field(fail_fast=True)] | None = described(
        "ids, texts and vectors to add: a - b + c is positive [a, c], negative [b]", None
    )
    negative: Annotated[list[Item], Field(fail_fast=True)] | None = described(
        "ids, texts and vectors to take away", None
    )
    normalize: bool = switch("of positive and negative: each to unit length first", False)
    measure: str = one_of(MEASURES, "what is best: the largest cosine or dot product, the smallest distance", "cosine")
    top_k: int = whole(1, MAX_TOP, "how many tokens", 10)
    exclude_inputs: bool = switch("leave out the tokens that were sent", True)


async def search(
    context: ServiceContext, table: WordTable, parameters: SimilarParameters, call: RequestContext
) -> dict[str, Any]:
    """Return the nearest tokens, best first, and what they were compared with.

    Raises:
        BadRequest: the parameters do not go together, or name what the table does not have.
    """
    _check(parameters)
    return await context.computations.run("search", partial(_search, table, parameters))


def _search(table: WordTable, parameters: SimilarParameters, check: Check) -> dict[str, Any]:
    try:
        query, ids = _query(table, parameters)
        best = nearest(
            table.rows,
            query,
            measure=parameters.measure,
            top_k=parameters.top_k,
            exclude=ids if parameters.exclude_inputs else (),
            check=check,
        )
    except BadQuery as error:
        raise BadRequest(str(error)) from None
    return {
        "model": table.model.card.name,
        "table": {"name": table.name, "shape": table.rows.shape, "dtype": table.dtype},
        "measure": parameters.measure,
        "inputs": [{"id": id_, "token": table.token(id_)} for id_ in ids],
        "results": [{"id": id_, "token": table.token(id_), "score": score} for id_, score in best],
    }


def _check(parameters: SimilarParameters) -> None:
    """Raise BadRequest unless exactly one of token, text, vector and positive is sent."""
    sent = [name for name in ("token", "text", "vector", "positive") if name in parameters.model_fields_set]
    if parameters.negative and not parameters.positive:
        raise MissingField("negative takes away from positive", remedy="send positive as well")
    if len(sent) != 1 or getattr(parameters, sent[0]) is None or parameters.positive == []:
        received = f"{' and '.join(sent) or 'none'} came"
        raise ConflictingFields(f"send one of token, text, vector and positive (with negative or without); {received}")
    items = [*(parameters.positive or ()), *(parameters.negative or ())]
    texts = [text for text in (parameters.token, parameters.text, *items) if isinstance(text, str)]
    check_inputs(len(items), MAX_ITEMS, "entries of positive and negative")
    if (characters := sum(map(len, texts))) > MAX_CHARACTERS:
        raise TooManyCharacters(
            f"the texts have {characters} characters", allowed=f"a search reads {MAX_CHARACTERS}", remedy="shorten them"
        )
    if "normalize" in parameters.model_fields_set and not parameters.positive:
        raise ConflictingFields("is read with positive alone", field=("normalize",), remedy="leave it out")


def _query(table: WordTable, parameters: SimilarParameters) -> tuple[Vector, list[int]]:
    """Return the vector to search with, and the ids of the tokens that were sent."""
    ids: list[int] = []
    if parameters.vector is not None:
        return parameters.vector.astype(np.float64), ids
    if (token := parameters.token) is not None:
        ids = [table.checked(token, ("token",)) if isinstance(token, int) else table.id_of(token)]
        return _mean(table, ids), ids
    if parameters.text is not None:
        ids = table.ids_of(parameters.text)
        return _mean(table, ids), list(dict.fromkeys(ids))
    positive = [_vector(table, item, "positive", ids) for item in parameters.positive or ()]
    negative = [_vector(table, item, "negative", ids) for item in parameters.negative or ()]
    return combined(table.rows, positive, negative, normalise=parameters.normalize), list(dict.fromkeys(ids))


def _vector(table: WordTable, item: int | str | NDArray[Any], field: str, ids: list[int]) -> Vector:
    """Return the row of an id, the mean of a text's rows, or the vector itself; add the ids of tokens to `ids`."""
    if isinstance(item, np.ndarray):
        return item.astype(np.float64)
    tokens = [table.checked(item, (field,))] if isinstance(item, int) else table.ids_of(item, entry=True)
    ids.extend(tokens)
    return _mean(table, tokens)


def _mean(table: WordTable, ids: list[int]) -> Vector:
    total = np.zeros(table.rows.shape[1])
    for start in range(0, len(ids), MEAN_ROWS):
        rows = table.rows[np.array(ids[start : start + MEAN_ROWS], np.int64)]
        total += floats(rows, np.float64).sum(axis=0)
    return total / len(ids)
