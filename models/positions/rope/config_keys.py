"""Access to config.json under every family's key names: the text tower, its sizes and its heads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from models.errors import BadEncoding
from models.positions.rope.conventions import CONVENTIONS, NO_ROPE, TEXT_TYPES, Convention

TEXT_CONFIG_KEYS = ("text_config", "language_config", "llm_config", "thinker_config", "vlm_config")
SIZES = ("hidden_size", "num_attention_heads", "num_hidden_layers", "max_position_embeddings")
ALIASES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model", "n_embed"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "max_sequence_length", "model_max_length", "seq_length"),
    "head_dim": ("attention_head_dim", "kv_channels"),
    "rope_theta": ("rotary_emb_base",),
    "partial_rotary_factor": ("rotary_pct", "rotary_emb_fraction", "rope_pct"),
    "layer_types": ("layers_block_type",),
}
ROPE_KEYS = (
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "rotary_emb_base",
    "partial_rotary_factor",
    "rotary_pct",
    "rotary_emb_fraction",
    "rope_pct",
    "rotary_dim",
    "rope_ratio",
    "rope_local_base_freq",
    "global_rope_theta",
    "local_rope_theta",
    "qk_rope_head_dim",
    "no_rope_layers",
)


@dataclass(frozen=True, slots=True)
class Source:
    """The part of one config.json that describes the attention layers.

    Attributes:
        data: the part of the config.
        model_type: model_type of the part; None: not given.
        convention: the row of CONVENTIONS, or the default row.
        known: whether model_type has a row in CONVENTIONS.
        nested: whether `data` is text_config or the like, where values that equal the class default are left out.
        notes: assumptions; grows as keys are read.
    """

    data: Mapping[str, Any]
    model_type: str | None
    convention: Convention
    known: bool
    nested: bool
    notes: list[str] = field(default_factory=list)

    def get(self, key: str) -> Any:
        """Return the value under this key or another family's name for it; None where it is absent or null."""
        return next((self.data[name] for name in (key, *ALIASES.get(key, ())) if self.data.get(name) is not None), None)

    def has(self, key: str) -> bool:
        """Return whether the key is present under any of its names, even as null."""
        return any(name in self.data for name in (key, *ALIASES.get(key, ())))

    def count(self, key: str) -> int | None:
        """Return a whole number from 1; None where it is absent or null.

        Raises:
            BadEncoding: anything else.
        """
        if (value := self.get(key)) is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 1 << 53:
            raise BadEncoding(f"config.json says {key} {str(value)[:60]!r}; it must be a whole number from 1")
        return value

    def size(self, key: str) -> int | None:
        """Return a size, by default that of the config class; None where neither gives it."""
        if (value := self.count(key)) is not None or self.convention.sizes is None:
            return value
        default = self.convention.sizes[SIZES.index(key)]
        return None if default is None else int(self.assume(key, default))

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts; () where it is absent or null.

        Raises:
            BadEncoding: anything else.
        """
        value = self.get(key)
        if value is not None and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            raise BadEncoding(f"{key} is {str(value)[:60]}; it must be a list of texts")
        return tuple(value or ())

    def assume(self, key: str, value: Any) -> Any:
        """Return the value, after a note that it is the default of the model_type."""
        self.note(f"config.json gives no {key}: {value}, the default of {self.model_type}, is taken")
        return value

    def note(self, sentence: str) -> None:
        """Add a sentence to the notes, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)


def source_of(config: Mapping[str, Any], model_type: str | None) -> Source:
    """Return the text tower of a config, with its model_type's convention.

    Args:
        config: the parsed config.json, or a fragment.
        model_type: model_type of a whole config that gives none.

    Raises:
        BadEncoding: a model that does not rotate, or a config without any RoPE key.
    """
    data, model_type, nested = config, _model_type(config, model_type), False
    while (key := _nested_key(data)) is not None:
        data, nested = data[key], True
        model_type = _model_type(data, TEXT_TYPES.get(model_type or ""))
    if model_type not in CONVENTIONS and model_type in TEXT_TYPES:
        model_type = TEXT_TYPES[model_type]
    known = model_type in CONVENTIONS
    convention = CONVENTIONS[model_type] if known and model_type else Convention(partial=1.0)
    source = Source(data, model_type, convention, known, nested)
    _check_rotates(source)
    if not known:
        unknown = "no model_type" if model_type is None else f"model_type {model_type!r} is not known"
        source.note(
            f"{unknown}: read with the defaults (layout half, theta 10000 and the whole head unless given, every layer "
            "rotates)"
        )
    return source


