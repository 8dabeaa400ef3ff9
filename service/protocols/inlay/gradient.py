"""POST /models/{name}/gradient: gradients of tables, from the gradient of the input layer's output, a loss, or both.

Outputs of a response:
    token_indices, token_rows: the word table's: rising ids and their rows, those of repeated ids summed.
    position_..., segment_...: the same of the other tables; a table that no token reads has none.
    parameter/NAME: whole gradients of norms and projections of the input layer.
    hidden_gradient: gradient of the loss by `hidden`, if there are targets.

With `hidden` and `targets` the word table's rows hold the output side too: d cross-entropy / d table.
"""

from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import PlainValidator, WithJsonSchema

from models.recipes.extra_inputs import SENT
from models.tables.cross_entropy import IGNORED
from service.context import ServiceContext
from service.embedding.gradients import ROWS, GradientRequest, Layer, Loss, gradients
from service.embedding.position_tables import TableCall
from service.embedding.requests import Ids
from service.embedding.tokenize import validation
from service.embedding.word_table import WordTable
from service.errors import ConflictingFields, MissingField, WrongShape
from service.http.parameter_types import (
    INTEGERS,
    Int64s,
    IntegerRows,
    Tensor,
    TypedArrayOptions,
    described,
    integers,
    one_of,
    switch,
)
from service.request_context import RequestContext

LISTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids", *SENT)
COPIES, VALUE_BYTES = 4, 8  # of what was sent, in float64, until the answer has left


def _read_rows(value: Any) -> str | Int64s:
    """Return `touched`, `all`, or distinct ids in rising order; raise ValueError for anything else."""
    if isinstance(value, str) and value in ROWS:
        return value
    ids: Int64s = np.unique(integers(value, 1))
    return ids


def _per_token(meaning: str) -> Any:
    return described(f"{meaning}; as many as input_ids", None)


class GradientParameters(TypedArrayOptions):
    """Inputs of the input layer with the gradient of its output, or a loss, or both."""

    input_ids: IntegerRows | None = described(
        "what the input layer read; a list, or lists of one length, a sequence each", None
    )
    lengths: IntegerRows | None = described("of the sequences, where input_ids is one list that holds several", None)
    attention_mask: IntegerRows | None = _per_token("1 for a token, 0 for padding")
    token_type_ids: IntegerRows | None = _per_token("segments")
    position_ids: IntegerRows | None = _per_token("positions, instead of the family's own")
    task_type_ids: IntegerRows | None = _per_token("ERNIE's tasks")
    langs: IntegerRows | None = _per_token("XLM's languages")
    bbox: IntegerRows | None = described("LayoutLM's boxes, four integers a token: [tokens, 4]", None)
    gradient: Tensor | None = described("the loss's gradient of input_embeddings [..., tokens, d]", None)
    hidden: Tensor | None = described(
        "what the tied output matrix is multiplied with, behind the head's own dense layer and norm [..., d]", None
    )
    targets: IntegerRows | None = described(
        f"the id each row of hidden should give; {IGNORED} where there is no loss", None
    )
    reduction: Literal["mean", "sum"] = one_of(("mean", "sum"), "of the cross-entropy over the targets", "mean")
    rows: Annotated[
        str | Int64s, PlainValidator(_read_rows), WithJsonSchema({"anyOf": [{"enum": list(ROWS)}, INTEGERS]})
    ] = described(
        "of the word table: touched: those of input_ids and targets. all: every row, streamed. Or a list of ids",
        "touched",
    )
    padding: bool = switch("the padding row has no gradient of the input side, where the family has padding_idx", True)


async def gradient_call(
    context: ServiceContext, table: WordTable, parameters: GradientParameters, call: RequestContext
) -> TableCall:
    """Return the call that makes the table of gradients, which are computed already."""
    sent = sum([each.size for each in (parameters.gradient, parameters.hidden) if each is not None])
    context.budget.reserve(COPIES * VALUE_BYTES * sent, call)
    result = await context.computations.run("gradient", partial(gradients, table, _gradient_request(table, parameters)))
    read = parameters.targets if parameters.input_ids is None else parameters.input_ids
    context.metrics.used(call, table.model.card.name, 0 if read is None else read.size)
    names = GradientParameters.model_fields.keys() - TypedArrayOptions.model_fields.keys()
    decisive = {name: getattr(parameters, name) for name in names} | {"table": table.identity}
    return TableCall(lambda **_: result, decisive)


