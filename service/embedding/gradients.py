"""Gradients of a served model's tables: the input side by its recipe, the output side of a tied one, and their sum.

Rows of the dense output side are computed when they are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.errors import BadQuery
from models.families.padding import padding_rows
from models.positions.table import Output, Table
from models.recipes.steps import AddPosition, AddType
from models.reference.gradient import Packed, SparseRows, backward
from models.tables.cross_entropy import IGNORED, OutputSide, Reduction, Rule, output_side
from models.tables.row_blocks import Check
from service.embedding.model import Model
from service.embedding.requests import Ids
from service.embedding.tokenize.packing import pack
from service.embedding.word_table import WordTable
from service.errors import BadRequest

ROWS = ("touched", "all")
Floats = NDArray[np.float64]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Checked sequences, and the gradient of the loss with respect to their input-layer output, float64 [N, d]."""

    sequences: Sequence[Ids]
    upstream: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """A cross-entropy, with the arguments of `cross_entropy.output_side`.

    Args:
        rows: of the word table's gradient: touched (read or a target), all, or rising ids.
    """

    hidden: Floats
    targets: Int64s
    reduction: Reduction
    rows: str | Int64s


@dataclass(frozen=True, slots=True, eq=False)
class GradientRequest:
    """The sides to differentiate, at least one.

    Args:
        padding: the padding row has no gradient of the input side.
    """

    layer: Layer | None
    loss: Loss | None
    padding: bool


def gradients(table: WordTable, request: GradientRequest, check: Check) -> Table:
    """Return every gradient, float64, by the names that protocols/inlay/gradient.py lists.

    Raises:
        BadRequest: there is none, or the model's tables do not allow it.
    """
    try:
        tables, parameters = _input_side(table.model, request)
        output = None if request.loss is None else _output_side(table, request.loss, check)
    except BadQuery as error:
        raise BadRequest(str(error)) from None
    word = tables.pop(table.name, None)
    outputs = _word_outputs(table, word, output, request.loss)
    names = _names(table.model)
    for name, sparse in tables.items():
        outputs |= _sparse(names.get(name, name), sparse)
    outputs |= {f"parameter/{name}": _array(value) for name, value in parameters.items()}
    facts: dict[str, Any] = {"model": table.model.card.name}
    facts["tables"] = {"token": table.name} | {names.get(name, name): name for name in tables}
    if output is not None and request.loss is not None:
        outputs["hidden_gradient"] = _array(output.hidden_gradient)
        facts |= {"loss": output.loss, "reduction": request.loss.reduction}
    if not outputs:
        raise BadRequest(
            "every token is the padding row, which has no gradient", remedy='send others or "padding": false'
        )
    return Table("gradient", "exact", outputs, facts, _notes(table, output))


def _names(model: Model) -> dict[str, str]:
    """Return the name of each table in a response, by the table's own name."""
    kinds = {AddPosition: "position", AddType: "segment"}
    return {step.table: kinds[type(step)] for step in model.card.recipe if isinstance(step, AddPosition | AddType)}


def _notes(table: WordTable, output: OutputSide | None) -> tuple[str, ...]:
    if output is None or table.model.card.head is not None:
        return ()
    return (f"{table.model.card.name} was exported without an output head: {table.name} is taken for its matrix",)


def _input_side(model: Model, request: GradientRequest) -> tuple[dict[str, SparseRows], dict[str, Floats]]:
    if request.layer is None:
        return {}, {}
    card = model.card
    if not card.recipe:
        raise BadQuery(f"{card.name} has no input layer: its vectors are rows of the table")
    packed = pack(card, request.layer.sequences)
    mask = None if packed.mask is None else packed.mask.astype(bool)
    inputs = Packed(packed.ids, packed.positions, packed.types, mask, packed.extras or {})
    padding = padding_rows(card.family, card.recipe, card.position, card.pad_id) if request.padding else {}
    tables, parameters = backward(card.recipe, model.weights, inputs, request.layer.upstream, padding)
    return {name: each for name, each in tables.items() if len(each.indices)}, parameters


def _output_side(table: WordTable, loss: Loss, check: Check) -> OutputSide:
    return output_side(table.rows, loss.hidden, loss.targets, loss.reduction, _rule(table), check)


def _rule(table: WordTable) -> Rule:
    """Return how the head makes logits from the word table; raise BadQuery if it has another matrix."""
    head = table.model.card.head
    if head is None:
        return Rule()
    if head.matrix != table.name:
        raise BadQuery(
            f"{table.model.card.name} is not tied: its output matrix is {head.matrix}, not {table.name}; "
            "leave out hidden and targets"
        )
    bias = None if head.bias is None else np.asarray(table.model.weights[head.bias]).reshape(-1)
    return Rule(head.before, head.after, head.cap, bias)


def _word_outputs(
    table: WordTable, word: SparseRows | None, output: OutputSide | None, loss: Loss | None
) -> dict[str, Output]:
    """Return rows of the word table's gradient: the input side alone, or both sides for some ids or for all."""
    if output is None or loss is None:
        return {} if word is None else _sparse("token", word)
    if isinstance(loss.rows, str) and loss.rows == "all":
        every = partial(_both, word, output)
        return {"token_rows": Output(table.rows.shape, lambda start, stop: every(np.arange(start, stop)))}
    ids = _touched(word, loss) if isinstance(loss.rows, str) else loss.rows
    return _sparse("token", SparseRows(ids, _both(word, output, ids)))


def _touched(word: SparseRows | None, loss: Loss) -> Int64s:
    parts = [loss.targets[loss.targets != IGNORED], *([] if word is None else [word.indices])]
    return np.unique(np.concatenate(parts))


def _both(word: SparseRows | None, output: OutputSide, ids: Int64s) -> Floats:
    """Return rows of both sides, for rising ids."""
    rows = output.rows(ids)
    if word is not None:
        _, here, there = np.intersect1d(ids, word.indices, assume_unique=True, return_indices=True)
        rows[here] += word.rows[there]
    return rows


def _sparse(name: str, sparse: SparseRows) -> dict[str, Output]:
    indices = sparse.indices[None]
    return {
        f"{name}_indices": Output(sparse.indices.shape, lambda start, stop: indices[start:stop], "int64"),
        f"{name}_rows": _array(sparse.rows),
    }


def _array(array: Floats) -> Output:
    rows = np.ascontiguousarray(array).reshape(-1, array.shape[-1])
    return Output(array.shape, lambda start, stop: rows[start:stop])
