"""Hidden states → logits of a served model, a block of rows at a time, and the likeliest tokens. Knows no protocol.

Logits are the engine's float32; the softmax over the whole vocabulary is taken of them in float64.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import HEAD
from models.families.head_fitting import Head
from models.positions.table import Arithmetic, Output, Table
from models.tables.row_blocks import Check, never_cancel
from service.embedding.model import Model
from service.errors import BadRequest, NotFound

BLOCK_VALUES = 1 << 23  # logits made at a time: 32 MB
OUTPUTS = ("logits", "probabilities", "log_probabilities")

Rows = NDArray[np.float64]


def head_of(model: Model) -> Head:
    """The output head of a served model; raises NotFound that says why it has none."""
    card = model.card
    if card.head is not None:
        return card.head
    why = card.headless
    if why is None and card.weights is None:
        why = "it was adopted as ONNX; export its checkpoint"
    elif why is None:
        why = f"a {card.family} gives none" if card.image or card.static else "export it again"
    raise NotFound(f"{card.name} has no output head: {why}")


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Hidden states whose logits are wanted.

    hidden       finite float32 [N, width], N at least 1
    lead         the shape they came in, without the last axis
    temperature  what logits are divided by
    """

    model: Model
    head: Head
    hidden: NDArray[np.float32]
    lead: tuple[int, ...]
    temperature: float

    @property
    def identity(self) -> dict[str, Any]:
        """What decides every value."""
        card = self.model.card
        hashes = tuple(file.sha256 for file in card.files.values())
        told = {"model": card.name, "files": hashes, "device": self.model.engine.device}
        return told | {"hidden": self.hidden, "lead": self.lead, "temperature": self.temperature}

    @property
    def facts(self) -> dict[str, Any]:
        """What is told beside the values."""
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
        """Rows the engine is given at a time."""
        return max(1, BLOCK_VALUES // self.head.vocab_size)

    def logits(self, start: int, stop: int) -> NDArray[np.float32]:
        """Of rows [start, stop), before the temperature: float32 [n, V]."""
        (found,) = self.model.engine.run(HEAD, {"hidden": self.hidden[start:stop]}, ("logits",))
        return found

    def table(self, outputs: Mapping[str, Output], **facts: Any) -> Table:
        """The outputs, and how they were made."""
        arithmetic: Arithmetic = "exact" if "float64" in self.model.engine.device else "parity"
        return Table("logits", arithmetic, outputs, self.facts | facts)


def asked(model: Model, sent: NDArray[Any], temperature: float) -> Asked:
    """Checked hidden states of any float dtype, [..., width].

    raises   NotFound for a model without a head; BadRequest for another width, no row, or values beyond float32
    """
    head = head_of(model)
    if not sent.ndim or sent.shape[-1] != head.width:
        raise BadRequest(
            f"hidden has shape {list(sent.shape)}; the head of {model.card.name} reads [..., {head.width}]"
        )
    if not sent.size:
        raise BadRequest(f"hidden has shape {list(sent.shape)}: send at least one row")
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(sent.reshape(-1, head.width).astype(np.float32))
    if not np.isfinite(rows).all():
        raise BadRequest("hidden holds a value beyond float32: send finite numbers up to 3.4e38")
    if not 0 < temperature < float("inf"):
        raise BadRequest(f"temperature is {temperature}; it must be a number above 0")
    return Asked(model, head, rows, sent.shape[:-1], temperature)


def whole(wanted: Asked, output: str) -> Table:
    """One of OUTPUTS for every token, [..., V]; computed when its rows are asked for."""
    shape = (*wanted.lead, wanted.head.vocab_size)
    made = _FORMS[output]
    blocks = _Blocks(wanted)

    def rows(start: int, stop: int) -> NDArray[Any]:
        return np.stack([made(blocks.row(index), wanted.temperature) for index in range(start, stop)])

    return wanted.table({output: Output(shape, rows)})


def best(wanted: Asked, top_k: int, check: Check = never_cancel) -> Table:
    """The likeliest tokens of each row, best first, of equal ones the lower id first.

    returns  ids int64, logits, probabilities and log_probabilities [..., top_k]; facts tokens and texts, where the
             model has a tokenizer: the vocabulary's entries and what they decode to
    raises   BadRequest: top_k beyond the vocabulary, logits that overflow float32; what `check` raises
    """
    if not 1 <= top_k <= wanted.head.vocab_size:
        raise BadRequest(f"top_k is {top_k}; {wanted.model.card.name} has {wanted.head.vocab_size} tokens: 1 to that")
    ids = np.empty((len(wanted.hidden), top_k), np.int64)
    values = {name: np.empty(ids.shape) for name in OUTPUTS}
    for start in range(0, len(ids), wanted.block_rows):
        check()
        for row, logits in enumerate(wanted.logits(start, min(start + wanted.block_rows, len(ids))), start):
            if not np.isfinite(logits).all():
                raise BadRequest(f"the logits of row {row} overflow float32: its hidden states are too large")
            ids[row] = _largest(logits, top_k)
            for name, made in _FORMS.items():
                values[name][row] = made(logits, wanted.temperature)[ids[row]]
    outputs = {"ids": _output(ids, wanted.lead, "int64")}
    outputs |= {name: _output(array, wanted.lead, "float") for name, array in values.items()}
    return wanted.table(outputs, top_k=top_k, **_named(wanted, ids))


def _largest(logits: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Where the `count` largest stand, the largest first, of equal ones the first."""
    bound = np.partition(logits, len(logits) - count)[len(logits) - count]
    above = np.flatnonzero(logits > bound)
    equal = np.flatnonzero(logits == bound)[: count - len(above)]
    found = np.concatenate([above, equal])
    return found[np.lexsort((found, -logits[found]))]


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
    """Scaled logits below the largest, which is 0; one that overflows is -inf, of probability 0."""
    with np.errstate(over="ignore"):
        return np.asarray((logits - np.float64(logits.max())) / temperature)


_FORMS: dict[str, Callable[[NDArray[np.float32], float], Rows]] = {
    "logits": _scaled,
    "probabilities": _probabilities,
    "log_probabilities": _log_probabilities,
}


class _Blocks:
    """Logits row by row, made in blocks: the last block is kept, for rows are taken in order."""

    def __init__(self, wanted: Asked) -> None:
        self._wanted = wanted
        self._lock = threading.Lock()
        self._start = 0
        self._rows = np.empty((0, 0), np.float32)

    def row(self, index: int) -> NDArray[np.float32]:
        """One row, before the temperature."""
        step = self._wanted.block_rows
        with self._lock:
            if not self._start <= index < self._start + len(self._rows):
                self._start = index // step * step
                stop = min(self._start + step, len(self._wanted.hidden))
                self._rows = self._wanted.logits(self._start, stop)
            found: NDArray[np.float32] = self._rows[index - self._start]
            return found


def _output(array: NDArray[Any], lead: tuple[int, ...], kind: Any) -> Output:
    return Output((*lead, array.shape[-1]), lambda start, stop: array[start:stop], kind)


def _named(wanted: Asked, ids: NDArray[np.int64]) -> dict[str, Any]:
    """The tokens and their texts in the shape of the ids; none without a tokenizer."""
    tokenizer = wanted.model.tokenizer
    if tokenizer is None:
        return {}
    known = {int(id_): (tokenizer.token(int(id_)), tokenizer.text(int(id_))) for id_ in np.unique(ids)}
    names = [[known[id_] for id_ in row] for row in ids.tolist()]
    shape = (*wanted.lead, ids.shape[-1])
    return {
        what: np.array([[pair[place] for pair in row] for row in names], object).reshape(shape).tolist()
        for place, what in enumerate(("tokens", "texts"))
    }
