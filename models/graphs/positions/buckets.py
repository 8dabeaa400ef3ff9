"""Relative buckets as ONNX: query and key positions → bucket numbers, and with T5's learned table the bias.

The inputs are query_positions int64 [queries] and key_positions int64 [keys]; the first output is `bucket` int64
[queries, keys]. Buckets are looked up: the graph holds the bucket of every relative position up to the last that
differs, so it contains no logarithm, which would be infinite at 0 and be rounded differently by each runtime.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.graphs.builder import GraphBuilder
from models.positions.arithmetic import Arithmetic
from models.positions.buckets import deberta_bucket, span_of, t5_bucket
from models.positions.table import MAX_WIDTH, checked_count

Int64s = NDArray[np.int64]

INPUTS = {"query_positions": ("INT64", ("queries",)), "key_positions": ("INT64", ("keys",))}
SQUARE = ("queries", "keys")


def t5(
    *,
    bidirectional: bool,
    num_buckets: int = 32,
    max_distance: int = 128,
    weights: NDArray[Any] | None = None,
    arithmetic: Arithmetic = "exact",
) -> Any:
    """Return T5's buckets as a ModelProto; a cached decoder includes its past in the query positions.

    Args:
        bidirectional: see `t5_bucket`, as for num_buckets and max_distance.
        weights: [num_buckets, heads]: adds the output `bias` float32 [1, heads, queries, keys].
        arithmetic: exact or parity.

    Raises:
        BadEncoding: num_buckets or max_distance is out of range.
    """
    checked_count("max_distance", max_distance)
    relative = np.arange(-max_distance, max_distance + 1, dtype=np.int64)  # key - query
    bucket_of_distance = t5_bucket(
        relative,
        bidirectional=bidirectional,
        num_buckets=num_buckets,
        max_distance=max_distance,
        arithmetic=arithmetic,
    )
    builder = GraphBuilder({})
    bucket = _lookup(builder, bucket_of_distance, "key_positions", "query_positions")
    outputs: dict[str, Any] = {"bucket": (bucket, "INT64", SQUARE)}
    if weights is not None:
        table = builder.constant(np.asarray(weights, np.float32).T)  # [heads, num_buckets]
        bias = builder.op("Gather", table, bucket, axis=1)  # [heads, queries, keys]
        bias = builder.op("Unsqueeze", bias, builder.ints(0))
        outputs["bias"] = (bias, "FLOAT", (1, weights.shape[1], *SQUARE))
    return builder.model("t5_buckets", INPUTS, outputs)


def deberta(
    *,
    position_buckets: int,
    max_relative_positions: int,
    longest: int | None = None,
    arithmetic: Arithmetic = "exact",
) -> Any:
    """Return DeBERTa's buckets and the rows of rel_embeddings that they read as a ModelProto.

    The outputs are `bucket` and `c2p`, int64 [queries, keys].

    Args:
        position_buckets: see `deberta_bucket`, as for max_relative_positions.
        longest: distance from which on all have the same bucket; None: where c2p no longer changes.
        arithmetic: exact or parity.

    Raises:
        BadEncoding: position_buckets or max_relative_positions is out of range.
    """
    span = span_of(position_buckets, max_relative_positions)
    distance = np.arange((longest or MAX_WIDTH) + 1, dtype=np.int64)
    buckets = deberta_bucket(
        distance,
        position_buckets=position_buckets,
        max_relative_positions=max_relative_positions,
        arithmetic=arithmetic,
    )
    if longest is None:
        buckets = buckets[: np.searchsorted(buckets, span) + 1]
    builder = GraphBuilder({})
    bucket_of_distance = np.concatenate([-buckets[:0:-1], buckets])  # of query - key
    bucket = _lookup(builder, bucket_of_distance, "query_positions", "key_positions")
    row = builder.op("Add", bucket, builder.scalar(span, np.int64))
    c2p = builder.op("Clip", row, builder.scalar(0, np.int64), builder.scalar(2 * span - 1, np.int64))
    outputs = {"bucket": (bucket, "INT64", SQUARE), "c2p": (c2p, "INT64", SQUARE)}
    return builder.model("deberta_buckets", INPUTS, outputs)


def _lookup(builder: GraphBuilder, bucket_of_distance: Int64s, left: str, right: str) -> str:
    """Emit the bucket of left - right, [queries, keys]; 0 is the middle of the list, its ends hold beyond them."""
    limit = len(bucket_of_distance) // 2
    axes = {"query_positions": 1, "key_positions": 0}
    sides = [builder.op("Unsqueeze", name, builder.ints(axes[name])) for name in (left, right)]
    upper = builder.scalar(limit, np.int64)
    relative = builder.op("Clip", builder.op("Sub", *sides), builder.scalar(-limit, np.int64), upper)
    return builder.op("Gather", builder.constant(bucket_of_distance), builder.op("Add", relative, upper))
