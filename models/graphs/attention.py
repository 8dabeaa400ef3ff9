"""Emits attention over packed rows: the rows of a sequence attend to one another, without padding where possible.

Three forms, chosen in the graph by what the batch holds. All give the same bits: tests/models/graphs/test_attention.py.

    one length    no mask is sent and all sequences have one length: the rows are a rectangle already
    one by one    no mask is sent: a loop over the sequences
    padded        else, and where many sequences are short: rows are gathered into a rectangle and its padding masked

A sequence longer than LONG and without a mask takes ONNX Runtime's flash attention, whose bits are others. So a batch
that holds one is not padded, whatever its masks, unless it has more than MOST_ONE_BY_ONE sequences: its rectangle then
takes more than 8192 tokens, and a server on CPU makes two of it.

Measured with MiniLM on one thread (ONNX Runtime 1.31), as shares of the padded form's time, float32 and int8: a text of
24 tokens 1 and 1, 16 texts of 17 to 30 tokens 0.93 and 0.77, 32 texts of 7 to 182 tokens 0.93 and 0.80, a text of 512
tokens 0.92 and 0.85.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.families.recipe import ScoreBias
from models.graphs.builder import CONTRIB, SEQUENCE, GraphBuilder
from models.positions.buckets import t5_bucket

MOST_ONE_BY_ONE = 32  # sequences; on CUDA, where batches hold more, an iteration costs more than its share of padding
SHORT = 12  # tokens: sequences up to this are padded faster than looped over
LONG = 256  # tokens: the scores of all heads of longer sequences leave the L2 cache; flash attention holds them in it

Emit = Callable[[GraphBuilder], str]
EmitOne = Callable[[GraphBuilder, list[str], list[str]], str]  # of one sequence: its rows, and its bounds


@dataclass(frozen=True, slots=True)
class Layout:
    """Values that say how the sequences lie in the packed rows of a batch.

    Attributes:
        uniform: bool, whether the form is "one length".
        looped: bool, whether it is "one by one" if it is not `uniform`.
        long: bool, whether a sequence is longer than LONG.
        starts, ends: int64 [B], the first row of each sequence and the row after its last.
        take: int64 [B, S], the packed row of each slot of the rectangle (slots past a sequence's end repeat a row;
            `keys` hides them); empty unless the form is "padded".
        keys: int32 [B, S], 1 where a slot may be attended to; likewise.
        back: int64 [N], the slot of each packed row in [B*S]; likewise.
    """

    uniform: str
    looped: str
    long: str
    starts: str
    ends: str
    take: str
    keys: str
    back: str


def layout(builder: GraphBuilder) -> Layout:
    """Emit the layout of a batch from the inputs mask bool [N] and lengths int64 [B]."""
    longest, shortest = (builder.op(kind, "lengths", keepdims=0) for kind in ("ReduceMax", "ReduceMin"))
    unmasked = builder.cast(builder.op("ReduceMin", builder.cast("mask", "INT32"), keepdims=0), "BOOL")
    uniform = builder.op("And", unmasked, builder.op("Equal", longest, shortest))
    few = builder.op("LessOrEqual", builder.op("Size", "lengths"), builder.scalar(MOST_ONE_BY_ONE, np.int64))
    short, long = (builder.op("Greater", longest, builder.scalar(bound, np.int64)) for bound in (SHORT, LONG))
    looped = builder.op("And", few, builder.op("Or", long, builder.op("And", unmasked, short)))
    ends = builder.op("CumSum", "lengths", builder.scalar(0, np.int64))
    starts = builder.op("Sub", ends, "lengths")
    take, keys, back = _rectangle(builder, builder.op("Or", uniform, looped), starts, longest)
    return Layout(uniform, looped, long, starts, ends, take, keys, back)


def padded_layout(builder: GraphBuilder) -> Layout:
    """Emit the layout of a batch that takes the form "padded" whatever it holds, for scores with a bias."""
    longest = builder.op("ReduceMax", "lengths", keepdims=0)
    ends = builder.op("CumSum", "lengths", builder.scalar(0, np.int64))
    starts = builder.op("Sub", ends, "lengths")
    no = builder.constant(np.array(False))
    return Layout(no, no, no, starts, ends, *_padded_rectangle(builder, starts, longest))


def score_bias(builder: GraphBuilder, bias: ScoreBias) -> str:
    """Emit the bias of the scores of a rectangle, float32 [1, heads, S, S]."""
    strip = t5_bucket(
        np.arange(-bias.reach, bias.reach + 1),
        bidirectional=True,
        num_buckets=bias.buckets,
        max_distance=bias.reach,
        arithmetic="parity",
    )
    longest = builder.op("ReduceMax", "lengths", keepdims=0)
    places = builder.op("Range", builder.scalar(0, np.int64), longest, builder.scalar(1, np.int64))  # (S,)
    keys, queries = (builder.op("Unsqueeze", places, builder.constant(np.array([axis]))) for axis in (0, 1))
    reach = builder.scalar(bias.reach, np.int64)
    distances = builder.op("Clip", builder.op("Sub", keys, queries), builder.op("Neg", reach), reach)
    buckets = builder.op("Gather", builder.constant(strip), builder.op("Add", distances, reach))  # (S, S)
    rows = builder.op("Gather", builder.weight(bias.table), buckets)  # (S, S, heads)
    by_head = builder.op("Transpose", rows, perm=[2, 0, 1])
    return builder.op("Unsqueeze", by_head, builder.constant(np.array([0])))


def _rectangle(builder: GraphBuilder, unused: str, starts: str, longest: str) -> tuple[str, str, str]:
    """Return take, keys and back of Layout."""
    empty, padded = builder.inner(), builder.inner()
    take, keys, back = _padded_rectangle(padded, starts, longest)
    kinds = (("INT64", ("sequences", "slots")), ("INT32", ("sequences", "slots")), ("INT64", ("tokens",)))
    nothing = [
        empty.op("Identity", empty.constant(np.empty((0,) * len(dims), np.int32 if kind == "INT32" else np.int64)))
        for kind, dims in kinds
    ]
    first = builder.op(
        "If",
        unused,
        outputs=3,
        then_branch=empty.graph("empty", {}, {name: (name, *kind) for name, kind in zip(nothing, kinds, strict=True)}),
        else_branch=padded.graph(
            "padded", {}, {name: (name, *kind) for name, kind in zip((take, keys, back), kinds, strict=True)}
        ),
    )
    return first, f"{first}.1", f"{first}.2"


def _padded_rectangle(builder: GraphBuilder, starts: str, longest: str) -> tuple[str, str, str]:
    columns = builder.op("Range", builder.scalar(0, np.int64), longest, builder.scalar(1, np.int64))  # (S,)
    column = builder.constant(np.array([1]))
    lengths, starts = (builder.op("Unsqueeze", value, column) for value in ("lengths", starts))  # (B, 1)
    inside = builder.op("Less", columns, lengths)  # (B, S)
    take = builder.op("Where", inside, builder.op("Add", columns, starts), starts)
    attended = builder.op("And", inside, builder.op("Gather", "mask", take))
    counts = builder.op("ReduceSum", builder.cast(attended, "INT32"), column, keepdims=1)  # (B, 1)
    all_masked = builder.op("Not", builder.cast(counts, "BOOL"))  # (B, 1)
    keys = builder.op("Or", attended, builder.op("And", inside, all_masked))
    flat = builder.op("Reshape", inside, builder.constant(np.array([-1])))
    back = builder.op("Squeeze", builder.op("NonZero", flat), builder.constant(np.array([0])))
    return take, builder.cast(keys, "INT32"), back


def attend(
    builder: GraphBuilder,
    projected: tuple[str, str, str],
    rows: Layout,
    heads: int,
    width: int,
    bias: str | None = None,
) -> str:
    """Emit softmax(query @ key.T / sqrt(width / heads)) @ value of each sequence, by head.

    Args:
        builder: of the graph.
        projected: query, key and value, float32 [N, width].
        rows: where the sequences lie.
        heads: their number.
        width: of a row.
        bias: of the scores, of `score_bias`, for which `rows` is a `padded_layout`; None: there is none.

    Returns:
        float32 [N, width].
    """
    scope = _Attention(projected, rows, heads, width)
    if bias is not None:
        return scope.padded(builder, bias)
    return scope.choose(
        builder,
        rows.uniform,
        lambda same: scope.choose(same, rows.long, scope.flash_of_each, scope.of_each),
        lambda other: scope.choose(
            other,
            rows.looped,
            lambda several: scope.choose(several, rows.long, scope.long_one_by_one, scope.one_by_one),
            scope.padded,
        ),
    )


@dataclass(frozen=True, slots=True)
class _Attention:
    """The forms of one attention step; each method emits into the builder it is given and returns rows [N, width]."""

    projected: tuple[str, str, str]
    rows: Layout
    heads: int
    width: int

    @property
    def by_head(self) -> list[int]:
        return [-1, self.heads, self.width // self.heads]

    @property
    def scale(self) -> float:
        return float((self.width // self.heads) ** -0.5)

    def choose(self, builder: GraphBuilder, condition: str, then: Emit, otherwise: Emit) -> str:
        """Emit rows that one of two branches gives."""
        branches = []
        for emit in (then, otherwise):
            inside = builder.inner()
            value = emit(inside)
            branches.append(inside.graph("branch", {}, {value: (value, "FLOAT", ("tokens", self.width))}))
        return builder.op("If", condition, then_branch=branches[0], else_branch=branches[1])

    def of_each(self, builder: GraphBuilder) -> str:
        """Emit sequences of one length."""
        shape = builder.op("Concat", builder.op("Shape", "lengths"), builder.constant(np.array(self.by_head)), axis=0)
        query, key, value = (builder.op("Reshape", rows, shape) for rows in self.projected)  # (B, S, heads, head_dim)
        query, value = (builder.op("Transpose", rows, perm=[0, 2, 1, 3]) for rows in (query, value))
        key = builder.op("Transpose", key, perm=[0, 2, 3, 1])
        scores = builder.op("FusedMatMul", query, key, domain=CONTRIB, alpha=self.scale)  # (B, heads, S, S)
        mixed = builder.op("MatMul", builder.op("Softmax", scores, axis=-1), value)  # (B, heads, S, head_dim)
        return self._joined(builder, builder.op("Transpose", mixed, perm=[0, 2, 1, 3]))

    def flash_of_each(self, builder: GraphBuilder) -> str:
        """Emit long sequences of one length."""
        width = builder.constant(np.array([-1, self.width]))
        shape = builder.op("Concat", builder.op("Shape", "lengths"), width, axis=0)  # B, -1, width
        return self._multi_head(builder, [builder.op("Reshape", rows, shape) for rows in self.projected])

    def one_by_one(self, builder: GraphBuilder) -> str:
        """Emit a loop over sequences, of which none is long or masked."""
        return self._loop(builder, lambda body, own, bounds: self._one(body, own))

    def long_one_by_one(self, builder: GraphBuilder) -> str:
        """Emit a loop over sequences of any kind."""
        return self._loop(builder, self._any_one)

    def padded(self, builder: GraphBuilder, *bias: str) -> str:
        """Emit sequences that are gathered into a rectangle, in which padding and masked rows are masked."""
        gathered = [builder.op("Gather", value, self.rows.take) for value in self.projected]  # (B, S, width)
        return builder.op("Gather", self._multi_head(builder, gathered, "", self.rows.keys, *bias), self.rows.back)

    def _loop(self, builder: GraphBuilder, emit: EmitOne) -> str:
        body = builder.inner()
        number = body.op("Unsqueeze", "number", body.constant(np.array([0])))
        bounds = [body.op("Gather", value, number) for value in (self.rows.starts, self.rows.ends)]
        own = [body.op("Slice", value, *bounds, body.constant(np.array([0]))) for value in self.projected]
        mixed = body.op("SequenceInsert", "before", emit(body, own, bounds))
        further = body.op("Identity", "go_on")
        several = (SEQUENCE + "FLOAT", ("tokens", self.width))
        graph = body.graph(
            "sequence",
            {"number": ("INT64", ()), "go_on": ("BOOL", ()), "before": several},
            {further: (further, "BOOL", ()), mixed: (mixed, *several)},
        )
        sequences = builder.op("Loop", builder.op("Size", "lengths"), "", builder.op("SequenceEmpty"), body=graph)
        return builder.op("ConcatFromSequence", sequences, axis=0)

    def _one(self, builder: GraphBuilder, own: list[str]) -> str:
        """Emit one sequence; the products read the rows of all heads as they lie, without a transposition."""
        shape = builder.constant(np.array(self.by_head))
        query, key, value = (builder.op("Reshape", rows, shape) for rows in own)  # (S, heads, head_dim)
        across: dict[str, Any] = {"domain": CONTRIB, "transBatchB": 1}
        scores = builder.op("FusedMatMul", query, key, alpha=self.scale, transBatchA=1, transB=1, **across)
        mixed = builder.op("FusedMatMul", builder.op("Softmax", scores, axis=-1), value, **across)
        return self._joined(builder, builder.op("Transpose", mixed, perm=[1, 0, 2]))  # of (heads, S, head_dim)

    def _any_one(self, builder: GraphBuilder, own: list[str], bounds: list[str]) -> str:
        """Emit one sequence, in the form that it has alone."""
        first = builder.constant(np.array([0]))
        keys = builder.cast(builder.op("Slice", "mask", *bounds, first), "INT32")  # (S,)
        most, least = (builder.op(kind, keys, keepdims=0) for kind in ("ReduceMax", "ReduceMin"))
        masked = builder.op("Greater", most, least)  # all rows masked counts as none
        length = builder.op("Sub", *reversed(bounds))
        long = builder.op("Greater", length, builder.constant(np.array([LONG])))
        single = [builder.op("Unsqueeze", rows, first) for rows in own]  # (1, S, width)
        keys = builder.op("Unsqueeze", keys, first)
        return self.choose(
            builder,
            masked,
            lambda inside: self._multi_head(inside, single, "", keys),
            lambda inside: self.choose(
                inside, long, lambda flash: self._multi_head(flash, single), lambda short: self._one(short, own)
            ),
        )

    def _multi_head(self, builder: GraphBuilder, values: list[str], *masks: str) -> str:
        mixed = builder.op("MultiHeadAttention", *values, *masks, domain=CONTRIB, num_heads=self.heads)
        return self._joined(builder, mixed)

    def _joined(self, builder: GraphBuilder, mixed: str) -> str:
        return builder.op("Reshape", mixed, builder.constant(np.array([-1, self.width])))
