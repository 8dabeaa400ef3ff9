"""ALiBi: a bias on attention scores that grows with distance, with one slope per head.

A bias does not mask: causal and padding masks are in masks.py. Only the slopes are stored; a form (a row of FORMS) says
how they become a bias. A key-only form has one row for all queries: under a causal softmax it differs from the
symmetric form by a constant per query, which cancels; without a causal mask the two differ.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.positions.arithmetic import Arithmetic
from models.positions.table import MAX_POSITION, Output, Table, checked_count, checked_name

MAX_BIAS = 8.0
Floats = NDArray[Any]
Steps = Literal["paper", "bloom", "mpt", "falcon"]


@dataclass(frozen=True, slots=True)
class Form:
    """One way in which slopes become a bias for query i and key j.

    Attributes:
        formula: the formula as text; K is the key length.
        steps: the float32 steps of parity arithmetic (`_rounded_slopes`).
        per_query: True: one row per query; False: one row for all queries.
        reads_mask: whether a padding mask [B, K] renumbers the keys.
        fixed: the only max_bias the original library supports; None: any.
        notes: sentences for the reader of a table in this form.
    """

    formula: str
    steps: Steps
    per_query: bool = False
    reads_mask: bool = False
    fixed: float | None = None
    notes: tuple[str, ...] = ()


_ROWS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
FORMS: dict[str, Form] = {name: Form(**row | {"notes": tuple(row["notes"])}) for name, row in _ROWS.items()}
"""The rows of alibi.json, by name."""


def slopes(
    heads: int, max_bias: float = MAX_BIAS, arithmetic: Arithmetic = "exact", form: str = "symmetric"
) -> NDArray[Any]:
    """Return the slope of each head.

    Args:
        heads: 1 or more. Heads beyond the largest power of two p take every other slope of 2p heads, so that slopes
            are not sorted.
        max_bias: the last of p heads has slope 2^-max_bias; above 0.
        arithmetic: exact or parity.
        form: a row of FORMS. It decides the float32 steps of parity; exact slopes are the same in all forms.

    Returns:
        [heads] float64 (exact) or float32 (parity; falcon: bfloat16 values).

    Raises:
        BadEncoding: an unknown form, or heads or max_bias out of range.

    Source: Press et al. 2022, arXiv:2108.12409: 2^(-max_bias (h+1)/p) for h < p, then 2^(-max_bias/2 (2(h-p)+1)/p);
        parity: the paper's own code (symmetric), transformers 5.23 bloom, mpt, falcon.
    """
    row = checked_form(form)
    checked_count("heads", heads)
    if not (isinstance(max_bias, int | float) and math.isfinite(max_bias) and max_bias > 0):
        raise BadEncoding(f"max_bias is {max_bias!r}; it must be a number above 0, usually 8")
    if arithmetic == "exact":
        return np.asarray(np.exp2(-_exponents(heads, float(max_bias))))
    if row.fixed not in (None, max_bias):
        raise BadEncoding(
            f"max_bias is {max_bias}; {form} supports only {row.fixed}: leave it out, or ask for exact arithmetic"
        )
    return _rounded_slopes(row.steps, heads, float(max_bias))


def _exponents(heads: int, max_bias: float) -> NDArray[np.float64]:
    power = _power_of_two(heads)
    first = np.arange(1, power + 1, dtype=np.float64) * (max_bias / power)
    rest = np.arange(1, 2 * (heads - power), 2, dtype=np.float64) * (max_bias / (2 * power))
    return np.concatenate([first, rest])


def _power_of_two(heads: int) -> int:
    """Return the largest power of two that is not above `heads`."""
    return 1 << (heads.bit_length() - 1)


def _rounded_slopes(steps: Steps, heads: int, max_bias: float) -> NDArray[np.float32]:
    # Powers are taken in float64 and rounded once: within 1 ulp of torch's, and the same on every machine.
    if steps == "paper":
        return np.exp2(-_exponents(heads, max_bias)).astype(np.float32)
    if steps == "mpt":
        with np.errstate(over="ignore"):  # beyond float32 an exponent is inf and its slope 0, in torch too
            exponents = _exponents(heads, max_bias).astype(np.float32)
        return np.asarray(np.float32(1) / np.exp2(exponents.astype(np.float64)).astype(np.float32))
    power = _power_of_two(heads)
    first, rest = (np.float64(np.float32(2.0 ** -(max_bias / divisor))) for divisor in (power, 2 * power))
    slopes_of_heads = np.concatenate([first ** np.arange(1, power + 1), rest ** np.arange(1, 2 * (heads - power), 2)])
    return _bfloat16(slopes_of_heads.astype(np.float32)) if steps == "falcon" else slopes_of_heads.astype(np.float32)


def _bfloat16(values: Floats) -> NDArray[np.float32]:
    """Return float32 values rounded to bfloat16."""
    return values.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def tabulate(
    heads: int,
    *,
    form: str = "symmetric",
    query_length: int,
    key_length: int | None = None,
    past: int = 0,
    attention_mask: NDArray[np.int64] | None = None,
    max_bias: float = MAX_BIAS,
    arithmetic: Arithmetic = "exact",
) -> Table:
    """Return the slopes and the bias of one form as a Table.

    Args:
        heads: 1 or more.
        form: a row of FORMS.
        query_length: query i stands at position past + i.
        key_length: key j stands at position j; None: past + query_length.
        past: tokens before the first query, 0 or more.
        attention_mask: int64 [B, key_length] of 0 and 1, for the forms that read one.
        max_bias: above 0; see `slopes`.
        arithmetic: exact or parity.

    Returns:
        a Table with outputs `slopes` [heads] and `bias` [B, heads, S, K]; B is 1 without a mask, S is 1 in the key-only
        forms.

    Raises:
        BadEncoding: an unknown form, a size out of range, or a mask that does not fit.
    """
    row = checked_form(form, attention_mask is not None)
    keys = _keys(query_length, key_length, past)
    key_numbers = _key_numbers(form, keys, attention_mask)
    head_slopes = slopes(heads, max_bias, arithmetic, form)
    queries = query_length if row.per_query else 1
    shape = (len(key_numbers), heads, queries, keys)

    def bias(start: int, stop: int) -> Floats:
        batch, head, query = np.unravel_index(np.arange(start, stop), shape[:-1])
        distances = -np.abs((query + past)[:, None] - key_numbers[0]) if row.per_query else key_numbers[batch]
        return _product(row.steps, head_slopes[head, None], distances)  # [rows, K]

    outputs = {
        "slopes": Output((heads,), lambda start, stop: head_slopes[None][start:stop]),
        "bias": Output(shape, bias),
    }
    facts = {"form": form, "formula": row.formula, "slopes": head_slopes.tolist()}
    facts |= {"max_bias": float(max_bias), "past": past}
    return Table("alibi", arithmetic, outputs, facts, row.notes)


def _keys(query_length: int, key_length: int | None, past: int) -> int:
    """Return the number of keys, after checking the sizes."""
    checked_count("query_length", query_length)
    if not isinstance(past, int) or not 0 <= past < MAX_POSITION - query_length:
        raise BadEncoding(f"past is {past!r}; it must be a whole number, 0 or more")
    return checked_count("key_length", past + query_length if key_length is None else key_length)


def _product(steps: Steps, slope: Floats, key_number: NDArray[np.int64]) -> Floats:
    """Return the slopes times the key numbers in the arithmetic of the slopes."""
    if slope.dtype == np.float32 and steps == "falcon":  # torch takes the int64 numbers to bfloat16 too
        return _bfloat16(slope * _bfloat16(key_number))
    return np.asarray(slope * key_number.astype(slope.dtype))


def _key_numbers(form: str, keys: int, mask: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Return what slopes are multiplied by, int64 [B, K]: key numbers (key-only), or positions of keys (symmetric)."""
    if mask is None:
        return np.arange(keys, dtype=np.int64)[None] - (keys - 1 if form == "mpt" else 0)
    if mask.ndim != 2 or mask.shape[1] != keys or len(mask) == 0:
        raise BadEncoding(f"attention_mask has shape {list(mask.shape)}; it must be [B, {keys}], B of 1 or more")
    if not np.isin(mask, (0, 1)).all():
        raise BadEncoding("attention_mask holds other numbers than 0 and 1")
    return np.asarray((np.cumsum(mask, axis=1) - 1) * mask)


def checked_form(form: str, masked: bool = False) -> Form:
    """Return the row of FORMS with this name.

    Args:
        form: a name in FORMS.
        masked: whether the caller sent an attention_mask.

    Raises:
        BadEncoding: an unknown form, or an attention_mask for a form that reads none.
    """
    row = FORMS[checked_name("ALiBi form", form, FORMS)]
    if masked and not row.reads_mask:
        readers = ", ".join(name for name, row in FORMS.items() if row.reads_mask)
        raise BadEncoding(
            f"attention_mask was sent, but {form} ALiBi reads none: leave padding to the mask of the scores, "
            f"or use a form that reads one: {readers}"
        )
    return row