def _nested_key(data: Mapping[str, Any]) -> str | None:
    return next((name for name in TEXT_CONFIG_KEYS if isinstance(data.get(name), Mapping)), None)


def _model_type(data: Mapping[str, Any], default: str | None) -> str | None:
    model_type = data.get("model_type") or default
    if model_type is not None and not isinstance(model_type, str):
        raise BadEncoding(f"model_type is {str(model_type)[:60]}; it must be a text such as 'llama'")
    return model_type


def _check_rotates(source: Source) -> None:
    model_type = source.model_type
    if model_type in NO_ROPE:
        raise BadEncoding(f"{model_type} rotates nothing: it has {NO_ROPE[model_type]}, no RoPE")
    if source.convention.condition:
        key, value, default = source.convention.condition
        configured = default if source.data.get(key) is None else source.data[key]
        if configured != value:
            raise BadEncoding(
                f"{model_type} rotates only where {key} is {value!r}; here it is {configured!r}, so there is no RoPE"
            )
    if not source.known and not any(key in source.data for key in ROPE_KEYS):
        raise BadEncoding(
            "this config has no RoPE key: give rope_parameters or rope_theta, or the model_type of a model that rotates"
        )


def head_dim(source: Source, layer_type: str | None = None) -> int:
    """Return the number of channels of a head.

    Args:
        source: the config.
        layer_type: layer type of a family whose layers differ (Gemma 4's global_head_dim).

    Raises:
        BadEncoding: the config has no size to derive it from, or an impossible one.
    """
    head_rule = source.convention.head
    if head_rule == "mla" or (not source.known and source.count("qk_rope_head_dim")):
        return _rotary_slice(source)
    if head_rule == "joined":
        return _rotary_slice(source) + (source.count("qk_nope_head_dim") or source.assume("qk_nope_head_dim", 64))
    if layer_type and layer_type in source.convention.heads:
        own_head_dim = _layer_head_dim(source, layer_type)
        if own_head_dim is not None:
            return own_head_dim
    if head_rule == "given":
        if (value := source.count("head_dim")) is not None:
            return value
        if not source.has("head_dim") and source.convention.head_dim is not None:
            default: int = source.assume("head_dim", source.convention.head_dim)
            return default
    return _derived(source) * (2 if head_rule == "doubled" else 1)


def _rotary_slice(source: Source) -> int:
    value = source.count("qk_rope_head_dim")
    return value if value is not None else int(source.assume("qk_rope_head_dim", source.convention.rotary_dim))


def _layer_head_dim(source: Source, layer_type: str) -> int | None:
    """Return the head of layers that differ, by per_layer_config (transformers 5.23) or global_head_dim (older)."""
    key, default = source.convention.heads[layer_type]
    layers = source.data.get("per_layer_config")
    if layers is None:
        return source.count(key) or int(source.assume(key, default))
    if not isinstance(layers, Mapping) or not all(isinstance(layer, Mapping) for layer in layers.values()):
        raise BadEncoding(f"per_layer_config is {str(layers)[:60]}; it must be an object of one object a layer")
    widths = [layer["head_dim"] for layer in layers.values() if layer.get("head_dim") is not None]
    if any(width != widths[0] or type(width) is not int or width < 1 for width in widths):
        raise BadEncoding(f"per_layer_config gives head_dim {str(widths)[:60]}; one whole number from 1 is read")
    return widths[0] if widths else None


def _derived(source: Source) -> int:
    hidden, heads = source.size("hidden_size"), source.size("num_attention_heads")
    if hidden is None or heads is None:
        raise BadEncoding("the size of a head is missing: give head_dim, or hidden_size and num_attention_heads")
    if hidden % heads:
        raise BadEncoding(f"{heads} attention heads do not divide hidden_size {hidden}: give head_dim")
    return hidden // heads
