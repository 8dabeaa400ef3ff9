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
        rows: rows of the word table's gradient: touched (read or a target), all, or rising ids.
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
        BadRequest: the request has no side, or the model's tables do not allow it.
    """
    card, loss, layer = table.model.card, request.loss, request.layer
    try:
        tables, parameters = ({}, {}) if layer is None else _input_side(table.model, layer, request.padding)
        output = (
            None
            if loss is None
            else output_side(table.rows, loss.hidden, loss.targets, loss.reduction, _rule(table), check)
        )
    except BadQuery as error:
        raise BadRequest(str(error)) from None
    outputs = _word_outputs(table, tables.pop(table.name, None), output, loss)
    kinds = {AddPosition: "position", AddType: "segment"}
    names = {step.table: kinds[type(step)] for step in card.recipe if isinstance(step, AddPosition | AddType)}
    for name, sparse in tables.items():
        outputs |= _sparse(names.get(name, name), sparse)
    outputs |= {f"parameter/{name}": Output.of(value) for name, value in parameters.items()}
    facts: dict[str, Any] = {"model": card.name}
    facts["tables"] = {"token": table.name} | {names.get(name, name): name for name in tables}
    notes: tuple[str, ...] = ()
    if output is not None and loss is not None:
        outputs["hidden_gradient"] = Output.of(output.hidden_gradient)
        facts |= {"loss": output.loss, "reduction": loss.reduction}
        if card.head is None:
            notes = (f"{card.name} was exported without an output head: {table.name} is taken for its matrix",)
    if not outputs:
        raise BadRequest(
            "every token is the padding row, which has no gradient", remedy='send others or "padding": false'
        )
    return Table("gradient", "exact", outputs, facts, notes)


def _input_side(model: Model, layer: Layer, padding: bool) -> tuple[dict[str, SparseRows], dict[str, Floats]]:
    """Return the gradients of the tables that the tokens read, and of the layer's other parameters."""
    card = model.card
    if not card.recipe:
        raise BadQuery(f"{card.name} has no input layer: its vectors are rows of the table")
    packed = pack(card, layer.sequences)
    mask = None if packed.mask is None else packed.mask.astype(bool)
    inputs = Packed(packed.ids, packed.positions, packed.types, mask, packed.extras or {})
    rows = padding_rows(card.family, card.recipe, card.position, card.pad_id) if padding else {}
    tables, parameters = backward(card.recipe, model.weights, inputs, layer.upstream, rows)
    return {name: each for name, each in tables.items() if len(each.indices)}, parameters


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
    return {
        f"{name}_indices": Output.of(sparse.indices, "int64"),
        f"{name}_rows": Output.of(sparse.rows),
    }
