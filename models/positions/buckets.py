"""Relative positions as bucket numbers: T5 (also MPNet, UMT5, LongT5) and DeBERTa-v2.

Near positions have a bucket each; far ones share buckets that widen with the logarithm of the distance. Where the
logarithm falls on the edge between two buckets, or within float32 rounding of it, exact and parity may differ
(`LogScale`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.positions.arithmetic import Arithmetic
from models.positions.table import MAX_WIDTH, Output, Table, checked_count

Int64s = NDArray[np.int64]

MAX_BUCKETS = 2**16
LAYER_NORM_EPS = 1e-7
DEBERTA_FORMULA = (
    "|r| <= m: r, else sign(r) * (m + ceil(ln(|r|/m) / ln((max_relative_positions - 1)/m) * (m - 1))); "
    "m = position_buckets // 2, r = i - j"
)
T5_FORMULA = (
    "n < m: n, else m + floor(ln(n/m) / ln(max_distance/m) * (b - m)) up to b - 1; b buckets a direction, m = b // 2, "
    "n = "
)
_LISTED = 8
_MAX_TIE = 64  # see LogScale._round


def t5_bucket(
    relative_position: Int64s,
    *,
    bidirectional: bool,
    num_buckets: int = 32,
    max_distance: int = 128,
    arithmetic: Arithmetic = "exact",
) -> Int64s:
    """Return T5's bucket of each relative position.

    Args:
        relative_position: int64 [...], key - query.
        bidirectional: True (encoders): the upper half of the buckets is for keys after the query. False (decoders):
            such keys share bucket 0 with the query's own position.
        num_buckets: 2 or more; bidirectional: even, 4 or more.
        max_distance: all distances from here on share the last bucket; more than num_buckets/2 (bidirectional: /4),
            the distances that have a bucket each.
        arithmetic: exact or parity.

    Returns:
        int64 [...], 0 .. num_buckets - 1.

    Raises:
        BadEncoding: num_buckets or max_distance is out of range.

    Source: Raffel et al. 2020, arXiv:1910.10683; transformers 5.23 T5Attention._relative_position_bucket.
    """
    side = _buckets_per_side(bidirectional, num_buckets, max_distance)
    exact_buckets = side // 2  # buckets of one distance each
    distance = np.abs(relative_position) if bidirectional else np.maximum(-relative_position, 0)
    distance = np.minimum(distance, max_distance)
    scale = LogScale(exact_buckets, max_distance, side - exact_buckets)
    far = exact_buckets + scale.step_of(np.maximum(distance, exact_buckets), np.floor, arithmetic)
    bucket = np.where(distance < exact_buckets, distance, np.minimum(far, side - 1))
    return np.asarray(bucket + side * (relative_position > 0)) if bidirectional else np.asarray(bucket)


def _buckets_per_side(bidirectional: bool, num_buckets: int, max_distance: int) -> int:
    """Return how many buckets one direction has."""
    checked_count("num_buckets", num_buckets, 4 if bidirectional else 2, MAX_BUCKETS)
    checked_count("max_distance", max_distance)
    if bidirectional and num_buckets % 2:
        raise BadEncoding(
            f"num_buckets is {num_buckets}; bidirectional buckets come in two halves: send an even number"
        )
    side = num_buckets // 2 if bidirectional else num_buckets
    if max_distance <= side // 2:
        raise BadEncoding(
            f"max_distance is {max_distance}; the first {side // 2} distances have a bucket each: send more than that"
        )
    return side


def deberta_bucket(
    relative_position: Int64s, *, position_buckets: int, max_relative_positions: int, arithmetic: Arithmetic = "exact"
) -> Int64s:
    """Return DeBERTa-v2's log bucket of each relative position, signed and not yet clamped (see `c2p_index`).

    Args:
        relative_position: int64 [...], query - key.
        position_buckets: 4 or more; 0 or less: no buckets, the relative positions are returned.
        max_relative_positions: more than position_buckets/2 + 1.
        arithmetic: exact or parity.

    Returns:
        int64 [...], with the sign of relative_position; it grows beyond position_buckets with the distance.

    Raises:
        BadEncoding: position_buckets or max_relative_positions is out of range.

    Source: He et al. 2021, arXiv:2111.09543; transformers 5.23 make_log_bucket_position.
    """
    span_of(position_buckets, max_relative_positions)
    if position_buckets <= 0:
        return relative_position
    middle = position_buckets // 2
    distance = np.abs(relative_position)
    scale = LogScale(middle, max_relative_positions - 1, middle - 1)
    far = middle + scale.step_of(np.maximum(distance, middle), np.ceil, arithmetic)
    return np.asarray(np.where(distance <= middle, relative_position, np.sign(relative_position) * far))


def span_of(position_buckets: int, max_relative_positions: int) -> int:
    """Return half the number of rows of DeBERTa's rel_embeddings.

    Raises:
        BadEncoding: a size is out of range, or the two do not fit each other.
    """
    checked_count("max_relative_positions", max_relative_positions)
    if position_buckets <= 0:
        return max_relative_positions
    checked_count("position_buckets", position_buckets, 4, MAX_BUCKETS)
    if max_relative_positions - 1 <= position_buckets // 2:
        raise BadEncoding(
            f"max_relative_positions is {max_relative_positions}; with {position_buckets} position_buckets the first "
            f"{position_buckets // 2} distances have a bucket each: send more than {position_buckets // 2 + 1}"
        )
    return position_buckets


def c2p_index(bucket: Int64s, span: int) -> Int64s:
    """Return the row of rel_embeddings [2 span, d] of each bucket: bucket + span, clamped to 0 .. 2 span - 1."""
    return np.asarray(np.clip(bucket + span, 0, 2 * span - 1))


def tabulate_t5(
    query_length: int,
    key_length: int | None = None,
    *,
    past: int = 0,
    bidirectional: bool,
    num_buckets: int = 32,
    max_distance: int = 128,
    weights: NDArray[Any] | None = None,
    arithmetic: Arithmetic = "exact",
) -> Table:
    """Return T5's bucket of each query and key and, with a model's learned table, the whole bias.

    Args:
        query_length: query i stands at past + i.
        key_length: key j stands at j; at least past + query_length, which is also what None means.
        past: tokens before the first query, 0 or more.
        bidirectional: see `t5_bucket`, as for num_buckets and max_distance.
        weights: [num_buckets, heads]: relative_attention_bias.weight.
        arithmetic: exact or parity.

    Returns:
        a Table with the output `bucket` int64 [S, K] and, with weights, `bias` [1, heads, S, K].

    Raises:
        BadEncoding: a size is out of range, or weights have another shape.
    """
    keys = _keys(query_length, key_length, past)
    bucket = partial(t5_bucket, bidirectional=bidirectional, num_buckets=num_buckets, max_distance=max_distance)
    # strip[t] is the bucket of key - query = t - last: every row of the table is a slice of it
    relative = np.arange(keys + query_length - 1, dtype=np.int64) - (past + query_length - 1)
    strip = bucket(relative, arithmetic=arithmetic)
    outputs = {"bucket": _band_output(strip, query_length, keys)}
    notes = _disagreement(bucket, max_distance)
    if weights is not None:
        outputs["bias"] = _bias(strip, query_length, keys, _checked_weights(weights, num_buckets, "heads", arithmetic))
        notes += ("the bias is added to the scores; T5 itself does not divide them by sqrt(head_dim)",)
    facts = {
        "formula": T5_FORMULA + ("|j - i|, plus b if j > i" if bidirectional else "max(i - j, 0)"),
        "relative_position": "key - query",
        "bidirectional": bidirectional,
        "num_buckets": num_buckets,
        "max_distance": max_distance,
        "past": past,
    }
    return Table("t5", arithmetic, outputs, facts, notes)


def _keys(query_length: int, key_length: int | None, past: int) -> int:
    """Return the number of keys, after checking the sizes."""
    checked_count("query_length", query_length)
    checked_count("past", past, 0, MAX_WIDTH - query_length)
    keys = checked_count("key_length", past + query_length if key_length is None else key_length)
    if keys < past + query_length:
        raise BadEncoding(f"key_length is {keys}; past and query_length make {past + query_length}: send at least that")
    return keys


def tabulate_deberta(
    query_length: int,
    key_length: int | None = None,
    *,
    position_buckets: int = 256,
    max_relative_positions: int = -1,
    max_position_embeddings: int | None = None,
    weights: NDArray[Any] | None = None,
    norm: tuple[NDArray[Any], NDArray[Any]] | None = None,
    norm_eps: float = LAYER_NORM_EPS,
    arithmetic: Arithmetic = "exact",
) -> Table:
    """Return DeBERTa-v2's bucket of each query and key, and the rows of rel_embeddings that they read.

    Args:
        query_length: 1 or more.
        key_length: None: query_length.
        position_buckets: 4 or more; 0 or less: no buckets.
        max_relative_positions: below 1: max_position_embeddings is used, which is then required.
        max_position_embeddings: read only where max_relative_positions is below 1.
        weights: [2 span, d]: rel_embeddings.weight; span is position_buckets, without buckets max_relative_positions.
        norm: weight [d] and bias [d] of encoder.LayerNorm, where norm_rel_ebd is layer_norm.
        norm_eps: epsilon of that norm.
        arithmetic: exact or parity.

    Returns:
        a Table with the int64 outputs `bucket` [S, K]; `c2p` [S, K] and `p2c` [K, S], the rows of rel_embeddings at
        which the scores against all rows are gathered; with weights also `rel_embeddings` [2 span, d].

    Raises:
        BadEncoding: a size is out of range or missing, or weights have another shape.

    Source: transformers 5.23 DisentangledSelfAttention.disentangled_attention_bias.
    """
    checked_count("query_length", query_length)
    keys = query_length if key_length is None else checked_count("key_length", key_length)
    reach = _reach(max_relative_positions, max_position_embeddings)
    span = span_of(position_buckets, reach)
    bucket = partial(deberta_bucket, position_buckets=position_buckets, max_relative_positions=reach)
    strip = bucket(query_length - 1 - np.arange(keys + query_length - 1, dtype=np.int64), arithmetic=arithmetic)
    outputs = _deberta_outputs(strip, span, query_length, keys)
    if weights is not None:
        outputs["rel_embeddings"] = _rel_embeddings(weights, 2 * span, norm, norm_eps, arithmetic)
    facts = {
        "formula": DEBERTA_FORMULA if position_buckets > 0 else "r = i - j",
        "relative_position": "query - key",
        "position_buckets": position_buckets,
        "max_relative_positions": reach,
        "span": span,
        "rel_embeddings_norm": "layer_norm" if norm else None,
    }
    return Table("deberta", arithmetic, outputs, facts, _disagreement(bucket, reach))


def _deberta_outputs(strip: Int64s, span: int, queries: int, keys: int) -> dict[str, Output]:
    """Return the buckets, and the rows of rel_embeddings that content-to-position and its inverse gather."""
    rows = c2p_index(strip, span)
    return {
        "bucket": _band_output(strip, queries, keys),
        "c2p": _band_output(rows, queries, keys),
        "p2c": _band_output(rows[::-1], keys, queries),
    }


def _reach(max_relative_positions: int, max_position_embeddings: int | None) -> int:
    if max_relative_positions >= 1:
        return checked_count("max_relative_positions", max_relative_positions)
    if max_position_embeddings is None:
        raise BadEncoding(
            f"max_relative_positions is {max_relative_positions}, that is max_position_embeddings: send that as well"
        )
    return checked_count("max_position_embeddings", max_position_embeddings)


def _band(strip: NDArray[Any], rows: int, columns: int, start: int, stop: int) -> NDArray[Any]:
    """Return rows [start, stop) of a table that depends on column - row alone, as a read-only view.

    Row i is strip[rows - 1 - i :][:columns].
    """
    return sliding_window_view(strip[rows - stop : rows - 1 - start + columns], columns)[::-1]


def _band_output(strip: Int64s, rows: int, columns: int) -> Output:
    return Output((rows, columns), lambda start, stop: _band(strip, rows, columns, start, stop), "int64")


def _bias(strip: Int64s, queries: int, keys: int, weights: NDArray[Any]) -> Output:
    """Return the learned value of each head, query and key; a row is one (head, query)."""

    def block(start: int, stop: int) -> NDArray[Any]:
        bias = np.empty((stop - start, keys), weights.dtype)
        for head in range(start // queries, (stop - 1) // queries + 1):
            first, last = max(start - head * queries, 0), min(stop - head * queries, queries)  # this head's queries
            part = strip[queries - last : queries - 1 - first + keys]
            below = head * queries - start
            bias[below + first : below + last] = _band(weights[:, head][part], last - first, keys, 0, last - first)
        return bias

    return Output((1, weights.shape[1], queries, keys), block)


def _checked_weights(weights: NDArray[Any], rows: int, what: str, arithmetic: Arithmetic) -> NDArray[Any]:
    if weights.ndim != 2 or len(weights) != rows or weights.shape[1] == 0:
        raise BadEncoding(f"weights have shape {list(weights.shape)}; they must be [{rows}, {what}]")
    return weights.astype(np.float64 if arithmetic == "exact" else np.float32)


def _rel_embeddings(
    weights: NDArray[Any],
    count: int,
    norm: tuple[NDArray[Any], NDArray[Any]] | None,
    norm_eps: float,
    arithmetic: Arithmetic,
) -> Output:
    """Return the table [count, d] as attention reads it, normalised in float64 where there is a norm."""
    weights = _checked_weights(weights, count, "hidden_size", arithmetic)

    def block(start: int, stop: int) -> NDArray[Any]:
        rows = weights[start:stop]
        if norm is None:
            return rows
        wide = rows.astype(np.float64)
        centred = wide - wide.mean(axis=1, keepdims=True)
        scale = np.sqrt((centred * centred).mean(axis=1, keepdims=True) + norm_eps)
        return np.asarray((centred / scale * norm[0] + norm[1]).astype(rows.dtype))

    return Output(weights.shape, block)


def _disagreement(bucket: Callable[..., Int64s], max_distance: int) -> tuple[str, ...]:
    """Return a note that names the distances for which exact and parity choose different buckets."""
    behind = -np.arange(max_distance + 1, dtype=np.int64)
    differing = np.flatnonzero(bucket(behind, arithmetic="exact") != bucket(behind, arithmetic="parity")).tolist()
    if not differing:
        return ()
    more = f" and {len(differing) - _LISTED} more" if len(differing) > _LISTED else ""
    distances = ", ".join(map(str, differing[:_LISTED])) + more
    return (
        f"distance {distances}: so near the edge of two buckets that exact and parity (float32) choose different ones",
    )


@dataclass(frozen=True, slots=True)
class LogScale:
    """A logarithmic scale of distances: `steps` even steps of ln(distance) lead from `start` to `end`.

    T5 rounds the steps down, DeBERTa up. Parity takes the float32 steps of transformers 5.23. Its logarithm is torch's,
    which differs by an ulp between machines; here it is rounded correctly, which can move only a distance that lies
    within 1e-6 of a step.

    Attributes:
        start: distance of step 0, 1 or more.
        end: distance of the last step.
        steps: number of steps between them.
    """

    start: int
    end: int
    steps: int

    def step_of(self, distance: Int64s, rounding: Callable[[Any], Any], arithmetic: Arithmetic) -> Int64s:
        """Return steps * ln(distance / start) / ln(end / start), rounded.

        Args:
            distance: int64 [...], `start` or more.
            rounding: np.floor or np.ceil.
            arithmetic: exact: float64, and whole numbers where a distance lies exactly on a step. parity: float32.
        """
        if arithmetic == "parity":
            span = _log(np.float32(self.end / self.start))
            ratio = distance.astype(np.float32) / np.float32(self.start)
            return np.asarray(rounding(_log(ratio) / span * np.float32(self.steps)).astype(np.int64))
        span = math.log1p((self.end - self.start) / self.start)
        position = np.log1p((distance - self.start) / self.start) / span * self.steps
        return self._round(distance, position, rounding)

    def _round(self, distance: Int64s, position: NDArray[np.float64], rounding: Callable[[Any], Any]) -> Int64s:
        """Return `position` rounded; ties are decided in whole numbers.

        A tie at step c means (distance/start)^steps = (end/start)^c. With common factors taken from steps and c, both
        ratios are powers of one fraction with exactly these exponents; as the numbers are below 2^63, the exponents are
        below 64. Where they are higher there is no tie, and float64 decides.
        """
        nearest = np.rint(position)
        result = np.asarray(rounding(position).astype(np.int64))
        close = np.abs(position - nearest) <= 1e-13 * np.maximum(position, 1.0)
        for tied_distance, step in {(int(d), int(c)) for d, c in zip(distance[close], nearest[close], strict=True)}:
            shared = math.gcd(self.steps, step)
            steps, whole = self.steps // shared, step // shared
            if max(steps, whole) < _MAX_TIE:
                left, right = tied_distance**steps * self.start**whole, self.end**whole * self.start**steps
                result[close & (distance == tied_distance)] = rounding(step + ((left > right) - (left < right)) / 2)
        return result


def _log(value: NDArray[np.float32] | np.float32) -> Any:
    """Return the float32 logarithm, rounded correctly."""
    return np.log(value, dtype=np.float64).astype(np.float32)