def _gradient_request(table: WordTable, parameters: GradientParameters) -> GradientRequest:
    """Return the GradientRequest of the parameters; raise BadRequest or BadInput if they contradict each other."""
    for first, second in (("input_ids", "gradient"), ("hidden", "targets")):
        if (getattr(parameters, first) is None) != (getattr(parameters, second) is None):
            raise MissingField(f"{first} and {second} go together", remedy="send both or neither")
    if parameters.input_ids is None and parameters.hidden is None:
        raise MissingField(
            "there is nothing to differentiate", remedy="send input_ids and gradient, or hidden and targets, or all"
        )
    if parameters.hidden is None and not (isinstance(parameters.rows, str) and parameters.rows == "touched"):
        raise ConflictingFields(
            "are chosen of the output side, which is dense",
            field=("rows",),
            remedy="send hidden and targets, or leave it out",
        )
    return GradientRequest(_layer(table, parameters), _loss(table, parameters), parameters.padding)


def _layer(table: WordTable, parameters: GradientParameters) -> Layer | None:
    if parameters.input_ids is None or parameters.gradient is None:
        return None
    card, upstream = table.model.card, parameters.gradient.astype(np.float64)
    sequences = _sequences(parameters, parameters.input_ids)
    count = sum(len(sequence.ids) for sequence in sequences)
    checked = [validation.check(card, index, sequence, False, "right") for index, sequence in enumerate(sequences)]
    if upstream.ndim < 2 or upstream.shape[-1] != card.hidden_size or upstream.size != count * card.hidden_size:
        raise WrongShape(
            f"has shape {list(upstream.shape)}",
            field=("gradient",),
            allowed=f"{count} tokens of {card.name} take [{count}, {card.hidden_size}]",
        )
    return Layer(checked, upstream.reshape(count, -1))


def _sequences(parameters: GradientParameters, ids: Int64s) -> list[Ids]:
    """Return the inputs, split into sequences."""
    lists = {name: getattr(parameters, name) for name in LISTS if getattr(parameters, name) is not None}
    for name, values in lists.items():
        shape = (ids.size, 4) if name == "bbox" else ids.shape
        if values.shape != shape:
            raise WrongShape(
                f"has shape {list(values.shape)}",
                field=(name,),
                allowed=f"with input_ids of {list(ids.shape)} it has {list(shape)}",
            )
    lengths = np.full(len(ids), ids.shape[1]) if parameters.lengths is None else parameters.lengths.reshape(-1)
    if (lengths < 1).any() or lengths.sum() != ids.size:
        allowed = f"they are 1 or more and sum to {ids.size}, the tokens"
        raise WrongShape(f"sum to {lengths.sum()}", field=("lengths",), allowed=allowed)
    ends = np.cumsum(lengths)[:-1]
    split = {name: np.split(values if name == "bbox" else values.reshape(-1), ends) for name, values in lists.items()}
    return [_ids({name: parts[index] for name, parts in split.items()}) for index in range(len(lengths))]


def _ids(lists: dict[str, Int64s]) -> Ids:
    extras = {name: lists[name] for name in SENT if name in lists}
    types, positions = lists.get("token_type_ids"), lists.get("position_ids")
    return Ids(lists["input_ids"], lists.get("attention_mask"), types, positions, extras or None)


def _loss(table: WordTable, parameters: GradientParameters) -> Loss | None:
    if parameters.hidden is None or parameters.targets is None:
        return None
    hidden, targets, width = parameters.hidden.astype(np.float64), parameters.targets.reshape(-1), table.rows.shape[1]
    if not hidden.size or hidden.shape[-1] != width or hidden.size // width != len(targets):
        allowed = f"{len(targets)} targets and {table.name}, {width} wide, take [{len(targets)}, {width}]"
        raise WrongShape(f"has shape {list(hidden.shape)}", field=("hidden",), allowed=allowed)
    for target in np.unique(targets[targets != IGNORED]):
        table.checked(int(target), ("a target",))
    if not isinstance(parameters.rows, str):
        for row in (parameters.rows[0], parameters.rows[-1]):
            table.checked(int(row), ("a row",))
    return Loss(hidden.reshape(-1, width), targets, parameters.reduction, parameters.rows)
