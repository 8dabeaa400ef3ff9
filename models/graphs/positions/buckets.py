"""Relative buckets as ONNX: query and key positions → bucket numbers, and with T5's learned table the bias.

Buckets are looked up, not computed: the graph holds the bucket of every relative position up to the last that differs,
in either arithmetic, so it has no logarithm (of 0, or rounded another way) and works in int64 alone.

query_positions int64 [queries], key_positions int64 [keys]  ->  bucket int64 [queries, keys], ...
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.graphs.builder import GraphBuilder
from models.positions.buckets import deberta_bucket, span_of, t5_bucket
from models.positions.table import MAX_WIDTH, Arithmetic, checked_count

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
    """T5's buckets as a ModelProto; a cached decoder sends its past in the query positions.

    weights  [num_buckets, heads]: adds the output bias float32 [1, heads, queries, keys]
    """
    checked_count("max_distance", max_distance)
    relative = np.arange(-max_distance, max_distance + 1, dtype=np.int64)  # key - query
    profile = t5_bucket(
        relative,
        bidirectional=bidirectional,
        num_buckets=num_buckets,
        max_distance=max_distance,
        arithmetic=arithmetic,
    )
    builder = GraphBuilder({})
    bucket = _looked_up(builder, profile, "key_positions", "query_positions")
    outputs: dict[str, Any] = {"bucket": (bucket, "INT64", SQUARE)}
    if weights is not None:
        table = builder.constant(np.asarray(weights, np.float32).T)  # [heads, num_buckets]
        bias = builder.op("Gather", table, bucket, axis=1)  # [heads, queries, keys]
        bias = builder.op("Unsqueeze", bias, builder.constant(np.array([0])))
        outputs["bias"] = (bias, "FLOAT", (1, weights.shape[1], *SQUARE))
    return builder.model("t5_buckets", INPUTS, outputs)


def deberta(
    *,
    position_buckets: int,
    max_relative_positions: int,
    longest: int | None = None,
    arithmetic: Arithmetic = "exact",
) -> Any:
    """DeBERTa's buckets and the rows of rel_embeddings they read, `c2p` int64 [queries, keys], as a ModelProto.

    longest  relative positions beyond it have its bucket; None: where c2p changes no more
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
    profile = np.concatenate([-buckets[:0:-1], buckets])  # of query - key
    bucket = _looked_up(builder, profile, "query_positions", "key_positions")
    row = builder.op("Add", bucket, builder.scalar(span, np.int64))
    c2p = builder.op("Clip", row, builder.scalar(0, np.int64), builder.scalar(2 * span - 1, np.int64))
    outputs = {"bucket": (bucket, "INT64", SQUARE), "c2p": (c2p, "INT64", SQUARE)}
    return builder.model("deberta_buckets", INPUTS, outputs)


def _looked_up(builder: GraphBuilder, profile: Int64s, left: str, right: str) -> str:
    """profile[left - right], [queries, keys]; its middle is at 0, its ends go on for ever."""
    reach = len(profile) // 2
    axes = {"query_positions": 1, "key_positions": 0}
    sides = [builder.op("Unsqueeze", name, builder.constant(np.array([axes[name]]))) for name in (left, right)]
    far = builder.scalar(reach, np.int64)
    relative = builder.op("Clip", builder.op("Sub", *sides), builder.scalar(-reach, np.int64), far)
    return builder.op("Gather", builder.constant(profile), builder.op("Add", relative, far))
