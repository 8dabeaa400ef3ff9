"""Attention masks: causal, padding, sliding-window, chunked and packed rules, combined by AND into one mask.

Every rule but padding lets a query see one range of neighbouring keys, and the intersection of ranges is a range. So a
mask is the first and last key of each query, and the padding. Two additive masks must not be added to each other: the
sum of two lowest values overflows to -inf.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.positions.arithmetic import Arithmetic
from models.positions.table import DTYPES, MAX_WIDTH, Output, Table, checked_count, checked_name

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]
Form = Literal["additive", "boolean"]
Fill = Literal["min", "inf"]

FORMS = ("additive", "boolean")
FILLS = ("min", "inf")


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """The rules of one mask. Key j stands at position j, query i at past + i, both in their own row of the batch.

    Attributes:
        queries: number of queries, S.
        keys: number of keys, K.
        past: tokens before the first query.
        causal: whether keys after the query are masked.
        window: sliding window in tokens; None: none.
        chunk: length of an attention chunk in tokens; None: none.
        padding: bool [B, K], False for a pad; None: no pads.
        left: int64 [B], pads before the first real key; chunks are counted from it.
        group: (first, last) int64 [B, K]: the range of keys of the packed sequence (and of its chunk) around each key.
    """

    queries: int
    keys: int
    past: int
    causal: bool
    window: int | None
    chunk: int | None
    padding: Bools | None
    left: Int64s
    group: tuple[Int64s, Int64s] | None

    @property
    def batch(self) -> int:
        """Rows of the batch; 1 where neither padding nor packing distinguishes them."""
        return len(self.left)

    @property
    def self_attention(self) -> bool:
        """Whether every query must be one of the keys; if not, keys may be another sequence's (cross-attention)."""
        return self.causal or self.window is not None or self.chunk is not None or self.group is not None

    def key_ranges(self, row: Int64s) -> tuple[Int64s, Int64s]:
        """Return the first and last key, pads included, that the queries of rows (b, i) of the mask may see."""
        batch, query = row // self.queries, row % self.queries + self.past
        first, last = np.zeros_like(row), np.full_like(row, self.keys - 1)
        if self.causal:
            last = np.minimum(last, query)
        if self.window is not None:
            first = np.maximum(first, query - self.window + self.causal)
            last = np.minimum(last, query if self.causal else query + self.window)
        if self.group is not None:
            first, last = np.maximum(first, self.group[0][batch, query]), np.minimum(last, self.group[1][batch, query])
        elif self.chunk is not None:
            chunk = query - (query - self.left[batch]) % self.chunk  # its first key
            first, last = np.maximum(first, chunk), np.minimum(last, chunk + self.chunk - 1)
        return first, last

    def visible(self, start: int, stop: int) -> Bools:
        """Return rows [start, stop) of the boolean mask, [stop - start, K]; True where the key is visible."""
        row = np.arange(start, stop, dtype=np.int64)
        first, last = self.key_ranges(row)
        key = np.arange(self.keys, dtype=np.int64)
        visible = key >= first[:, None]
        visible &= key <= last[:, None]
        if self.padding is not None:
            visible &= self.padding[row // self.queries]
        return visible

    def count_blind(self) -> int:
        """Return how many queries see no key at all."""
        if self.padding is None:
            return 0
        if not self.self_attention:
            return self.queries * int(np.count_nonzero(~self.padding.any(axis=1)))
        real = np.zeros((self.batch, self.keys + 1), np.int64)
        np.cumsum(self.padding, axis=1, out=real[:, 1:])
        row = np.arange(self.batch * self.queries, dtype=np.int64)
        first, last = self.key_ranges(row)
        batch = row // self.queries
        return int(np.count_nonzero(real[batch, last + 1] == real[batch, first]))


def _rules(
    query_length: int,
    key_length: int | None,
    past: int,
    causal: bool,
    window: int | None,
    chunk: int | None,
    arrays: Mapping[str, NDArray[Any] | None],
) -> Rules:
    """Return the rules of one mask, after checking the parameters of `tabulate`."""
    checked_count("query_length", query_length)
    checked_count("past", past, 0, MAX_WIDTH - query_length)
    rows = {name: _checked_rows(name, array) for name, array in arrays.items() if array is not None}
    keys = _key_length(query_length, key_length, past, rows)
    for name, size in (("window", window), ("chunk", chunk)):
        if size is not None:
            checked_count(name, size)
    padding = _padding(rows.get("attention_mask"))
    left = _left_pads(padding, max([len(row) for row in rows.values()], default=1), keys)
    group = _groups(rows["position_ids"], chunk) if "position_ids" in rows else None
    combined = Rules(query_length, keys, past, causal, window, chunk, padding, left, group)
    if combined.self_attention and keys < past + query_length:
        raise BadEncoding(
            f"key_length is {keys}; past and query_length make {past + query_length}: send at least that, or, for "
            "cross-attention, causal = false and no window, chunk or position_ids"
        )
    return combined


def _checked_rows(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "bui":
        raise BadEncoding(f"{name} is {array.dtype} {list(array.shape)}; it must be whole numbers [batch, key_length]")
    return array


def _key_length(query_length: int, key_length: int | None, past: int, rows: dict[str, NDArray[Any]]) -> int:
    shapes = {name: array.shape for name, array in rows.items()}
    keys = key_length
    if keys is None:
        keys = next((shape[1] for shape in shapes.values()), past + query_length)
    checked_count("key_length", keys)
    for name, shape in shapes.items():
        if shape[1] != keys:
            raise BadEncoding(f"{name} has {shape[1]} keys; key_length is {keys}: send one number for each key")
    if len({shape[0] for shape in shapes.values()}) > 1:
        sizes = " and ".join(f"{name} {shape[0]}" for name, shape in shapes.items())
        raise BadEncoding(f"rows of the batch: {sizes}; send as many of one as of the other")
    return keys


def _padding(attention_mask: NDArray[Any] | None) -> Bools | None:
    if attention_mask is None:
        return None
    if not ((attention_mask == 0) | (attention_mask == 1)).all():
        raise BadEncoding("attention_mask holds other numbers than 0 (pad) and 1 (token)")
    return attention_mask.astype(np.bool_)


def _left_pads(padding: Bools | None, batch: int, keys: int) -> Int64s:
    """Return the pads before the first real key of each row of the batch."""
    if padding is None:
        return np.zeros(batch, np.int64)
    return np.where(padding.any(axis=1), padding.argmax(axis=1), keys).astype(np.int64)


def _groups(position_ids: Int64s, chunk: int | None) -> tuple[Int64s, Int64s]:
    """Return the first and last key of the range around each key; a range ends where positions skip a number."""
    starts = np.ones(position_ids.shape, np.bool_)
    starts[:, 1:] = np.diff(position_ids.astype(np.int64)) != 1
    if chunk is not None:
        starts[:, 1:] |= np.diff(position_ids.astype(np.int64) // chunk) != 0
    key = np.arange(position_ids.shape[1], dtype=np.int64)
    ends = np.ones_like(starts)
    ends[:, :-1] = starts[:, 1:]
    first = np.maximum.accumulate(np.where(starts, key, 0), axis=1)
    last = np.minimum.accumulate(np.where(ends, key, len(key))[:, ::-1], axis=1)[:, ::-1]
    return first, last


def _masked_value(form: str, fill: str, dtype: str) -> float:
    """Return the value of a masked key in an additive mask; BadEncoding for an unknown form, fill or dtype."""
    for name, value, known in (("form", form, FORMS), ("fill", fill, FILLS), ("dtype", dtype, DTYPES)):
        checked_name(name, value, known)
    lowest = ml_dtypes.finfo(DTYPES[dtype]).min  # type: ignore[no-untyped-call]  # as transformers' eager attention adds
    return float(lowest) if fill == "min" else -np.inf


def tabulate(
    query_length: int,
    key_length: int | None = None,
    *,
    past: int = 0,
    causal: bool = True,
    window: int | None = None,
    chunk: int | None = None,
    attention_mask: NDArray[Any] | None = None,
    position_ids: NDArray[Any] | None = None,
    form: Form = "additive",
    fill: Fill = "min",
    dtype: str = "float32",
    arithmetic: Arithmetic = "exact",
) -> Table:
    """Return the mask that combines all the given rules, as a Table.

    Args:
        query_length: query i stands at past + i.
        key_length: key j stands at j; None: that of attention_mask or position_ids, else past + query_length.
        past: tokens before the first query, 0 or more.
        causal: only keys j <= i.
        window: causal: `window` keys, the query's own included; not causal: |i - j| <= window, so 2 window + 1 keys.
        chunk: only keys of the query's own chunk, counted from the first real key or, where given, by position_ids.
        attention_mask: [B, K] of 0 (pad) and 1; no query sees a pad.
        position_ids: [B, K]: rows of packed sequences; a new sequence begins where they do not go up by one.
        form: additive: 0 where visible, elsewhere `fill`. boolean: True where visible.
        fill: min: the lowest finite value of `dtype`. inf: -inf.
        dtype: the dtype in which the additive mask is sent; in a narrower one its lowest value would overflow to -inf.
        arithmetic: recorded in the table; both give the same mask.

    Returns:
        a Table with output `mask` [B, 1, S, K]; B is 1 without attention_mask and position_ids.

    Raises:
        BadEncoding: a parameter is unknown or out of range, or two do not fit each other.

    Source: transformers 5.23 masking_utils: create_causal_mask, create_sliding_window_causal_mask,
        create_chunked_causal_mask, create_bidirectional_mask, create_bidirectional_sliding_window_mask.
    """
    masked_value = _masked_value(form, fill, dtype)
    arrays = {"attention_mask": attention_mask, "position_ids": position_ids}
    combined = _rules(query_length, key_length, past, causal, window, chunk, arrays)
    blind = combined.count_blind()
    facts = _facts(combined, form, "-inf" if fill == "inf" else masked_value, dtype, blind)
    outputs = {"mask": _output(combined, None if form == "boolean" else masked_value, dtype)}
    return Table("mask", arithmetic, outputs, facts, _notes(combined, position_ids, blind, form, fill))


def _facts(combined: Rules, form: str, masked: float | str, dtype: str, blind: int) -> dict[str, Any]:
    """Return the facts of the table."""
    return {
        "formula": _formula(combined),
        "description": _description(combined),
        "past": combined.past,
        "form": form,
        "masked": False if form == "boolean" else masked,
        "dtype": "bool" if form == "boolean" else dtype,
        "queries_that_see_nothing": blind,
    }


def _output(combined: Rules, masked_value: float | None, dtype: str) -> Output:
    """Return the mask [B, 1, S, K]: boolean, or with masked_value where a key is masked."""
    shape = (combined.batch, 1, combined.queries, combined.keys)
    if masked_value is None:
        return Output(shape, combined.visible, "bool")
    number = np.float64 if dtype == "float64" else np.float32  # holds the lowest value of every other dtype exactly
    values = number(0), number(masked_value)
    return Output(shape, lambda start, stop: np.where(combined.visible(start, stop), *values))


def _formula(combined: Rules) -> str:
    terms = {
        "j <= i": combined.causal,
        f"j > i - {combined.window}": combined.causal and combined.window,
        f"|i - j| <= {combined.window}": not combined.causal and combined.window,
        "sequence[b, j] == sequence[b, i]": combined.group,
        f"position_ids[b, j] // {combined.chunk} == position_ids[b, i] // {combined.chunk}": combined.group
        and combined.chunk,
        f"(j - left[b]) // {combined.chunk} == (i - left[b]) // {combined.chunk}": not combined.group
        and combined.chunk,
        "attention_mask[b, j]": combined.padding is not None,
    }
    return " and ".join(term for term, holds in terms.items() if holds) or "all"


def _description(combined: Rules) -> str:
    """Return which keys a query attends to, in words."""
    window = combined.window
    if combined.causal:
        sees = f"itself and the {window - 1:,} tokens before it" if window else "itself and all tokens before it"
        sees = "itself alone" if window == 1 else sees.replace(" 1 tokens", " 1 token")
    else:
        sees = f"tokens up to {window:,} away on either side" if window else "every token"
    limits = [f"within its chunk of {combined.chunk:,} tokens"] if combined.chunk else []
    limits += ["within its packed sequence"] if combined.group else []
    limits += ["padding excluded"] if combined.padding is not None else []
    return ", ".join((f"attends to {sees}", *limits))


def _notes(combined: Rules, position_ids: NDArray[Any] | None, blind: int, form: str, fill: str) -> tuple[str, ...]:
    notes = []
    if blind:
        nan = form == "boolean" or fill == "inf"
        outcome = "gives NaN there" if nan else "spreads evenly over all keys there, pads too"
        notes.append(f"queries that see no key: {blind}; softmax {outcome}: leave their outputs out")
    if combined.window is not None and not combined.causal:
        notes.append("a window without causal counts both sides: 2 * window + 1 keys; with causal it is `window` keys")
    if position_ids is not None and (combined.padding is not None or combined.past):
        notes.append(
            "transformers 5.23 looks for packed sequences only without attention_mask and cache; here all hold"
        )
    if position_ids is not None and combined.chunk and (position_ids[:, 0] != 0).any():
        notes.append(
            "chunks follow position_ids; transformers 5.23 counts them from the row's start if no row is packed"
        )
    return tuple(notes)
