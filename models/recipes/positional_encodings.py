"""The positional encodings of a model's attention: the part of a card that the positional routes read.

It holds numbers and names; models/positions/ computes the tables.
"""

from dataclasses import dataclass, field

from models.positions.rope.frequencies import Rope

EVERY_LAYER = "all"  # the table of a model whose layers all rotate alike


@dataclass(frozen=True, slots=True)
class RopeTable:
    """How the layers of one type rotate queries and keys.

    Attributes:
        layout, sections, axes: as in LayerRope of positions/rope/config.py.
        softmax_scale: factor of the attention scores (DeepSeek); not contained in cos and sin.
        attention_factor: factor already contained in cos and sin.
        inverse_frequency: (rotary_dim/2), radians per position: the float32 values that the graph holds (parity).
        notes: remarks for readers of the table.
        graph: name of the ONNX graph that computes it.
        turns_with: the axis of each frequency, 0 time, 1 row, 2 column; empty: all are of time.
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
    turns_with: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Alibi:
    """A bias that grows with distance; `form` is a key of alibi.FORMS."""

    form: str
    heads: int
    max_bias: float


@dataclass(frozen=True, slots=True)
class Buckets:
    """A learned bias or vector for each bucket of distances.

    Attributes:
        kind: t5: table [buckets, heads], a bias of the scores. deberta: table [2 span, d], a vector a relative
            position.
        buckets, reach: t5: num_buckets, max_distance; deberta: position_buckets (below 1: none),
            max_relative_positions.
        bidirectional: whether keys before and after the query have buckets of their own.
        table: tensor of the weights file; None: the checkpoint does not hold it, so only buckets are known.
        norm: weight and bias of the norm over the table (deberta), and its eps.
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

    Attributes:
        causal: only keys up to the query's own position.
        window: causal: this many tokens, itself included; bidirectional: this many to either side. None: all.
        chunk: tokens of the chunk that attention stays in; None: no chunks.
    """

    causal: bool
    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Encodings:
    """The positional encodings of one model outside its input layer.

    Attributes:
        ropes: ropes by layer type; EVERY_LAYER if one table serves all; empty: the model does not rotate.
        layers: key of each layer's table; None: the layer does not rotate (NoPE).
        alibi: the model's ALiBi; None: none.
        buckets: the model's relative buckets; None: none.
        masks: masks by layer type, with EVERY_LAYER as for ropes.
        refused: scheme → why its tables cannot be made of this checkpoint; the rest of the model does not need them.
    """

    ropes: dict[str, RopeTable] = field(default_factory=dict)
    layers: tuple[str | None, ...] = ()
    alibi: Alibi | None = None
    buckets: Buckets | None = None
    masks: dict[str, Mask] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def tables(self) -> tuple[str, ...]:
        """The checkpoint's tensors that only the attention's encodings read."""
        if self.buckets is None or self.buckets.table is None:
            return ()
        return (self.buckets.table, *(self.buckets.norm[:2] if self.buckets.norm else ()))
