"""POST /similarity of vectors that come in the request: the score of each query with each document; no model runs.

A body with `queries` is of this kind, one with `inputs` is text-embeddings-inference's. A query or document of several
vectors, [n, width], is compared by MaxSim, one of a single vector, [width], by a function of two vectors.
"""

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from pydantic import Field, WithJsonSchema

from service.context import ServiceContext
from service.embedding import late_interaction
from service.embedding.late_interaction import SINGLE, Function, Vectors
from service.errors import EmptyRequest, TooLarge, UnknownValue, WrongShape, WrongType
from service.http.response import Response, json_response
from service.http.tensors import tensor
from service.http.validation_errors import validated
from service.protocols.inlay.parameter_types import TENSOR
from service.protocols.tei.operations import late_interaction_function
from service.protocols.tei.schemas import ModelName, StrictBody
from service.scheduling.serial_executor import SerialExecutor

MOST_SCORES = 1 << 16  # each takes 10 µs, however few its products
MOST_PRODUCTS = 1 << 33  # of two numbers: about a second of one core
QUERIES = b'"queries"'  # a body without these bytes holds no vectors
EXAMPLE = {"queries": [[[0.6, 0.8], [1, 0]]], "documents": [[[0, 1], [0.8, 0.6]], [[1, 0]]], "function": "maxsim"}
SCORES = {"type": "array", "title": "With `queries`: a list of scores a query", "items": {"type": "array"}}
LIST = {"type": "array", "items": TENSOR, "minItems": 1}


class VectorsBody(StrictBody):
    """Vectors to compare."""

    queries: Annotated[Any, WithJsonSchema(LIST), Field(description="vectors, or lists of vectors")]
    documents: Annotated[Any, WithJsonSchema(LIST), Field(description="of the same form and width")]
    function: Annotated[
        Function | None,
        Field(
            description=f"{' or '.join(late_interaction.SEVERAL)} of lists of vectors, {', '.join(SINGLE)} of vectors; "
            "left out: maxsim, or the model's similarity_function, else cosine"
        ),
    ] = None
    model: ModelName = None


class VectorSimilarity:
    """Compares vectors, one request at a time."""

    def __init__(self, context: ServiceContext) -> None:
        self._registry = context.registry
        self._turns = SerialExecutor("similarity", "comparisons of vectors")

    async def __call__(self, data: Any) -> Response:
        """Return the scores as a list of lists."""
        return await self._turns.run(lambda check: self._answer(data, check))

    def _answer(self, data: Any, check: Callable[[], None]) -> Response:
        fields = validated(VectorsBody, data)
        queries, documents = (vectors_of(name, getattr(fields, name)) for name in ("queries", "documents"))
        several = queries[0].ndim == 2
        function = fields.function or self._usual(fields.model, several)
        allowed = late_interaction.SEVERAL if several else SINGLE
        if function not in allowed:
            held = "lists of vectors" if several else "vectors"
            raise UnknownValue(f"is {function}", field=("function",), allowed=f"of {held} it is {' or '.join(allowed)}")
        _check(queries, documents)
        scores = late_interaction.score(queries, documents, function, check)
        return json_response(scores.astype(np.float32))

    def _usual(self, name: str | None, several: bool) -> Function:
        """Return the function that a model's files name, of the default model where the request names none."""
        model = self._registry.get(name) if name else self._registry.default
        if several:
            return late_interaction_function(model.card if model else None)
        stated: Any = model.card.similarity_function if model else None
        return stated if stated in SINGLE else "cosine"


def vectors_of(name: str, values: Any) -> list[Vectors]:
    """Return the vectors of a list, all of the first one's form: [n, width] or [width]."""
    if type(values) is not list:
        raise WrongType("is no list", field=(name,), allowed="send a list of vectors, or of lists of vectors")
    if not values:
        raise EmptyRequest("is empty", field=(name,), remedy="send one vector at least")
    arrays: list[Vectors] = []
    for index, value in enumerate(values):
        try:
            array = tensor(value).astype(np.float32)
        except ValueError as error:
            raise WrongType("is no tensor", index, field=(name, index), allowed=str(error)) from None
        if array.ndim not in (1, 2) or not array.size or (arrays and array.ndim != arrays[0].ndim):
            shape = list(array.shape)
            allowed = "send vectors, [width], or lists of vectors, [n, width], and not both"
            raise WrongShape(f"has shape {shape}", index, field=(name, index), allowed=allowed)
        arrays.append(array)
    return arrays


def _check(queries: list[Vectors], documents: list[Vectors]) -> None:
    """Raise BadRequest unless all vectors are of one form and width and are not too many."""
    form = queries[0].ndim, queries[0].shape[-1]
    for name, arrays in (("queries", queries), ("documents", documents)):
        for index, array in enumerate(arrays):
            if (array.ndim, array.shape[-1]) != form:
                allowed = f"the first query has {list(queries[0].shape)}: all have as many dimensions and its width"
                raise WrongShape(f"has shape {list(array.shape)}", index, field=(name, index), allowed=allowed)
    scores = len(queries) * len(documents)
    products = sum(array.size for array in queries) * sum(array.size for array in documents) // form[1]
    if scores > MOST_SCORES or products > MOST_PRODUCTS:
        raise TooLarge(
            f"{len(queries)} queries with {len(documents)} documents are {scores} scores of {products} products",
            allowed=f"this server computes {MOST_SCORES} scores and {MOST_PRODUCTS} products a request",
            remedy="send fewer documents at a time",
        )
