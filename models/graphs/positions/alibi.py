"""ALiBi's bias as ONNX, in either arithmetic; the slopes of models/positions/alibi.py are constants of the graph.

The output is `bias` float32 [batch, heads, queries or 1, keys]. The inputs depend on the form:

- symmetric: query_positions int64 [batch, queries], key_positions int64 [batch, keys]
- bloom, falcon: attention_mask int64 [batch, keys] of 0 and 1, or without one key_positions int64 [batch, keys]
- mpt: key_positions int64 [batch, keys]
"""

from typing import Any

import numpy as np

from models.graphs.builder import GraphBuilder
from models.positions.alibi import MAX_BIAS, checked_form, slopes
from models.positions.arithmetic import Arithmetic

_KEYS = ("INT64", ("batch", "keys"))


def alibi(
    heads: int,
    *,
    form: str = "symmetric",
    max_bias: float = MAX_BIAS,
    arithmetic: Arithmetic = "exact",
    masked: bool = False,
) -> Any:
    """Return the bias of one form as a ModelProto.

    Args:
        heads: 1 or more.
        form: a row of FORMS.
        max_bias: above 0.
        arithmetic: exact or parity.
        masked: whether a padding mask numbers the keys, in the forms that read one.

    Raises:
        BadEncoding: a parameter is unknown or out of range.
    """
    row = checked_form(form, masked)
    head_slopes = slopes(heads, max_bias, arithmetic, form)[:, None, None]  # [heads, 1, 1]
    builder = GraphBuilder({})
    axes = builder.ints(1, 2)
    inputs = {"attention_mask" if masked else "key_positions": _KEYS}
    queries: str | int = 1
    if row.per_query:
        inputs = {"query_positions": ("INT64", ("batch", "queries"))} | inputs
        query = builder.op("Unsqueeze", "query_positions", builder.ints(1, 3))
        key = builder.op("Unsqueeze", "key_positions", axes)
        number, queries = builder.op("Neg", builder.op("Abs", builder.op("Sub", query, key))), "queries"
    else:
        number = builder.op("Unsqueeze", _key_numbers(builder, form, masked), axes)  # [batch, 1, 1, keys]
    bias = _product(builder, number, head_slopes, row.steps == "falcon")
    return builder.model("alibi", inputs, {"bias": (bias, "FLOAT", ("batch", heads, queries, "keys"))})


def _key_numbers(builder: GraphBuilder, form: str, masked: bool) -> str:
    """Emit the numbers by which a key-only form multiplies its slopes: int64 [batch, keys]."""
    if masked:
        counted = builder.op("CumSum", "attention_mask", builder.scalar(1, np.int64))
        return builder.op("Mul", builder.op("Sub", counted, builder.scalar(1, np.int64)), "attention_mask")
    if form == "mpt":
        last = builder.op("ReduceMax", "key_positions", builder.ints(-1), keepdims=1)
        return builder.op("Sub", "key_positions", last)
    return builder.op("Identity", "key_positions")


def _product(builder: GraphBuilder, number: str, slopes: Any, through_bfloat16: bool) -> str:
    if slopes.dtype == np.float64:
        return builder.cast(builder.op("Mul", builder.cast(number, "DOUBLE"), builder.constant(slopes)), "FLOAT")
    number = builder.cast(number, "FLOAT")
    if not through_bfloat16:
        return builder.op("Mul", number, builder.constant(slopes))
    return _bfloat16(builder, builder.op("Mul", _bfloat16(builder, number), builder.constant(slopes)))


def _bfloat16(builder: GraphBuilder, value: str) -> str:
    """Emit float32 rounded to bfloat16. ONNX Runtime has no bfloat16 Mul on CPU; a float32 product is exact."""
    return builder.cast(builder.cast(value, "BFLOAT16"), "FLOAT")
