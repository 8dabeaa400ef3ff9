"""Logits of hidden states by a served model's head, a block of rows at a time, and the tokens of the largest.

Logits are the engine's float32; the softmax over the whole vocabulary is taken of them in float64.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import HEAD
from models.positions.arithmetic import Arithmetic
from models.positions.table import Output, Table
from models.recipes.heads import OutputHead
from models.tables.row_blocks import Check
from service.embedding.model import Model
from service.errors import BadRequest, NotFound, OutOfRange, WrongShape

BLOCK_VALUES = 1 << 21  # logits computed at a time: 8 MiB
TOP_BYTES = 128  # of memory for each of the largest logits: id, three float64, token and text
OUTPUTS = ("logits", "probabilities", "log_probabilities")

Rows = NDArray[np.float64]


def head_of(model: Model) -> OutputHead:
    """Return the output head of a served model; raise NotFound, with the reason, if it has none."""
    card = model.card
    if card.head is not None:
        return card.head
    why = card.no_head_reason
    if why is None and card.weights is None:
        why = "it was adopted as ONNX; export its checkpoint"
    elif why is None:
        why = f"a {card.family} gives none" if not card.recipe else "export it again"
    raise NotFound(f"{card.name} has no output head", remedy=why)


@dataclass(frozen=True, slots=True, eq=False)
class HiddenStates:
    """Checked hidden states, and the head that computes their logits.

    Args:
        hidden: finite float32 [N, width], N at least 1.
        lead: the shape they came in, without the last axis.
        temperature: the divisor of logits.
    """

    model: Model
    head: OutputHead
    hidden: NDArray[np.float32]
    lead: tuple[int, ...]
    temperature: float

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that determines the values of the logits; part of the ETag."""
        card = self.model.card
        hashes = tuple(file.sha256 for file in card.files.values())
        source = {"model": card.name, "files": hashes, "device": self.model.engine.device}
        return source | {"hidden": self.hidden, "lead": self.lead, "temperature": self.temperature}

    @property
    def facts(self) -> dict[str, Any]:
        """Facts for the response, beside the values."""
        return {
            "model": self.model.card.name,
            "formula": "cap * tanh(after * (transform(hidden) * before @ matrix.T + bias) / cap) / temperature",
            "temperature": self.temperature,
            "vocab_size": self.head.vocab_size,
            "matrix": self.head.matrix,
            "tied": self.head.tied,
        }

    @property
    def block_rows(self) -> int:
        """The number of rows that the engine runs at a time."""
        return max(1, BLOCK_VALUES // self.head.vocab_size)

    def logits(self, block: int) -> NDArray[np.float32]:
        """Return the logits of a block of rows, before the temperature, float32 [n, V]."""
        start = block * self.block_rows
        (logits,) = self.model.engine.run(HEAD, {"hidden": self.hidden[start : start + self.block_rows]}, ("logits",))
        return logits

    def table(self, outputs: Mapping[str, Output], **facts: Any) -> Table:
        """Return the outputs and how they were computed."""
        arithmetic: Arithmetic = "exact" if "float64" in self.model.engine.device else "parity"
        return Table("logits", arithmetic, outputs, self.facts | facts)


def check_states(model: Model, hidden: NDArray[Any], temperature: float) -> HiddenStates:
    """Return hidden states of any float dtype, [..., width], checked.

    Raises:
        NotFound: the model has no head.
        BadRequest: another width, no row, values beyond float32, or a temperature that is not above 0.
    """
    head, shape = head_of(model), list(hidden.shape)
    if not shape or shape[-1] != head.width:
        allowed = f"the head of {model.card.name} reads [..., {head.width}]"
        raise WrongShape(f"has shape {shape}", field=("hidden",), allowed=allowed)
    if not hidden.size:
        raise WrongShape(f"has shape {shape}", field=("hidden",), remedy="send at least one row")
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(hidden.reshape(-1, head.width).astype(np.float32))
    if not np.isfinite(rows).all():
        raise OutOfRange("holds a value beyond float32", field=("hidden",), remedy="send finite numbers up to 3.4e38")
    if not 0 < temperature < float("inf"):
        raise OutOfRange(f"is {temperature}", field=("temperature",), allowed="it must be a number above 0")
    return HiddenStates(model, head, rows, hidden.shape[:-1], temperature)


def whole(states: HiddenStates, output: str) -> Table:
    """Return one of OUTPUTS for every token, [..., V]; its rows are computed when they are read."""
    shape, step, transform = (*states.lead, states.head.vocab_size), states.block_rows, TRANSFORMS[output]
    block = lru_cache(maxsize=1)(states.logits)  # rows are read in order, fewer at a time than the engine runs

    def rows(start: int, stop: int) -> NDArray[Any]:
        places = [divmod(index, step) for index in range(start, stop)]
        return np.stack([transform(block(number)[row], states.temperature) for number, row in places])

    return states.table({output: Output(shape, rows)})


def top(states: HiddenStates, top_k: int, check: Check) -> Table:
    """Return the tokens of the largest logits of each row, the largest first; of equal ones the lower id is first.

    Args:
        top_k: tokens of each row.
        check: called before each block of rows.

    Returns:
        ids int64, logits, probabilities and log_probabilities [..., top_k]; where the model has a tokenizer, the facts
        tokens and texts: the vocabulary's entries and what they decode to.

    Raises:
        BadRequest: top_k is beyond the vocabulary, or logits overflow float32.
    """
    if not 1 <= top_k <= states.head.vocab_size:
        allowed = f"{states.model.card.name} has {states.head.vocab_size} tokens: 1 to that"
        raise OutOfRange(f"is {top_k}", field=("top_k",), allowed=allowed)
    ids = np.empty((len(states.hidden), top_k), np.int64)
    values = {name: np.empty(ids.shape) for name in OUTPUTS}
    for block, start in enumerate(range(0, len(ids), states.block_rows)):
        check()
        for row, logits in enumerate(states.logits(block), start):
            if not np.isfinite(logits).all():
                raise BadRequest(f"the logits of row {row} overflow float32", remedy="send smaller hidden states")
            ids[row] = largest(logits, top_k)
            for name, transform in TRANSFORMS.items():
                values[name][row] = transform(logits, states.temperature)[ids[row]]
    outputs = {"ids": _output(ids, states.lead, "int64")}
    outputs |= {name: _output(array, states.lead, "float") for name, array in values.items()}
    return states.table(outputs, top_k=top_k, **_names(states, ids))


def largest(logits: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Return the indices of the `count` largest, the largest first; of equal ones the lower index is first."""
    bound = np.partition(logits, len(logits) - count)[len(logits) - count]
    above = np.flatnonzero(logits > bound)
    equal = np.flatnonzero(logits == bound)[: count - len(above)]
    places = np.concatenate([above, equal])
    return places[np.lexsort((places, -logits[places]))]


def _scaled(logits: NDArray[np.float32], temperature: float) -> Rows:
    with np.errstate(over="ignore"):
        return np.asarray(logits.astype(np.float64) / temperature)


def _log_probabilities(logits: NDArray[np.float32], temperature: float) -> Rows:
    shifted = _shifted(logits, temperature)
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def _probabilities(logits: NDArray[np.float32], temperature: float) -> Rows:
    powers = np.exp(_shifted(logits, temperature))
    return np.asarray(powers / powers.sum())


def _shifted(logits: NDArray[np.float32], temperature: float) -> Rows:
    """Return scaled logits minus the largest; one that overflows is -inf, of probability 0."""
    with np.errstate(over="ignore"):
        return np.asarray((logits - np.float64(logits.max())) / temperature)


TRANSFORMS: dict[str, Callable[[NDArray[np.float32], float], Rows]] = {
    "logits": _scaled,
    "probabilities": _probabilities,
    "log_probabilities": _log_probabilities,
}


def _output(array: NDArray[Any], lead: tuple[int, ...], kind: Any) -> Output:
    return Output((*lead, array.shape[-1]), lambda start, stop: array[start:stop], kind)


def _names(states: HiddenStates, ids: NDArray[np.int64]) -> dict[str, Any]:
    """Return the tokens and their texts in the shape of the ids; nothing without a tokenizer."""
    tokenizer = states.model.tokenizer
    if tokenizer is None:
        return {}
    known = {id_: (tokenizer.token(id_), tokenizer.text(id_)) for id_ in np.unique(ids).tolist()}
    names = np.array([known[id_] for id_ in ids.ravel().tolist()], object).reshape(*states.lead, ids.shape[-1], 2)
    return {"tokens": names[..., 0].tolist(), "texts": names[..., 1].tolist()}
