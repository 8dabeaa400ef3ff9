"""What a model's attention does with positions: the part of a card that the positional routes read. Computes nothing.

Everything is numbers and names; models/positions/ makes tables of them.
"""

from dataclasses import dataclass, field
from typing import Any

from models.positions.rope.frequencies import Rope

EVERY_LAYER = "all"  # the table of a model whose layers all rotate alike


@dataclass(frozen=True, slots=True)
class RopeTable:
    """How the layers of one type rotate.

    layout, sections, axes   as LayerRope of positions/rope/config.py
    softmax_scale       scores are multiplied by it besides (DeepSeek); not in cos and sin
    attention_factor    cos and sin are already multiplied by it
    inverse_frequency   (rotary_dim/2), radians per position: the float32 values the graph holds (parity)
    graph               the ONNX graph that computes it
    """

    rope: Rope
    layout: str
    sections: tuple[int, ...] | None
    axes: str | None
    softmax_scale: float
    attention_factor: float
    inverse_frequency: tuple[float, ...]
    notes: tuple[str, ...]
    graph: str


@dataclass(frozen=True, slots=True)
class Alibi:
    """A bias that grows with distance; `form` is a row of alibi.FORMS."""

    form: str
    heads: int
    max_bias: float


@dataclass(frozen=True, slots=True)
class Buckets:
    """A learned bias or vector for each bucket of distances.

    kind     t5: table [buckets, heads], a bias of the scores. deberta: table [2 span, d], a vector a relative position
    buckets, reach   t5: num_buckets, max_distance; deberta: position_buckets (below 1: none), max_relative_positions
    table    the tensor of the weights file; None: the checkpoint does not hold it, so only buckets are known
    norm     weight and bias of the norm over the table (deberta), and its eps
    """

    kind: str
    buckets: int
    reach: int
    bidirectional: bool
    table: str | None
    norm: tuple[str, str, float] | None = None


@dataclass(frozen=True, slots=True)
class Mask:
    """Which keys the layers of one type attend to, padding aside.

    window   causal: this many tokens, itself included; bidirectional: this many to either side. None: all
    chunk    tokens of the chunk that attention stays in; None: no chunks
    """

    causal: bool
    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Encodings:
    """What one model does with positions beside its input layer.

    ropes    by layer type; EVERY_LAYER where one table serves all; empty: the model does not rotate
    layers   for each layer the key of its table; None: it does not rotate (NoPE)
    masks    by layer type, EVERY_LAYER as above
    """

    ropes: dict[str, RopeTable] = field(default_factory=dict)
    layers: tuple[str | None, ...] = ()
    alibi: Alibi | None = None
    buckets: Buckets | None = None
    masks: dict[str, Mask] = field(default_factory=dict)

    @property
    def tables(self) -> tuple[str, ...]:
        """Tensors of the checkpoint that only the attention's encodings read."""
        if self.buckets is None or self.buckets.table is None:
            return ()
        return (self.buckets.table, *(self.buckets.norm[:2] if self.buckets.norm else ()))


def from_json(data: dict[str, Any]) -> Encodings:
    """The inverse of dataclasses.asdict; KeyError or TypeError where the data is none."""
    buckets = data["buckets"]
    if buckets and buckets["norm"]:
        buckets = buckets | {"norm": tuple(buckets["norm"])}
    return Encodings(
        {name: _rope_table(entry) for name, entry in data["ropes"].items()},
        tuple(data["layers"]),
        data["alibi"] and Alibi(**data["alibi"]),
        buckets and Buckets(**buckets),
        {name: Mask(**entry) for name, entry in data["masks"].items()},
    )


def _rope_table(entry: dict[str, Any]) -> RopeTable:
    own = entry["rope"]
    rope = Rope.of(**own | {"parameters": dict(own["parameters"])})
    sections = entry["sections"] and tuple(entry["sections"])
    lists = {name: tuple(entry[name]) for name in ("inverse_frequency", "notes")}
    return RopeTable(**entry | lists | {"rope": rope, "sections": sections})
