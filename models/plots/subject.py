"""What a figure is drawn of: a table, what to call it and where its rows stand. Computes no encoding."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.positions.rope.scalings import TRAINED
from models.positions.table import Output, Positions, Table

Float64s = NDArray[np.float64]
MAX_LABEL = 160


@dataclass(frozen=True, slots=True, eq=False)
class Waves:
    """The frequencies of a table whose channels turn.

    inverse_frequency  float64 (n,), radians per position; 0: the channel stands still
    unscaled           the same before any scaling; None: there is no scaling
    attention_factor   cos and sin are multiplied by it
    trained_context    positions the model was trained with; None: not known
    """

    inverse_frequency: Float64s
    unscaled: Float64s | None = None
    attention_factor: float = 1.0
    trained_context: int | None = None

    @property
    def scaled(self) -> bool:
        """There is an unscaled form to compare with."""
        return self.unscaled is not None


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """One table to draw.

    name       in titles and legends; "": scheme and parameters, as the table's facts have them
    positions  of the table's rows (encodings) or queries (biases, masks); None: they count from 0, or from `past`
    twin       the same table in the other arithmetic: `error` draws how far apart they are
    """

    table: Table
    name: str = ""
    positions: Positions | None = None
    twin: Table | None = None

    @property
    def scheme(self) -> str:
        """Of the table."""
        return self.table.scheme

    @property
    def label(self) -> str:
        """One line for titles and legends."""
        line = self.name or described(self.table)
        return "".join(letter if letter.isprintable() else " " for letter in line)[:MAX_LABEL]

    def output(self, *names: str) -> Output:
        """The first of these outputs that the table has; raises BadEncoding where it has none."""
        for name in names:
            if name in self.table.outputs:
                return self.table.outputs[name]
        has = ", ".join(self.table.outputs)
        raise BadEncoding(f"{self.label}: this figure draws {' or '.join(names)}; the table has {has}")

    def row_positions(self, count: int) -> Positions:
        """The positions of `count` rows or queries; raises BadEncoding where another number of them was given."""
        if self.positions is None:
            past = int(self.table.facts.get("past") or 0)
            return range(past, past + count)
        if len(self.positions) != count:
            raise BadEncoding(f"{self.label}: {len(self.positions)} positions were given for {count} rows")
        return self.positions

    def waves(self) -> Waves:
        """Its frequencies, beside those it would have unscaled; raises BadEncoding where nothing turns."""
        facts = self.table.facts
        if "inverse_frequency" not in facts:
            raise BadEncoding(f"{self.label}: a {self.scheme} table has no frequencies to draw")
        found = np.asarray(facts["inverse_frequency"], np.float64)
        trained = (facts.get("parameters") or {}).get(TRAINED) or facts.get("max_position_embeddings")
        factor = float(facts.get("attention_factor", 1.0))
        return Waves(found, _unscaled(facts, len(found)), factor, int(trained) if trained else None)


def _unscaled(facts: Mapping[str, Any], count: int) -> Float64s | None:
    """theta^(-2i/r) over as many pairs as the scaled table has; None where the table is not scaled."""
    if facts.get("rope_type", "default") == "default":
        return None
    return np.asarray(float(facts["theta"]) ** (-np.arange(count) / count))


# Facts that tell two tables of a scheme apart, and how they are read out.
_WORDS: dict[str, str] = {
    "rope_type": "{}",
    "kind": "{}",
    "form": "{}",
    "order": "{}",
    "theta": "theta {}",
    "rotary_dim": "{} channels",
    "dim": "{} channels",
    "rows": "{} rows",
    "axes": "{}",
    "grid": "grid {}",
    "max_bias": "max bias {}",
    "num_buckets": "{} buckets",
    "max_distance": "max distance {}",
    "position_buckets": "{} buckets",
    "max_relative_positions": "{} relative positions",
    "past": "past {}",
}
_RENAMED = {TRAINED: "trained on"}
SCHEMES: dict[str, str] = {
    "rope": "RoPE",
    "mrope": "M-RoPE",
    "axial_rope": "Axial RoPE",
    "sinusoidal": "Sinusoidal",
    "sinusoidal_grid": "2-D sinusoidal",
    "learned": "Learned positions",
    "alibi": "ALiBi",
    "t5": "T5",
    "deberta": "DeBERTa",
    "mask": "Mask",
}


def described(table: Table) -> str:
    """Whose it is, scheme and parameters in one line, from the table's facts."""
    owner = [table.facts[fact] for fact in ("model", "preset", "layer_type") if table.facts.get(fact)]
    return f"{' '.join(owner)}: {_parameters(table)}" if owner else _parameters(table)


def _parameters(table: Table) -> str:
    facts = table.facts
    scheme = SCHEMES.get(table.scheme, table.scheme)
    if table.scheme == "mask":  # its formula is what tells it apart
        return str(facts["formula"])
    words = [form.format(_short(facts[fact])) for fact, form in _WORDS.items() if facts.get(fact)]
    if "slopes" in facts:
        words.insert(1, f"{len(facts['slopes'])} heads")
    if "bidirectional" in facts:
        words.append("bidirectional" if facts["bidirectional"] else "one direction")
    scaling = facts.get("parameters") or {}
    words += [f"{_RENAMED.get(name, name)} {_short(value)}" for name, value in scaling.items() if np.isscalar(value)]
    return f"{scheme} {', '.join(words)}".strip()


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "×".join(_short(each) for each in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{int(value):,}" if float(value).is_integer() and value < 1e12 else f"{value:,.6g}"
