"""config.json by its keys, whatever a family calls them: the text tower, its sizes, its heads. Knows no scaling."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from models.errors import BadEncoding
from models.positions.rope.conventions import CONVENTIONS, NO_ROPE, TEXT_TYPES, Convention

NESTS = ("text_config", "language_config", "llm_config", "thinker_config")
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
SPEAKS_OF_ROPE = (
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
    """The part of one config.json that describes the layers that attend.

    known    model_type has a row in CONVENTIONS
    nested   data stood under text_config or the like, where what equals the class default is left out
    notes    what had to be assumed; grows as keys are asked for
    """

    data: Mapping[str, Any]
    model_type: str | None
    convention: Convention
    known: bool
    nested: bool
    notes: list[str] = field(default_factory=list)

    def get(self, key: str) -> Any:
        """The value under its own name or another family's; None where it is absent or null."""
        return next((self.data[name] for name in (key, *ALIASES.get(key, ())) if self.data.get(name) is not None), None)

    def has(self, key: str) -> bool:
        """The key, by any of its names, is there; it may be null."""
        return any(name in self.data for name in (key, *ALIASES.get(key, ())))

    def count(self, key: str) -> int | None:
        """A whole number from 1; None where it is absent or null; raises BadEncoding for anything else."""
        if (value := self.get(key)) is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 1 << 53:
            raise BadEncoding(f"config.json says {key} {str(value)[:60]!r}; it must be a whole number from 1")
        return value

    def size(self, key: str) -> int | None:
        """A size, by default that of the config class; None where neither says."""
        if (value := self.count(key)) is not None or self.convention.sizes is None:
            return value
        default = self.convention.sizes[SIZES.index(key)]
        return None if default is None else int(self.assume(key, default))

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; () where it is absent or null; raises BadEncoding for anything else."""
        value = self.get(key)
        if value is not None and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            raise BadEncoding(f"{key} is {str(value)[:60]}; it must be a list of texts")
        return tuple(value or ())

    def assume(self, key: str, value: Any) -> Any:
        """The value, noted as the default of the model_type."""
        self.note(f"config.json gives no {key}: {value}, the default of {self.model_type}, is taken")
        return value

    def note(self, sentence: str) -> None:
        """Keep a sentence for the reader, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)


def source_of(config: Mapping[str, Any], model_type: str | None) -> Source:
    """The text tower of a config, and its model_type's convention.

    model_type  that of the whole config where it does not say
    raises      BadEncoding for a model that does not rotate, or a config that says nothing of RoPE
    """
    data, kind, nested = config, _kind(config, model_type), False
    while (nest := next((name for name in NESTS if isinstance(data.get(name), Mapping)), None)) is not None:
        data, nested = data[nest], True
        kind = _kind(data, TEXT_TYPES.get(kind or ""))
    if kind not in CONVENTIONS and kind in TEXT_TYPES:
        kind = TEXT_TYPES[kind]
    known = kind in CONVENTIONS
    source = Source(data, kind, CONVENTIONS[kind] if known and kind else Convention(partial=1.0), known, nested)
    _check_rotates(source)
    if not known:
        source.note(
            f"{'no model_type' if kind is None else f'model_type {kind!r} is not known'}: read in the plain way "
            "(layout half, theta 10000 and the whole head unless said, every layer rotates)"
        )
    return source


def _kind(data: Mapping[str, Any], otherwise: str | None) -> str | None:
    kind = data.get("model_type") or otherwise
    if kind is not None and not isinstance(kind, str):
        raise BadEncoding(f"model_type is {str(kind)[:60]}; it must be a text such as 'llama'")
    return kind


def _check_rotates(source: Source) -> None:
    kind = source.model_type
    if kind in NO_ROPE:
        raise BadEncoding(f"{kind} rotates nothing: it has {NO_ROPE[kind]}, no RoPE")
    if source.convention.condition:
        key, value, default = source.convention.condition
        found = default if source.data.get(key) is None else source.data[key]
        if found != value:
            raise BadEncoding(
                f"{kind} rotates only where {key} is {value!r}; here it is {found!r}, so there is no RoPE"
            )
    if not source.known and not any(key in source.data for key in SPEAKS_OF_ROPE):
        raise BadEncoding(
            "this config says nothing of RoPE: give rope_parameters or rope_theta, or the model_type of a model that "
            "rotates"
        )


def head_dim(source: Source, layer_type: str | None = None) -> int:
    """Channels of a head; raises BadEncoding where no size tells.

    layer_type  of a family whose layers differ (Gemma 4's global_head_dim)
    """
    rule = source.convention.head
    if rule == "mla" or (not source.known and source.count("qk_rope_head_dim")):
        return _rotary_slice(source)
    if rule == "joined":
        return _rotary_slice(source) + (source.count("qk_nope_head_dim") or source.assume("qk_nope_head_dim", 64))
    if layer_type and layer_type in source.convention.heads and (own := _own_head_dim(source, layer_type)) is not None:
        return own
    if rule == "given":
        if (given := source.count("head_dim")) is not None:
            return given
        if not source.has("head_dim") and source.convention.head_dim is not None:
            default: int = source.assume("head_dim", source.convention.head_dim)
            return default
    return _derived(source) * (2 if rule == "doubled" else 1)


def _rotary_slice(source: Source) -> int:
    found = source.count("qk_rope_head_dim")
    return found if found is not None else int(source.assume("qk_rope_head_dim", source.convention.rotary_dim))


def _own_head_dim(source: Source, layer_type: str) -> int | None:
    """Transformers 5.23 writes the layers that differ as per_layer_config; published files say global_head_dim."""
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
        raise BadEncoding("nothing tells the size of a head: give head_dim, or hidden_size and num_attention_heads")
    if hidden % heads:
        raise BadEncoding(f"{heads} attention heads do not divide hidden_size {hidden}: give head_dim")
    return hidden // heads
