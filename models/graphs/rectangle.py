"""The layout of encoders for GPUs: attention over a rectangle of sequences, by indices that the caller computes.

Only attention sees the rectangle; products and norms run over the packed rows, without padding. The graph has no loop,
and what it branches by is sent: a GPU need not be awaited to know which nodes come next.

    equal     no row is masked and all sequences have one length: the rows are a rectangle already, without a mask
    counted   keys and values without the masked ones, and how many there are of each sequence
    causal    no row is masked and a row sees those before it: padding comes after every row that counts
    biased    scores with terms, or masked ones of a causal model: one term that says also what is hidden
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from models.graphs.builder import GraphBuilder
from models.graphs.row_layout import RowLayout
from models.recipes.score_terms import MASKED

SLOTS: tuple[str | int, ...] = ("sequences", "slots")
INPUTS: dict[str, tuple[str, tuple[str | int, ...]]] = {
    "take": ("INT64", SLOTS),  # the packed row of each slot; past the end of a sequence its first
    "keys": ("INT64", SLOTS),  # the packed rows that are attended to, side by side
    "counts": ("INT32", ("sequences",)),  # of these
    "hidden": ("FLOAT", SLOTS),  # added to scores: 0, for masked rows a large negative number, past the end -inf
    "back": ("INT64", ("tokens",)),  # the slot of each packed row, counted through all sequences
    "shares": ("FLOAT", SLOTS),  # of each row in the vector of its sequence
    "equal": ("BOOL", ()),
    "plain": ("BOOL", ()),  # no row is masked
}
MULTIPLE = 16  # slots of a rectangle with padding: fused kernels read aligned terms
FLOAT16_MASKED = -3e4  # of a narrower range: a masked row that sees masked rows alone weighs them by their scores

Flags = NDArray[np.bool_]
Int64s = NDArray[np.int64]
Share = Callable[[Flags, Int64s], NDArray[np.float64]]

# The share of each row in the vector of its sequence, of what is attended to [B, S] and how many rows these are [B, 1].
SHARES: Mapping[str, Share] = {
    "cls": lambda attended, counts: attended & (attended.cumsum(axis=1) == 1),
    "lasttoken": lambda attended, counts: attended & (attended.cumsum(axis=1) == counts),
    "mean": lambda attended, counts: attended / counts,
    "mean_sqrt_len_tokens": lambda attended, counts: attended / np.sqrt(counts),
}


def layout(builder: GraphBuilder) -> RowLayout:
    """Return the layout of a batch whose inputs are those of the packed graph and INPUTS."""
    ends = builder.op("CumSum", "lengths", builder.scalar(0, np.int64))
    starts = builder.op("Sub", ends, "lengths")
    slots = builder.op("Gather", builder.op("Shape", "take"), builder.scalar(1, np.int64))
    return RowLayout("equal", "", "", "", starts, ends, "take", "keys", "hidden", "back", slots=slots)


def feeds(
    mask: Flags, lengths: Int64s, pooling: str | None = None, masked: float = MASKED
) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of INPUTS for a batch.

    Args:
        mask: whether each packed row is attended to, [N]; a sequence without such a row attends to all of its rows.
        lengths: rows of each sequence, [B].
        pooling: a key of SHARES; None: `shares` are those of no row.
        masked: what is added to the scores of masked rows.
    """
    plain, longest = bool(mask.all()), int(lengths.max())
    equal = plain and longest == lengths.min()
    slots = longest if equal else -(-longest // MULTIPLE) * MULTIPLE
    starts, columns = (np.cumsum(lengths) - lengths)[:, None], np.arange(slots)
    inside = columns < lengths[:, None]
    take = np.where(inside, starts + columns, starts)
    seen = inside & mask[take]
    seen |= inside & ~seen.any(axis=1, keepdims=True)
    counts = seen.sum(axis=1, keepdims=True)
    order = np.argsort(~seen, axis=1, kind="stable")
    shares = SHARES[pooling](seen, counts) if pooling else np.zeros(seen.shape)
    return {
        "take": take,
        "keys": np.take_along_axis(take, order, axis=1),
        "counts": counts[:, 0].astype(np.int32),
        "hidden": np.where(inside, np.where(seen, 0, masked), -np.inf).astype(np.float32),
        "back": np.flatnonzero(inside),
        "shares": shares.astype(np.float32),
        "equal": np.array(equal),
        "plain": np.array(plain),
    }


def pooled(builder: GraphBuilder, x: str) -> str:
    """Emit the vector of each sequence, float32 [B, d], of rows x [N, d]."""
    rows = builder.op("Gather", x, "take")  # (B, S, d)
    shares = builder.op("Unsqueeze", "shares", builder.ints(1))  # (B, 1, S)
    return builder.op("Squeeze", builder.op("MatMul", shares, rows), builder.ints(1))
