"""Attention masks as ONNX: the rules of models/positions/masks.py, combined by AND into one mask.

Inputs:

- query_positions int64 [queries]: index of each query in its row of keys, past + i
- key_positions int64 [keys]: 0 .. keys - 1
- attention_mask int64 [batch, keys], with padding: 0 for a pad
- position_ids int64 [batch, keys], with packed sequences: a new sequence begins where they do not go up by one

The output is `mask` [batch or 1, 1, queries, keys].
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
    """Return the mask of any lengths as a ModelProto; other parameters as in models.positions.masks.tabulate.

    Args:
        padding: whether attention_mask is an input.
        packed: whether position_ids is an input.

    Raises:
        BadEncoding: window or chunk is out of range, or an unknown dtype.
    """
    for name, size in (("window", window), ("chunk", chunk)):
        if size is not None:
            checked_count(name, size)
    builder = GraphBuilder({})
    visible, *rules = _rules(builder, causal, window, chunk, padding, packed)
    for rule in rules:
        visible = builder.op("And", visible, rule)
    return _model(builder, visible, padding, packed, form, -np.inf if fill == "inf" else lowest(dtype), dtype)


def _rules(
    builder: GraphBuilder, causal: bool, window: int | None, chunk: int | None, padding: bool, packed: bool
) -> list[str]:
    """Emit which keys each rule shows to each query."""
    query = builder.op("Unsqueeze", "query_positions", builder.constant(np.array([0, 1, 3])))  # [1, 1, queries, 1]
    key = builder.op("Unsqueeze", "key_positions", builder.constant(np.array([0, 1, 2])))  # [1, 1, 1, keys]
    zero = builder.scalar(0, np.int64)
    # always true; broadcasts a mask that no other rule broadcasts over queries and keys
    rules = [builder.op("GreaterOrEqual", side, zero) for side in (query, key)]
    if causal:
        rules.append(builder.op("LessOrEqual", key, query))
    if window is not None:
        rules.append(_within_window(builder, query, key, window, causal))
    if padding:
        rules.append(builder.cast(_as_keys(builder, "attention_mask"), "BOOL"))
    if packed:
        rules.append(_same(builder, _sequences(builder)))
    if chunk is not None:
        rules.append(_same_chunk(builder, query, key, chunk, padding, packed))
    return rules


def _within_window(builder: GraphBuilder, query: str, key: str, window: int, causal: bool) -> str:
    behind = builder.op("Sub", query, key)
    if causal:
        return builder.op("Less", behind, builder.scalar(window, np.int64))
    return builder.op("LessOrEqual", builder.op("Abs", behind), builder.scalar(window, np.int64))


def _as_keys(builder: GraphBuilder, rows: str) -> str:
    """Emit [batch, keys] as [batch, 1, 1, keys]."""
    return builder.op("Unsqueeze", rows, builder.constant(np.array([1, 2])))


def _same(builder: GraphBuilder, rows: str) -> str:
    """Emit whether query and key have the same number in int64 [batch, keys]: bool [batch, 1, queries, keys]."""
    queries = builder.op("Gather", rows, "query_positions", axis=1)  # [batch, queries]
    queries = builder.op("Unsqueeze", queries, builder.constant(np.array([1, 3])))
    return builder.op("Equal", queries, _as_keys(builder, rows))


def _sequences(builder: GraphBuilder) -> str:
    """Emit the number of the packed sequence that each key belongs to, int64 [batch, keys]."""
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
    """Emit whether query and key lie in one chunk.

    Mod rounds down; Div would round towards 0, which is wrong for pads.
    """
    size = builder.scalar(chunk, np.int64)
    if packed:
        return _same(builder, builder.op("Sub", "position_ids", builder.op("Mod", "position_ids", size)))
    starts = []
    for side in (query, key):
        place = builder.op("Sub", side, _left(builder)) if padding else side
        starts.append(builder.op("Sub", place, builder.op("Mod", place, size)))
    return builder.op("Equal", *starts)


def _left(builder: GraphBuilder) -> str:
    """Emit the number of pads before the first real key, int64 [batch, 1, 1, 1]."""
    counted = builder.op("CumSum", "attention_mask", builder.scalar(1, np.int64))
    before = builder.cast(builder.op("Equal", counted, builder.scalar(0, np.int64)), "INT64")
    total = builder.op("ReduceSum", before, builder.constant(np.array([1])), keepdims=1)
    return builder.op("Unsqueeze", total, builder.constant(np.array([2, 3])))


def _model(
    builder: GraphBuilder, visible: str, padding: bool, packed: bool, form: Form, masked_value: float, dtype: str
) -> Any:
    inputs: dict[str, Any] = {"query_positions": ("INT64", ("queries",)), "key_positions": ("INT64", ("keys",))}
    rows = {"attention_mask": padding, "position_ids": packed}
    inputs |= {name: ("INT64", ("batch", "keys")) for name, present in rows.items() if present}
    shape = ("batch" if padding or packed else 1, 1, "queries", "keys")
    if form == "boolean":
        return builder.model("mask", inputs, {"mask": (visible, "BOOL", shape)})
    wide = np.float64 if dtype == "float64" else np.float32  # Where has no 16-bit kernel; the cast is exact
    mask_value = builder.op("Where", visible, builder.scalar(0.0, wide), builder.scalar(masked_value, wide))
    if dtype in ("float16", "bfloat16"):
        mask_value = builder.cast(mask_value, _ELEMENTS[dtype])
    return builder.model("mask", inputs, {"mask": (mask_value, _ELEMENTS[dtype], shape)})
