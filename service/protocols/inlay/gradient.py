"""POST /models/{name}/gradient: gradients of the tables from that of the input layer's output; of a tied table, in all.

token_indices and token_rows      the word table: rising ids and their rows, repeated ids summed
position_..., segment_...         the same of the other tables; a table no token reads in has none
parameter/NAME                    whole gradients of norms and projections of the input layer
hidden_gradient                   with targets: the loss's gradient of `hidden`

With `hidden` and `targets` the word table's rows hold the output side too: d cross-entropy / d table.
"""

from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from models.families.extra_inputs import SENT
from models.tables.cross_entropy import IGNORED
from service.context import ServiceContext
from service.embedding import validation as sequences
from service.embedding.gradients import (
    ROWS,
    Asked,
    Layer,
    Loss,
    gradients,
)
from service.embedding.requests import Ids
from service.embedding.word_table import WordTable, word_table
from service.errors import BadRequest
from service.http.endpoint import StarletteEndpoint as Endpoint
from service.protocols.inlay.positions import answers, fields
from service.protocols.inlay.positions import parsing as asked
from service.protocols.inlay.positions.fields import (
    INTEGERS,
    choice,
    read,
    switch,
)
from service.protocols.inlay.positions.parameters import ANSWER, Parameters, exactly
from service.protocols.inlay.positions.table_call import Call
from service.scheduling.serial_executor import Turns

PATH = "/models/{name}/gradient"
LISTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids", *SENT)
_ROWS_OF_INTEGERS = {"type": "array", "items": {"anyOf": [{"type": "integer"}, INTEGERS]}}
_SEQUENCES = "a list, or lists of one length, a sequence each"


def _integers(about: str) -> Any:
    return read(fields.rows_of_integers, _ROWS_OF_INTEGERS, about, None)


def chosen_rows(value: Any) -> Any:
    """`touched`, `all`, or ids; raises ValueError."""
    return value if value in ROWS else np.unique(fields.integers(value, 1))


FIELDS: Parameters = {
    "input_ids": _integers(f"what the input layer read: {_SEQUENCES}"),
    "lengths": _integers("of the sequences, where input_ids is one list that holds several"),
    "attention_mask": _integers("1 for a token, 0 for padding; as many as input_ids"),
    "token_type_ids": _integers("segments; as many as input_ids"),
    "position_ids": _integers("positions, instead of the family's own; as many as input_ids"),
    "task_type_ids": _integers("ERNIE's tasks; as many as input_ids"),
    "langs": _integers("XLM's languages; as many as input_ids"),
    "bbox": _integers("LayoutLM's boxes, four integers a token: [tokens, 4]"),
    "gradient": read(fields.floats, fields.TENSOR, "the loss's gradient of input_embeddings [..., tokens, d]", None),
    "hidden": read(
        fields.floats,
        fields.TENSOR,
        "what the tied output matrix is multiplied with, behind the head's own dense layer and norm [..., d]",
        None,
    ),
    "targets": _integers(f"the id each row of hidden should give; {IGNORED} where there is no loss"),
    "reduction": choice(("mean", "sum"), "of the cross-entropy over the targets", "mean"),
    "rows": read(
        chosen_rows,
        {"anyOf": [{"enum": list(ROWS)}, INTEGERS]},
        "of the word table: touched: those of input_ids and targets. all: every row, streamed. Or a list of ids",
        "touched",
    ),
    "padding": switch("the padding row has no gradient of the input side, where the family has padding_idx", True),
}
EXAMPLES: dict[str, dict[str, Any]] = {
    "input_side": {"input_ids": [1, 2, 1], "gradient": [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]},
    "output_side": {"hidden": [[0.5, 0.8]], "targets": [1], "rows": [0, 1, 2]},
}
ANSWERED: Parameters = {name: field for name, field in ANSWER.items() if name != "arithmetic"}
BODY = exactly(
    "Gradient",
    "What the input layer read and the gradient of what it gave, or a loss, or both.",
    {**FIELDS, **ANSWERED},
)


