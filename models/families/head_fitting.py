"""Fits the output head of a model_type to one checkpoint.

The output matrix is the head's own tensor if the file holds one, whatever the config says; else, where the config ties
them, the input table; else the checkpoint is exported without a head.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from models.checkpoints.checkpoint import Checkpoint
from models.checkpoints.safetensors import Tensor
from models.errors import BadCheckpoint
from models.families.config import ACTIVATIONS, Config
from models.families.heads import HEADS, PLAIN, HeadSpec
from models.recipes.heads import OutputHead, Transform
from models.recipes.steps import Activation, LayerNorm, Linear

TIE = "tie_word_embeddings"
TransformNames = dict[tuple[str, str], str | None]  # by dense or norm, and weight or bias


class MissingHead(Exception):
    """The checkpoint has no output head; the message is the reason, which its card repeats."""


def fit_head(
    checkpoint: Checkpoint, model_type: str, table: str | None, assumed: bool = False
) -> tuple[OutputHead | None, str | None]:
    """Return the head of a checkpoint, or None and the reason why it has none.

    Args:
        checkpoint: config and tensor headers of the checkpoint.
        model_type: model_type of the text, if the checkpoint has several towers.
        table: the word table of its input layer, as the file calls it; None: it has none.
        assumed: treat an unknown model_type as one whose logits are the rows times a matrix.

    Raises:
        BadCheckpoint: the head is there, but does not match its config or its shapes.
    """
    spec = HEADS.get(checkpoint.model_type) or HEADS.get(model_type) or (PLAIN if assumed else None)
    if spec is None:
        nearest = get_close_matches(checkpoint.model_type, HEADS, 1)
        hint = f" (the nearest is {nearest[0]})" if nearest else ""
        return None, f"how model_type {checkpoint.model_type!r} makes logits is not known here{hint}"
    data = _merged(checkpoint.config, owns_tie=checkpoint.model_type in HEADS)
    reason = ""
    while spec is not None:
        try:
            return _fit(spec, Config(data, spec.defaults, {}), checkpoint, table), None
        except MissingHead as missing:
            reason, spec = reason or str(missing), spec.fallback
    return None, reason


def _merged(config: Mapping[str, Any], owns_tie: bool) -> dict[str, Any]:
    """Return a config completed by its text's or decoder's config.

    The tie flag of the inner config is ignored where the outer class has one (`owns_tie`).

    Source: transformers 5.23, modeling_utils.get_expanded_tied_weights_keys (the outermost config's flag).
    """
    inner: Any = next((config[name] for name in ("text_config", "decoder") if isinstance(config.get(name), dict)), {})
    return {key: value for key, value in inner.items() if not owns_tie or key != TIE} | dict(config)


def _fit(spec: HeadSpec, values: Config, checkpoint: Checkpoint, table: str | None) -> OutputHead:
    for key, only in spec.required_values.items():
        if (value := values.get(key)) not in (None, only):
            raise MissingHead(f"its config says {key} {value!r}, and only {only!r} is computed")
    matrix, tied = _matrix(spec, values, checkpoint, table)
    vocab_size, inner = _shape(checkpoint, matrix, 2)
    names = _transform_names(spec, checkpoint)
    bias = _bias(spec, values, checkpoint, vocab_size)  # ModernBERT's classifiers have the transform without it
    transform = _transform(spec, values, checkpoint, inner, names) if names else None
    width = _shape(checkpoint, transform.dense.weight, 2)[1] if transform else inner
    cap = spec.cap if spec.cap and values.get(spec.cap) is not None else None
    return OutputHead(
        width=width,
        inner=inner,
        vocab_size=vocab_size,
        matrix=matrix,
        tied=tied,
        bias=bias,
        transform=transform,
        before=spec.before(values, width),
        after=spec.after(values),
        cap=values.number(cap, above_zero=True) if cap else None,
    )


def _matrix(spec: HeadSpec, values: Config, checkpoint: Checkpoint, table: str | None) -> tuple[str, bool]:
    """Return the name of the output matrix, and whether it is an input table."""
    name, tied = _find(spec.matrix, checkpoint), False
    if name is None and (spec.tie == "forced" or (spec.tie == "config" and values.get(TIE))):
        name, tied = _find(spec.tied_to, checkpoint) or table, True
        if name is None:
            raise MissingHead("the output matrix is tied to a word table, which the checkpoint does not hold")
    if name is None:
        why = "its family never ties them" if spec.tie == "never" else f"its config does not tie them ({TIE})"
        raise MissingHead(f"the checkpoint holds no {spec.matrix[0]}, and {why}")
    if table and _same_bytes(checkpoint.tensors[name], checkpoint.tensors[table]):  # torch.save writes tied ones once
        return table, True
    return name, tied


def _same_bytes(one: Tensor, other: Tensor) -> bool:
    return (one.path, one.offset, one.shape, one.strides) == (other.path, other.offset, other.shape, other.strides)


def _bias(spec: HeadSpec, values: Config, checkpoint: Checkpoint, vocab_size: int) -> str | None:
    if not spec.bias or (spec.bias_if and not values.get(spec.bias_if)):
        return None
    bias = _find(spec.bias, checkpoint)
    if bias is None:
        if spec.needs_bias:
            raise MissingHead(
                f"the checkpoint holds no {spec.bias[-1]}: it was saved without its language model's head"
            )
        return None
    shape = checkpoint.tensors[bias].shape
    if shape not in ((vocab_size,), (1, vocab_size)):  # BART's final_logits_bias is one row
        raise BadCheckpoint(f"{bias!r} has shape {list(shape)}, but the output matrix has {vocab_size} rows")
    return bias


def _transform_names(spec: HeadSpec, checkpoint: Checkpoint) -> TransformNames:
    """Return the file's names of a transform's tensors; none for a head without a transform."""
    names: TransformNames = {}
    if not spec.dense:
        return names
    for stem, kind in ((spec.dense, "dense"), (spec.norm, "norm")):
        for part in ("weight", "bias"):
            name = _find(_spellings(f"{stem}.{part}"), checkpoint)
            if name is None and f"{stem}.{part}" not in spec.optional_tensors:
                raise MissingHead(
                    f"the checkpoint holds no {stem}.{part}: it was saved without its language model's head"
                )
            names[kind, part] = name
    return names


def _transform(spec: HeadSpec, values: Config, checkpoint: Checkpoint, inner: int, names: TransformNames) -> Transform:
    _check(checkpoint, names, inner)
    weight, norm = str(names["dense", "weight"]), str(names["norm", "weight"])
    eps = values.number(spec.eps, above_zero=True) if isinstance(spec.eps, str) else spec.eps
    return Transform(
        Linear(weight, names["dense", "bias"]), _activation(spec, values), LayerNorm(norm, names["norm", "bias"], eps)
    )


def _activation(spec: HeadSpec, values: Config) -> Activation:
    name = spec.activation.removeprefix("=") if spec.activation.startswith("=") else values.get(spec.activation)
    if name not in ACTIVATIONS:
        raise BadCheckpoint(f"config.json says {spec.activation} {name!r}; it must be one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _check(checkpoint: Checkpoint, names: Mapping[tuple[str, str], str | None], inner: int) -> None:
    for (kind, part), name in names.items():
        if name is None:
            continue
        shape = _shape(checkpoint, name, 2 if (kind, part) == ("dense", "weight") else 1)
        if shape[0] != inner:
            raise BadCheckpoint(f"{name!r} has shape {list(shape)}, but the output matrix is {inner} columns wide")


def _shape(checkpoint: Checkpoint, name: str, dimensions: int) -> tuple[int, ...]:
    shape = checkpoint.tensors[name].shape
    if len(shape) != dimensions or 0 in shape:
        raise BadCheckpoint(f"{name!r} has shape {list(shape)}; it must have {dimensions} dimensions, none of them 0")
    return shape


def _spellings(name: str) -> tuple[str, ...]:
    """Return the name, and that of files converted from TensorFlow long ago."""
    return name, name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def _find(names: Iterable[str], checkpoint: Checkpoint) -> str | None:
    """Return the file's name of the first name that it holds, alone or, if it occurs once, after a prefix."""
    for name in names:
        if name in checkpoint.tensors:
            return name
        behind = [held for held in checkpoint.tensors if held.endswith("." + name)]
        if len(behind) == 1:
            return behind[0]
    return None
