"""A row of HEADS fitted to one checkpoint: the output head with on-disk names and its numbers, or why there is none.

The rule of tying: the head's own tensor if the file holds one, whatever the config says; else, where the config ties
them, the input table; else the checkpoint has no head, and is exported without. Reads no tensor.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from models.checkpoints.checkpoint import Checkpoint
from models.errors import BadCheckpoint
from models.families import ACTIVATIONS
from models.families.heads import (
    HEADS,
    PLAIN,
    Row,
    Values,
)
from models.families.recipe import Activation, LayerNorm, Linear

TIE = "tie_word_embeddings"
_NORM_COST, _ACTIVATION_COST = 8, 8  # operations a value, as in cost.py


@dataclass(frozen=True, slots=True)
class Transform:
    """norm(activation(dense(h))), between the hidden states and the matrix."""

    dense: Linear
    activation: Activation
    norm: LayerNorm


@dataclass(frozen=True, slots=True)
class Head:
    """logits = cap * tanh(after * (transform(h) * before @ matrix.T + bias) / cap), for the card.

    width, inner   columns of the hidden states, and of the matrix
    vocab_size     rows of the matrix
    matrix, bias   tensors of the weights file
    tied           the matrix is the table of an input layer
    cap            None: there is none
    """

    width: int
    inner: int
    vocab_size: int
    matrix: str
    tied: bool
    bias: str | None
    transform: Transform | None
    before: float
    after: float
    cap: float | None

    @property
    def tensors(self) -> tuple[str, ...]:
        """Every tensor the head reads, each once, the matrix first."""
        names = [self.matrix, self.bias]
        if self.transform:
            dense, norm = self.transform.dense, self.transform.norm
            names += [dense.weight, dense.bias, norm.weight, norm.bias]
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def flops_per_row(self) -> int:
        """Operations for the logits of one row; a multiply and an add count as two."""
        total = self.vocab_size * (2 * self.inner + (self.bias is not None))
        if self.transform:
            total += self.inner * (2 * self.width + 1 + _ACTIVATION_COST + _NORM_COST)
        return total


class Headless(Exception):
    """Why a checkpoint has no output head; a reason for its card, not a fault."""


def head_of(
    checkpoint: Checkpoint, model_type: str, table: str | None, assumed: bool = False
) -> tuple[Head | None, str | None]:
    """The head of a checkpoint, or None and why it has none.

    model_type  of its text, where the checkpoint's own is of several towers
    table       the word table of its input layer, as the file calls it; None: it has none
    assumed     take a model_type no row knows for one whose logits are the rows times a matrix
    raises      BadCheckpoint where a head is there and is not what its config and its shapes promise
    """
    row = HEADS.get(checkpoint.model_type) or HEADS.get(model_type) or (PLAIN if assumed else None)
    if row is None:
        near = get_close_matches(checkpoint.model_type, HEADS, 1)
        hint = f" (the nearest is {near[0]})" if near else ""
        return None, f"how model_type {checkpoint.model_type!r} makes logits is not known here{hint}"
    data = _merged(checkpoint.config, owns_tie=checkpoint.model_type in HEADS)
    reason = ""
    while row is not None:
        try:
            return _fit(row, Values(data, row.defaults), checkpoint, table), None
        except Headless as why:
            reason, row = reason or str(why), row.instead
    return None, reason


def from_json(data: Mapping[str, Any] | None) -> Head | None:
    """The inverse of asdict; KeyError or TypeError where the data is no head."""
    if data is None:
        return None
    transform = data["transform"]
    if transform is not None:
        dense, norm = Linear(**transform["dense"]), LayerNorm(**transform["norm"])
        transform = Transform(dense, transform["activation"], norm)
    return Head(**{**data, "transform": transform})


def _merged(config: Mapping[str, Any], owns_tie: bool) -> dict[str, Any]:
    """A config and, behind it, that of its text or decoder, which says nothing of the tie where the outer class does.

    source   transformers 5.23, modeling_utils.get_expanded_tied_weights_keys: the outermost config's flag
    """
    inner: Any = next((config[name] for name in ("text_config", "decoder") if isinstance(config.get(name), dict)), {})
    return {key: value for key, value in inner.items() if not owns_tie or key != TIE} | dict(config)


def _fit(row: Row, values: Values, checkpoint: Checkpoint, table: str | None) -> Head:
    for key, only in row.refused.items():
        if (value := values.get(key)) not in (None, only):
            raise Headless(f"its config says {key} {value!r}, and only {only!r} is computed")
    matrix, tied = _matrix(row, values, checkpoint, table)
    vocab_size, inner = _shape(checkpoint, matrix, 2)
    transform = _transform(row, values, checkpoint, inner)
    width = _shape(checkpoint, transform.dense.weight, 2)[1] if transform else inner
    bias = _bias(row, values, checkpoint, vocab_size)
    cap = row.cap if row.cap and values.get(row.cap) is not None else None
    return Head(
        width=width,
        inner=inner,
        vocab_size=vocab_size,
        matrix=matrix,
        tied=tied,
        bias=bias,
        transform=transform,
        before=row.before(values, width),
        after=row.after(values),
        cap=values.number(cap) if cap else None,
    )


def _matrix(row: Row, values: Values, checkpoint: Checkpoint, table: str | None) -> tuple[str, bool]:
    """The output matrix by the rule of tying, and whether it is an input table."""
    if own := _find(row.matrix, checkpoint):
        return own, False
    if row.tie == "forced" or (row.tie == "config" and values.get(TIE)):
        if (tied_to := _find(row.tied_to, checkpoint) or table) is None:
            raise Headless("the output matrix is tied to a word table, which the checkpoint does not hold")
        return tied_to, True
    why = "its family never ties them" if row.tie == "never" else f"its config does not tie them ({TIE})"
    raise Headless(f"the checkpoint holds no {row.matrix[0]}, and {why}")


def _bias(row: Row, values: Values, checkpoint: Checkpoint, vocab_size: int) -> str | None:
    if not row.bias or (row.bias_if and not values.get(row.bias_if)):
        return None
    found = _find(row.bias, checkpoint)
    if found is None:
        if row.needs_bias:
            raise Headless(f"the checkpoint holds no {row.bias[-1]}: it was saved without its language model's head")
        return None
    shape = checkpoint.tensors[found].shape
    if shape not in ((vocab_size,), (1, vocab_size)):  # BART's final_logits_bias is a row
        raise BadCheckpoint(f"{found!r} has shape {list(shape)}, but the output matrix has {vocab_size} rows")
    return found


def _transform(row: Row, values: Values, checkpoint: Checkpoint, inner: int) -> Transform | None:
    if not row.dense:
        return None
    names = {}
    for stem, kind in ((row.dense, "dense"), (row.norm, "norm")):
        for part in ("weight", "bias"):
            found = _find(_spellings(f"{stem}.{part}"), checkpoint)
            if found is None and f"{stem}.{part}" not in row.spare:
                raise Headless(f"the checkpoint holds no {stem}.{part}: it was saved without its language model's head")
            names[kind, part] = found
    _check(checkpoint, names, inner)
    weight, norm = str(names["dense", "weight"]), str(names["norm", "weight"])
    eps = values.number(row.eps) if isinstance(row.eps, str) else row.eps
    return Transform(
        Linear(weight, names["dense", "bias"]), _activation(row, values), LayerNorm(norm, names["norm", "bias"], eps)
    )


def _activation(row: Row, values: Values) -> Activation:
    name = row.activation.removeprefix("=") if row.activation.startswith("=") else values.get(row.activation)
    if name not in ACTIVATIONS:
        raise BadCheckpoint(f"config.json says {row.activation} {name!r}; it must be one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _check(checkpoint: Checkpoint, names: Mapping[tuple[str, str], str | None], inner: int) -> None:
    for (kind, part), name in names.items():
        if name is None:
            continue
        shape = _shape(checkpoint, name, 2 if (kind, part) == ("dense", "weight") else 1)
        if shape[0] != inner:
            raise BadCheckpoint(f"{name!r} has shape {list(shape)}, but the output matrix is {inner} columns wide")


def _shape(checkpoint: Checkpoint, name: str, dimensions: int) -> tuple[int, ...]:
    shape = checkpoint.tensors[name].shape
    if len(shape) != dimensions or 0 in shape:
        raise BadCheckpoint(f"{name!r} has shape {list(shape)}; it must have {dimensions} dimensions, none of them 0")
    return shape


def _spellings(name: str) -> tuple[str, ...]:
    """The name, and that of files converted from TensorFlow long ago."""
    return name, name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def _find(names: Iterable[str], checkpoint: Checkpoint) -> str | None:
    """What the file calls the first of the names that it holds, by itself or, once, behind a prefix."""
    for name in names:
        if name in checkpoint.tensors:
            return name
        behind = [held for held in checkpoint.tensors if held.endswith("." + name)]
        if len(behind) == 1:
            return behind[0]
    return None
