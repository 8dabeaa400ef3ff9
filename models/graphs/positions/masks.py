"""Attention masks as ONNX: the rules of models/positions/masks.py on positions, combined by AND and emitted once.

query_positions int64 [queries]         index of each query in its row of keys: past + i
key_positions   int64 [keys]            0 .. keys - 1
attention_mask  int64 [batch, keys]     with padding: 0 for a pad
position_ids    int64 [batch, keys]     with packed: a new sequence wherever they do not go up by one
mask            [batch or 1, 1, queries, keys]
"""

from typing import Any

import numpy as np

from models.graphs.builder import GraphBuilder
from models.positions.masks import Fill, Form, lowest
from models.positions.table import checked_count

_ELEMENTS = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}


def mask(
    *,
    causal: bool = True,
    window: int | None = None,
    chunk: int | None = None,
    padding: bool = False,
    packed: bool = False,
    form: Form = "additive",
    fill: Fill = "min",
    dtype: str = "float32",
) -> Any:
    """The mask of any lengths as a ModelProto; parameters as in models.positions.masks.tabulate.

    padding, packed  whether attention_mask and position_ids are inputs
    """
    for name, size in (("window", window), ("chunk", chunk)):
        if size is not None:
            checked_count(name, size)
    builder = GraphBuilder({})
    query = builder.op("Unsqueeze", "query_positions", builder.constant(np.array([0, 1, 3])))  # [1, 1, queries, 1]
    key = builder.op("Unsqueeze", "key_positions", builder.constant(np.array([0, 1, 2])))  # [1, 1, 1, keys]
    zero = builder.scalar(0, np.int64)
    # holds for all; spreads a mask that no other rule spreads over queries and keys
    rules = [builder.op("GreaterOrEqual", side, zero) for side in (query, key)]
    if causal:
        rules.append(builder.op("LessOrEqual", key, query))
    if window is not None:
        rules.append(_near(builder, query, key, window, causal))
    if padding:
        rules.append(builder.cast(_as_keys(builder, "attention_mask"), "BOOL"))
    if packed:
        rules.append(_same(builder, _sequences(builder)))
    if chunk is not None:
        rules.append(_same_chunk(builder, query, key, chunk, padding, packed))
    seen = rules[0]
    for rule in rules[1:]:
        seen = builder.op("And", seen, rule)
    return _model(builder, seen, padding, packed, form, -np.inf if fill == "inf" else lowest(dtype), dtype)


def _near(builder: GraphBuilder, query: str, key: str, window: int, causal: bool) -> str:
    behind = builder.op("Sub", query, key)
    if causal:
        return builder.op("Less", behind, builder.scalar(window, np.int64))
    return builder.op("LessOrEqual", builder.op("Abs", behind), builder.scalar(window, np.int64))


def _as_keys(builder: GraphBuilder, rows: str) -> str:
    """[batch, keys] → [batch, 1, 1, keys]"""
    return builder.op("Unsqueeze", rows, builder.constant(np.array([1, 2])))


def _same(builder: GraphBuilder, rows: str) -> str:
    """Whether query and key have the same number: of int64 [batch, keys], bool [batch, 1, queries, keys]."""
    queries = builder.op("Gather", rows, "query_positions", axis=1)  # [batch, queries]
    queries = builder.op("Unsqueeze", queries, builder.constant(np.array([1, 3])))
    return builder.op("Equal", queries, _as_keys(builder, rows))


def _sequences(builder: GraphBuilder) -> str:
    """The number of the packed sequence each key belongs to, int64 [batch, keys]."""
    ends = [builder.constant(np.array(bound)) for bound in ([0], [1], [-1], [2**62])]
    axis = builder.constant(np.array([1]))
    first = builder.op("Slice", "position_ids", ends[0], ends[1], axis)
    before = builder.op("Slice", "position_ids", ends[0], ends[2], axis)
    after = builder.op("Slice", "position_ids", ends[1], ends[3], axis)
    one = builder.scalar(1, np.int64)
    steps = builder.op("Concat", builder.op("Sub", first, first), builder.op("Sub", after, before), axis=1)
    follows = builder.op("Equal", steps, one)
    return builder.op("CumSum", builder.cast(builder.op("Not", follows), "INT64"), builder.scalar(1, np.int64))


def _same_chunk(builder: GraphBuilder, query: str, key: str, chunk: int, padding: bool, packed: bool) -> str:
    """Whether query and key lie in one chunk. Mod rounds down where Div, wrong for pads, rounds towards 0."""
    size = builder.scalar(chunk, np.int64)
    if packed:
        return _same(builder, builder.op("Sub", "position_ids", builder.op("Mod", "position_ids", size)))
    starts = []
    for side in (query, key):
        place = builder.op("Sub", side, _left(builder)) if padding else side
        starts.append(builder.op("Sub", place, builder.op("Mod", place, size)))
    return builder.op("Equal", *starts)


def _left(builder: GraphBuilder) -> str:
    """Pads before the first real key, int64 [batch, 1, 1, 1]."""
    counted = builder.op("CumSum", "attention_mask", builder.scalar(1, np.int64))
    before = builder.cast(builder.op("Equal", counted, builder.scalar(0, np.int64)), "INT64")
    total = builder.op("ReduceSum", before, builder.constant(np.array([1])), keepdims=1)
    return builder.op("Unsqueeze", total, builder.constant(np.array([2, 3])))


def _model(builder: GraphBuilder, seen: str, padding: bool, packed: bool, form: Form, least: float, dtype: str) -> Any:
    inputs: dict[str, Any] = {"query_positions": ("INT64", ("queries",)), "key_positions": ("INT64", ("keys",))}
    rows = {"attention_mask": padding, "position_ids": packed}
    inputs |= {name: ("INT64", ("batch", "keys")) for name, given in rows.items() if given}
    shape = ("batch" if padding or packed else 1, 1, "queries", "keys")
    if form == "boolean":
        return builder.model("mask", inputs, {"mask": (seen, "BOOL", shape)})
    wide = np.float64 if dtype == "float64" else np.float32  # Where has no 16-bit kernel; the cast is exact
    found = builder.op("Where", seen, builder.scalar(0.0, wide), builder.scalar(least, wide))
    if dtype in ("float16", "bfloat16"):
        found = builder.cast(found, _ELEMENTS[dtype])
    return builder.model("mask", inputs, {"mask": (found, _ELEMENTS[dtype], shape)})
