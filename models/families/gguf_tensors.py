"""The tensors of a GGUF file under the names of a family's base class, each by itself.

llama.cpp joins query, key and value to `attn_qkv`, always in this order and with all heads of each together, and in
some architectures gate and up to `ffn_up`. Both are divided again here. Where it rotates neighbouring channels
(`paired`) it stores the rows of queries and keys in that order; norms of Gemma (`shifted`) it stores plus one.

Source: llama.cpp's convert_hf_to_gguf.py, gguf-py/gguf/constants.py and tensor_mapping.py (0.19).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.checkpoints.safetensors import Tensor
from models.errors import BadCheckpoint
from models.families.family import Family
from models.recipes.steps import (
    AddPosition,
    AddType,
    Attention,
    Embed,
    FeedForward,
    HeadNorms,
    LayerNorm,
    Linear,
    Multiply,
    Norm,
    Parallel,
    RMSNorm,
    ScoreBias,
    Step,
)

_UNREAD = re.compile(r"(enc\.)?blk\.\d+\.(?!attn_rot_embd\.)")  # tensors of blocks; old files hold frequencies too


def input_names(family: Family, head: str) -> dict[str, str]:
    """Return GGUF's names -> the base class's, of the output matrix and the input layer."""
    names = {"output.weight": f"{head}.weight", "output.bias": f"{head}.bias"}
    for step in family.input_layer:
        for name, base in _input_names(step).items():
            names.setdefault(name, base)
    return names


def block_names(family: Family, blocks: int, prefix: str = "") -> dict[str, str]:
    """Return GGUF's names -> the base class's, of all blocks and of the steps after them; joined tensors by parts.

    Args:
        family: family of the tensors.
        blocks: number of blocks.
        prefix: prefix of GGUF's names: "enc." in T5.
    """
    names: dict[str, str] = {}  # of what two steps read, the first
    for block in range(blocks):
        norms = iter(("attn_output_norm", "layer_output_norm"))
        for step in family.block:
            tensors_of_step = _norm_names(step, next(norms)) if isinstance(step, LayerNorm) else _block_names(step)
            for name, base in tensors_of_step.items():
                names.setdefault(base.replace("{block}", str(block)), f"{prefix}blk.{block}.{name}")
    names = {name: base for base, name in names.items()}
    for last in family.after_blocks:
        names |= _norm_names(last, f"{prefix}output_norm")
    if prefix:  # T5 calls the last projection otherwise
        names = {name.replace("attn_output.", "attn_o."): base for name, base in names.items()}
    return names


def unread(tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> str | None:
    """Return the first tensor of a block that has no name, alone or as the parts it joins; None if all have one."""
    return next((name for name in tensors if _UNREAD.match(name) and not _wholes(name, tensors, names)), None)


def arranged(
    tensors: Mapping[str, Tensor], names: Mapping[str, str], heads: tuple[int, int], paired: bool, shifted: bool
) -> dict[str, Tensor]:
    """Return the tensors by the base class's names; those without one keep theirs.

    Args:
        tensors: tensors of the file.
        names: names from `input_names` and `block_names`.
        heads: numbers of heads of queries and of keys.
        paired: whether the file holds rows of queries and keys in pairs, see above.
        shifted: whether it holds the scales of norms with 1 added, see above.

    Raises:
        BadCheckpoint: a joined tensor cannot be divided.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        wholes = _wholes(name, tensors, names)
        shares = [1] * len(wholes) if len(wholes) != 3 else [heads[0], heads[1], heads[1]]
        for part, rows in _divided(tensor, shares, wholes) if wholes else [(name, tensor)]:
            base = names.get(part, part)
            role = part.split(".")[-2] if "." in part else ""
            count = {"attn_q": heads[0], "attn_k": heads[1]}.get(role, 0) if paired else 0
            if count and rows.shape[0] % (2 * count):
                raise BadCheckpoint(f"{name!r} has {rows.shape[0]} rows, which are no pairs of {count} heads")
            raised = shifted and role.endswith("norm") and part.endswith(".weight")
            found[base] = replace(rows, name=base, paired=count, shift=float(raised))
    return found


def _wholes(name: str, tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> list[str]:
    """Return the names that a tensor stands for: its own, or those of the parts it joins; empty if it has none."""
    stem, _, kind = name.rpartition(".")
    parts: Sequence[str] = (name,)
    if stem.endswith(".attn_qkv"):
        parts = [f"{stem.removesuffix('qkv')}{letter}.{kind}" for letter in "qkv"]
    elif stem.endswith(".ffn_up") and f"{stem.removesuffix('up')}gate.weight" not in tensors:
        gate = f"{stem.removesuffix('up')}gate.{kind}"
        parts = [gate, name] if gate in names else parts
    return [part for part in parts if part in names]


def _divided(tensor: Tensor, shares: Sequence[int], names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    unit, rest = divmod(tensor.shape[0], sum(shares))
    if rest:
        raise BadCheckpoint(
            f"{tensor.name!r} has {tensor.shape[0]} rows; {' + '.join(map(str, shares))} do not divide them"
        )
    size, first = tensor.bytes // max(1, tensor.shape[0]), 0
    for name, share in zip(names, shares, strict=True):
        count = unit * share
        shape = (count, *tensor.shape[1:])
        yield name, replace(tensor, shape=shape, offset=tensor.offset + first * size, bytes=count * size)
        first += count


def _input_names(step: Step) -> dict[str, str]:
    match step:
        case Embed():
            return {"token_embd.weight": step.table}
        case AddPosition():
            return {"position_embd.weight": step.table}
        case AddType():
            return {"token_types.weight": step.table}
        case LayerNorm() | RMSNorm():
            return _norm_names(step, "token_embd_norm")
    return {}


def _norm_names(step: Any, stem: str) -> dict[str, str]:
    bias = getattr(step, "bias", None)
    return ({f"{stem}.weight": step.weight} if step.weight else {}) | ({f"{stem}.bias": bias} if bias else {})


def _block_names(step: Step) -> dict[str, str]:
    if isinstance(step, Parallel):
        return _block_names(step.attention) | _block_names(step.feed_forward)
    parts: dict[str, Linear | Norm | HeadNorms | Multiply | None] = {}
    table: dict[str, str] = {}
    if isinstance(step, Attention):
        parts = {"attn_q": step.query, "attn_k": step.key, "attn_v": step.value, "attn_output": step.output}
        parts |= {"attn_norm": step.norm, "attn_q_norm": step.query_norm, "attn_k_norm": step.key_norm}
        parts["post_attention_norm"] = step.closing
        table = {"attn_rel_b.weight": step.bias.table} if isinstance(step.bias, ScoreBias) else {}
    elif isinstance(step, FeedForward):
        parts = {"ffn_up": step.up, "ffn_down": step.down, "ffn_gate": step.gate, "ffn_norm": step.norm}
        parts["post_ffw_norm"] = step.closing
    present = {stem: part for stem, part in parts.items() if part and not isinstance(part, HeadNorms)}
    return table | {name: base for stem, part in present.items() for name, base in _norm_names(part, stem).items()}