class Gradient:
    """Answers for every model."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._turns = Turns("gradient", "gradients")

    async def answer(self, request: Request) -> Response:
        """The gradients, in the format the caller accepts."""
        table = word_table(self._context.registry.get(request.path_params["name"]))
        wanted = await asked.of_body(BODY, request)
        form = answers.wanted(wanted, request)
        found = await self._turns.run(partial(gradients, table, _asked(table, wanted)))
        asked_for = {name: getattr(wanted, name) for name in FIELDS} | {"table": table.identity}
        call = Call(lambda **_: found, asked_for)  # what decides its bytes, so that its tag is its own
        return await answers.answer(request, self._context.tables, call, form, None)


def _asked(table: WordTable, wanted: Any) -> Asked:
    """What the parameters say; raises BadRequest or BadInput."""
    for first, second in (("input_ids", "gradient"), ("hidden", "targets")):
        if (getattr(wanted, first) is None) != (getattr(wanted, second) is None):
            raise BadRequest(f"{first} and {second} go together: send both or neither")
    if wanted.input_ids is None and wanted.hidden is None:
        raise BadRequest(
            "there is nothing to differentiate: send input_ids and gradient, or hidden and targets, or all"
        )
    if wanted.hidden is None and not (isinstance(wanted.rows, str) and wanted.rows == "touched"):
        raise BadRequest("rows are chosen of the output side, which is dense: send hidden and targets, or leave it out")
    layer = None if wanted.input_ids is None else _layer(table, wanted)
    loss = None if wanted.hidden is None else _loss(table, wanted)
    return Asked(layer, loss, wanted.padding)


def _layer(table: WordTable, wanted: Any) -> Layer:
    card, upstream = table.model.card, wanted.gradient.astype(np.float64)
    read = _sequences(wanted)
    count = sum(len(each.ids) for each in read)
    checked = [sequences.check(card, index, each, False, "right") for index, each in enumerate(read)]
    if upstream.ndim < 2 or upstream.shape[-1] != card.hidden_size or upstream.size != count * card.hidden_size:
        raise BadRequest(
            f"gradient has shape {list(upstream.shape)}; {count} tokens of {card.name} take "
            f"[{count}, {card.hidden_size}]"
        )
    return Layer(checked, upstream.reshape(count, -1))


def _sequences(wanted: Any) -> list[Ids]:
    """What came, a sequence each."""
    every = {name: getattr(wanted, name) for name in LISTS if getattr(wanted, name) is not None}
    ids = every["input_ids"]
    for name, each in every.items():
        fits = (ids.size, 4) if name == "bbox" else ids.shape
        if each.shape != fits:
            raise BadRequest(
                f"{name} has shape {list(each.shape)}; with input_ids of {list(ids.shape)} it has {list(fits)}"
            )
    lengths = np.full(len(ids), ids.shape[1]) if wanted.lengths is None else wanted.lengths.reshape(-1)
    if (lengths < 1).any() or lengths.sum() != ids.size:
        raise BadRequest(f"lengths sum to {lengths.sum()}; they are 1 or more and sum to {ids.size}, the tokens")
    ends = np.cumsum(lengths)[:-1]
    split = {name: np.split(each if name == "bbox" else each.reshape(-1), ends) for name, each in every.items()}
    return [
        Ids(
            each["input_ids"],
            each.get("attention_mask"),
            each.get("token_type_ids"),
            each.get("position_ids"),
            {name: each[name] for name in SENT if name in each} or None,
        )
        for each in ({name: parts[index] for name, parts in split.items()} for index in range(len(lengths)))
    ]


def _loss(table: WordTable, wanted: Any) -> Loss:
    hidden, targets, width = wanted.hidden.astype(np.float64), wanted.targets.reshape(-1), table.rows.shape[1]
    if not hidden.size or hidden.shape[-1] != width or hidden.size // width != len(targets):
        raise BadRequest(
            f"hidden has shape {list(hidden.shape)}; {len(targets)} targets and {table.name}, {width} wide, "
            f"take [{len(targets)}, {width}]"
        )
    for target in np.unique(targets[targets != IGNORED]):
        table.checked(int(target), "a target")
    if not isinstance(wanted.rows, str):
        for row in (wanted.rows[0], wanted.rows[-1]):
            table.checked(int(row), "a row")
    return Loss(hidden.reshape(-1, width), targets, wanted.reduction, wanted.rows)


def routes(context: ServiceContext) -> APIRouter:
    """The route; table_docs.py describes it."""
    endpoint = Endpoint(PATH, Gradient(context).answer, context)
    return APIRouter(routes=[Route(PATH, endpoint, methods=["POST"], include_in_schema=False)])
