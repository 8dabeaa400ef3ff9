"""Emits how the sequences of a batch lie in its packed rows, and which form of attention they take (attention.py)."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from models.graphs.builder import GraphBuilder
from models.recipes.score_terms import LONG, MASKED

MOST_ONE_BY_ONE = 32  # sequences; on CUDA, where batches hold more, an iteration costs more than its share of padding
SHORT = 12  # tokens: sequences up to this are padded faster than looped over

Row = Literal["first", "last"]  # of the tokens of a sequence that are attended to


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Values that say how the sequences lie in the packed rows of a batch.

    Attributes:
        uniform: bool, whether the form is "one length".
        looped: bool, whether it is "one by one" if it is not `uniform`.
        long: bool, whether a sequence is longer than LONG.
        padded: bool, whether the form of scores with terms is "padded" if it is not `uniform`.
        starts, ends: int64 [B], the first row of each sequence and the row after its last.
        take: int64 [B, S], the packed row of each slot of the rectangle (slots past a sequence's end repeat a row;
            `keys` hides them); empty unless the form is "padded".
        keys: int32 [B, S], 1 where a slot may be attended to; likewise.
        hidden: float32 [B, S], 0 where a slot may be attended to, MASKED where it is masked, -inf past the end.
        back: int64 [N], the slot of each packed row in [B*S]; likewise.
        lengths: int64 [B], rows of each sequence.
        images: the rows are those of images of one size: the form is "one length" in every batch, and all values but
            `long` and `lengths` are unused.
        slots: int64 without dimensions, S of a rectangle whose indices are sent (rectangle.py); "": they are not.
    """

    uniform: str
    looped: str
    long: str
    padded: str
    starts: str
    ends: str
    take: str
    keys: str
    hidden: str
    back: str
    lengths: str = "lengths"
    images: bool = False
    slots: str = ""


def layout(builder: GraphBuilder) -> RowLayout:
    """Emit the layout of a batch from the inputs mask bool [N] and lengths int64 [B]."""
    longest, shortest = (builder.op(kind, "lengths", keepdims=0) for kind in ("ReduceMax", "ReduceMin"))
    unmasked = builder.cast(builder.op("ReduceMin", builder.cast("mask", "INT32"), keepdims=0), "BOOL")
    uniform = builder.op("And", unmasked, builder.op("Equal", longest, shortest))
    few = builder.op("LessOrEqual", builder.op("Size", "lengths"), builder.scalar(MOST_ONE_BY_ONE, np.int64))
    short, long = (builder.op("Greater", longest, builder.scalar(bound, np.int64)) for bound in (SHORT, LONG))
    looped = builder.op("And", few, builder.op("Or", long, builder.op("And", unmasked, short)))
    padded = builder.op("Not", builder.op("Or", long, builder.op("And", few, short)))
    ends = builder.op("CumSum", "lengths", builder.scalar(0, np.int64))
    starts = builder.op("Sub", ends, "lengths")
    unused = builder.op("Or", uniform, builder.op("And", looped, builder.op("Not", padded)))
    take, keys, hidden, back = _rectangle(builder, unused, starts, longest)
    return RowLayout(uniform, looped, long, padded, starts, ends, take, keys, hidden, back)


def layout_of_images(builder: GraphBuilder, lengths: str, rows: str) -> RowLayout:
    """Emit the layout of a batch of images.

    Args:
        builder: builder of the graph.
        lengths: int64 [B].
        rows: number of rows of an image, int64 without dimensions.
    """
    long = builder.op("Greater", rows, builder.scalar(LONG, np.int64))
    return RowLayout("", "", long, "", "", "", "", "", "", "", lengths, images=True)


def _rectangle(builder: GraphBuilder, unused: str, starts: str, longest: str) -> list[str]:
    """Return take, keys, hidden and back of RowLayout."""
    empty, padded = builder.inner(), builder.inner()
    values = _padded_rectangle(padded, starts, longest)
    slots = ("sequences", "slots")
    kinds: list[tuple[str, Any, tuple[str, ...]]] = [
        ("INT64", np.int64, slots),
        ("INT32", np.int32, slots),
        ("FLOAT", np.float32, slots),
        ("INT64", np.int64, ("tokens",)),
    ]
    nothing = [empty.op("Identity", empty.constant(np.empty((0,) * len(dims), dtype))) for _, dtype, dims in kinds]
    branches = [
        inner.graph(name, {}, {value: (value, kind, dims) for value, (kind, _, dims) in zip(named, kinds, strict=True)})
        for name, inner, named in (("empty", empty, nothing), ("padded", padded, values))
    ]
    first = builder.op("If", unused, outputs=len(kinds), then_branch=branches[0], else_branch=branches[1])
    return [first, *(f"{first}.{number}" for number in range(1, len(kinds)))]


def _padded_rectangle(builder: GraphBuilder, starts: str, longest: str) -> list[str]:
    columns = builder.op("Range", builder.scalar(0, np.int64), longest, builder.scalar(1, np.int64))  # (S,)
    column = builder.ints(1)
    lengths, starts = (builder.op("Unsqueeze", value, column) for value in ("lengths", starts))  # (B, 1)
    inside = builder.op("Less", columns, lengths)  # (B, S)
    take = builder.op("Where", inside, builder.op("Add", columns, starts), starts)
    attended = builder.op("And", inside, builder.op("Gather", "mask", take))
    counts = builder.op("ReduceSum", builder.cast(attended, "INT32"), column, keepdims=1)  # (B, 1)
    all_masked = builder.op("Not", builder.cast(counts, "BOOL"))  # (B, 1)
    keys = builder.op("Or", attended, builder.op("And", inside, all_masked))
    masked = builder.op("Where", keys, builder.scalar(0.0), builder.scalar(MASKED))
    hidden = builder.op("Where", inside, masked, builder.scalar(-np.inf))
    flat = builder.op("Reshape", inside, builder.ints(-1))
    back = builder.op("Squeeze", builder.op("NonZero", flat), builder.ints(0))
    return [take, builder.cast(keys, "INT32"), hidden, back]


def rows_of_one(builder: GraphBuilder, rows: RowLayout, which: Row) -> str:
    """Emit the packed row of each sequence's first or last token that is attended to, int64 [B]; of none, its own."""
    body, axis = builder.inner(), builder.ints(0)
    number = body.op("Unsqueeze", "number", axis)
    start, end = (body.op("Gather", value, number) for value in (rows.starts, rows.ends))
    attended = body.cast(body.op("Slice", "mask", start, end, axis), "INT32")
    row = body.op("Add", start, body.op("ArgMax", attended, axis=0, select_last_index=int(which == "last")))
    go_on = body.op("Identity", "go_on")
    graph = body.graph(
        "row_of_each",
        {"number": ("INT64", ()), "go_on": ("BOOL", ())},
        {go_on: (go_on, "BOOL", ()), row: (row, "INT64", (1,))},
    )
    found = builder.op("Loop", builder.op("Size", rows.lengths), "", body=graph)  # (B, 1)
    return builder.op("Reshape", found, builder.ints(-1))
