"""Rotation of q and k: which channels form a pair, where the pair is written, and in which direction it turns.

A pair (u, v) becomes (u cos a - v sin a, u sin a + v cos a). cos and sin have single width, one value per pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.positions.arithmetic import Arithmetic
from models.positions.table import DTYPES, checked_name, rounded

Pairing = Literal["half", "adjacent"]
Pair = tuple[slice, slice]
Width = Literal["single", "duplicated"]  # of a table: a value per pair, or per channel
WIDTHS = ("single", "duplicated")
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """One arrangement of pairs in a head of D channels of which r rotate.

    Attributes:
        read: channels of pair i in the input. half: (i, i + r/2); adjacent: (2i, 2i + 1).
        written: channels of pair i in the output, likewise.
        sign: 1, or -1 where a pair turns by minus the angle.
        trailing: whether the last r channels rotate, not the first.
        blocks: the r channels form this many equal blocks, each paired within itself.
        users: model types of transformers 5.23 with this layout.
    """

    read: Pairing
    written: Pairing
    sign: int = 1
    trailing: bool = False
    blocks: int = 1
    users: str = ""


LAYOUTS: dict[str, Layout] = {
    "half": Layout("half", "half", users="llama, mistral, qwen, gemma, gpt_neox, phi, olmo, glm4_moe, gpt_oss"),
    "interleaved": Layout("adjacent", "adjacent", users="gptj, codegen, cohere, glm4, ernie4_5, roformer, llama4"),
    "interleave_in_half_out": Layout("adjacent", "half", users="deepseek_v3, glm4_moe_lite, longcat_flash, mistral4"),
    "half_negative": Layout("half", "half", sign=-1, users="nanochat"),
    "interleaved_trailing": Layout("adjacent", "adjacent", trailing=True, users="deepseek_v4"),
    "half_trailing": Layout("half", "half", trailing=True, users="none in 5.23; deepseek_v4 weights converted to half"),
    "half_per_axis": Layout("half", "half", blocks=2, users="gemma4 vision: each half of the head for one axis"),
}


def check_channels(layout: Layout, head_dim: int, rotary_dim: int) -> None:
    """Check that rotary_dim channels of a head of head_dim can rotate in this layout.

    Raises:
        BadEncoding: they cannot.
    """
    if head_dim < 2 or head_dim % 2:
        raise BadEncoding(f"a head of {head_dim} channels has no whole number of pairs: it must be even, 2 or more")
    step = 2 * layout.blocks
    if not step <= rotary_dim <= head_dim or rotary_dim % step:
        raise BadEncoding(f"{rotary_dim} channels cannot rotate: give a multiple of {step} up to the head's {head_dim}")


def pairs(layout: Layout, pairing: Pairing, head_dim: int, rotary_dim: int) -> list[Pair]:
    """Return the first and second channels of the pairs, as two slices of the head for each block.

    Args:
        layout: the arrangement of pairs.
        pairing: the `read` or `written` of a layout.
        head_dim: channels of a head.
        rotary_dim: channels that rotate.
    """
    start = head_dim - rotary_dim if layout.trailing else 0
    width = rotary_dim // layout.blocks
    return [_pair(pairing, start + block * width, width) for block in range(layout.blocks)]


def _pair(pairing: Pairing, start: int, width: int) -> Pair:
    stop, middle = start + width, start + width // 2
    return {
        "half": (slice(start, middle), slice(middle, stop)),
        "adjacent": (slice(start, stop, 2), slice(start + 1, stop, 2)),
    }[pairing]


def rotate(
    x: Array,
    cos: Array,
    sin: Array,
    layout: str,
    *,
    inverse: bool = False,
    skip: int = 0,
    attention_factor: float = 1.0,
    arithmetic: Arithmetic = "exact",
    widen: bool = False,
) -> Array:
    """Return q or k with each token's pairs turned by its angles; channels that do not rotate are unchanged.

    Args:
        x: float [..., S, D].
        cos: [S - skip, r/2], or [B.., S - skip, r/2] where x begins with the same B.. (heads follow).
        sin: likewise.
        layout: a row of LAYOUTS.
        inverse: whether to undo a rotation by the same cos and sin.
        skip: leading tokens that are not rotated (DINOv3's CLS and registers).
        attention_factor: factor included in cos and sin; only the inverse reads it and divides by its square.
        arithmetic: exact: float64, rounded once to x's dtype. parity: every product and sum rounded to x's dtype, to
            which cos and sin are cast first, as transformers does.
        widen: parity only: half precision is rotated in float32 with cos and sin as they are, then rounded once, as
            transformers does for Llama 4, Cohere, Ernie 4.5, DeepSeek-V4 and the Qwen vision towers.

    Returns:
        x's shape and dtype.

    Raises:
        BadEncoding: unknown layout, shapes or dtypes that do not fit.
    """
    row = LAYOUTS[checked_name("layout", layout, LAYOUTS)]
    head_dim, rotary_dim = _checked_shapes(row, x, cos, sin, skip)
    working = _working(x.dtype, arithmetic, widen)
    cos, sin = (_over_heads(values, x.ndim).astype(working, copy=False) for values in (cos, sin))
    sin = -sin if (row.sign < 0) != inverse else sin
    if inverse:
        cos, sin = (values * inverse_scale(attention_factor) for values in (cos, sin))
    read, written = (row.written, row.read) if inverse else (row.read, row.written)
    places = [pairs(row, pairing, head_dim, rotary_dim) for pairing in (read, written)]
    turned = rounded(_turned(x[..., skip:, :].astype(working, copy=False), cos, sin, *places), x.dtype.name)
    return np.concatenate([x[..., :skip, :], turned], axis=-2) if skip else turned


def _turned(source: Array, cos: Array, sin: Array, read: list[Pair], written: list[Pair]) -> Array:
    """Return a copy of the source [..., S, D] with the pairs of each block turned."""
    turned = source.copy()
    angles = (np.split(values, len(read), axis=-1) for values in (cos, sin))
    for (first, second), (to_first, to_second), c, s in zip(read, written, *angles, strict=True):
        u, v = source[..., first], source[..., second]
        turned[..., to_first] = u * c - v * s
        turned[..., to_second] = v * c + u * s
    return turned


def _over_heads(values: Array, dims: int) -> Array:
    """Return [B.., S, r/2] with as many axes as x, those between B.. and S of size 1; [S, r/2] broadcasts as it is."""
    heads = (1,) * (dims - values.ndim) if values.ndim > 2 else ()
    return values.reshape(*values.shape[:-2], *heads, *values.shape[-2:])


def inverse_scale(attention_factor: float) -> float:
    """Return the factor for the cos and sin of an inverse rotation, 1 / attention_factor^2.

    Raises:
        BadEncoding: attention_factor is not a finite number above 0.
    """
    if not np.isfinite(attention_factor) or attention_factor <= 0:
        raise BadEncoding(f"attention_factor is {attention_factor}; it must be a number above 0")
    return 1.0 / float(attention_factor) ** 2


def _working(dtype: np.dtype[Any], arithmetic: Arithmetic, widen: bool) -> np.dtype[Any]:
    if arithmetic == "exact":
        return np.dtype(np.float64)
    return np.dtype(np.float32) if widen and dtype.itemsize == 2 else dtype


def _checked_shapes(row: Layout, x: Array, cos: Array, sin: Array, skip: int) -> tuple[int, int]:
    if x.dtype.name not in DTYPES:
        raise BadEncoding(f"x is {x.dtype.name}; it must be one of {', '.join(DTYPES)}")
    if x.ndim < 2 or cos.ndim < 2 or cos.shape != sin.shape or cos.ndim > x.ndim:
        raise BadEncoding(
            f"x is {list(x.shape)}, cos {list(cos.shape)}, sin {list(sin.shape)}; they must be [..., tokens, head_dim] "
            "and twice [tokens, rotary_dim/2] or [batch, tokens, rotary_dim/2]"
        )
    head_dim, rotary_dim = x.shape[-1], 2 * cos.shape[-1]
    check_channels(row, head_dim, rotary_dim)
    if skip < 0 or x.shape[-2] - skip != cos.shape[-2]:
        raise BadEncoding(
            f"x has {x.shape[-2]} tokens of which {skip} are skipped, cos and sin have {cos.shape[-2]}: "
            "send one row of cos and sin for each token that rotates"
        )
    if (leading := cos.shape[:-2]) != x.shape[: len(leading)]:
        raise BadEncoding(
            f"cos begins with {list(leading)}, x with {list(x.shape[:-2])}: the leading axes must be the same"
        )
    return head_dim, rotary_dim


def duplicate(values: Array, layout: str) -> Array:
    """Return cos or sin as transformers keeps it for this layout: [..., r/2] -> [..., r], each value at both channels.

    In half, two copies stand side by side; in interleaved, equal values are neighbours (Cohere, Ernie 4.5). Where
    reading and writing differ, the written order counts.
    """
    row = LAYOUTS[checked_name("layout", layout, LAYOUTS)]
    width = 2 * values.shape[-1]
    check_channels(row, width, width)
    wide = np.empty((*values.shape[:-1], width), values.dtype)
    blocks = np.split(values, row.blocks, axis=-1)
    for block, (first, second) in zip(blocks, pairs(row, row.written, width, width), strict=True):
        wide[..., first] = wide[..., second] = block
    return wide


def convert_rows(weight: Array, head_dim: int, rotary_dim: int, source: str, target: str) -> Array:
    """Return a q or k projection trained for one layout with its rows reordered for another; scores stay the same.

    Args:
        weight: [heads * head_dim, ...]: a weight as a Linear keeps it, or its bias.
        head_dim: channels of a head.
        rotary_dim: channels of a head that rotate.
        source: the layout that the weights were trained for.
        target: the layout in which their output will be rotated.

    Returns:
        the same rows in another order.

    Raises:
        BadEncoding: sizes that do not fit, or an unknown layout.
    """
    if weight.ndim < 1 or head_dim < 1 or weight.shape[0] % head_dim:
        raise BadEncoding(f"a weight of shape {list(weight.shape)} has no whole number of heads of {head_dim} rows")
    order = permutation(head_dim, rotary_dim, source, target)
    heads = weight.reshape(-1, head_dim, *weight.shape[1:])
    return np.ascontiguousarray(heads[:, order].reshape(weight.shape))


def permutation(head_dim: int, rotary_dim: int, source: str, target: str) -> NDArray[np.int64]:
    """Return, for each channel of a head in the target layout, the channel of the source layout it comes from.

    Raises:
        BadEncoding: sizes that do not fit, or an unknown layout.
    """
    source_channels, target_channels = (
        _channels(LAYOUTS[checked_name("layout", name, LAYOUTS)], head_dim, rotary_dim) for name in (source, target)
    )
    order = np.empty(head_dim, np.int64)
    order[target_channels] = source_channels
    return order


def _channels(layout: Layout, head_dim: int, rotary_dim: int) -> NDArray[np.int64]:
    """Return the first channels of the pairs, then the second ones, then those that do not rotate.

    A pair that turns backwards equals one that turns forwards with its channels swapped.
    """
    check_channels(layout, head_dim, rotary_dim)
    channels = np.arange(head_dim)
    channel_pairs: Sequence[Pair] = pairs(layout, layout.read, head_dim, rotary_dim)
    firsts, seconds = (np.concatenate([channels[pair[side]] for pair in channel_pairs]) for side in (0, 1))
    turning = np.concatenate([firsts, seconds] if layout.sign > 0 else [seconds, firsts])
    return np.concatenate([turning, np.setdiff1d(channels, turning)])
