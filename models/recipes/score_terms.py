"""Which row of a bias each distance of a query and a key reads, the value of masked rows, and what a long text is."""

import numpy as np
from numpy.typing import NDArray

from models.positions.buckets import c2p_index, deberta_bucket, t5_bucket
from models.recipes.steps import Disentangled, ScoreBias

MASKED = -1e30  # added to the scores of a masked row: of what a row may see, such rows count only where all are such
LONG = 256  # tokens: the scores of all heads of longer sequences leave the L2 cache
Ids = NDArray[np.int64]


def score_bias_buckets(bias: ScoreBias, distances: Ids) -> Ids:
    """Return the bucket of each distance, key less query."""
    return t5_bucket(
        distances, bidirectional=True, num_buckets=bias.buckets, max_distance=bias.reach, arithmetic="parity"
    )


def relative_rows(bias: Disentangled, distances: Ids) -> Ids:
    """Return the row of `relative` for each distance, query less key."""
    bucket = deberta_bucket(
        distances, position_buckets=bias.buckets, max_relative_positions=bias.reach, arithmetic="parity"
    )
    return c2p_index(bucket, bias.span)
