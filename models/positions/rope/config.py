"""config.json → the ropes of a model, in every form that transformers has written.

The result is what transformers 5.23 computes; parameters that it ignores silently are named in the notes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.errors import BadEncoding, BadScaling
from models.positions.rope.config_keys import Source, head_dim, source_of
from models.positions.rope.config_tables import READING_TRAINED, Parameters, rope_type_of, tables_of
from models.positions.rope.conventions import ALL
from models.positions.rope.frequencies import Rope, frequencies
from models.positions.rope.layers import layers_of
from models.positions.rope.scaling_parameters import TRAINED, finite, positive

_NOT_SCALING = (
    "rope_type",
    "type",
    "rope_theta",
    "mrope_section",
    "mrope_interleaved",
    "finetuned",
    "max_position_embeddings",
    "llama_4_scaling_beta",
)
_MSCALES = ("short_mscale", "long_mscale")


@dataclass(frozen=True, slots=True)
class LayerRope:
    """How one kind of layer rotates.

    Attributes:
        rope: the parameters of its table.
        layout: a row of rotation.LAYOUTS.
        sections: sections of M-RoPE, in the order of its axes; None: one position per token.
        axes: a row of multi_axis.AXES; None: no M-RoPE.
        notes: sentences for the reader of this table.
        softmax_scale: factor that attention scores are also multiplied by; cos and sin do not include it (DeepSeek's
            YaRN).
    """

    rope: Rope
    layout: str
    sections: tuple[int, ...] | None
    axes: str | None
    notes: tuple[str, ...] = ()
    softmax_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """All the RoPE of one model.

    Attributes:
        tables: tables by layer type; "all" if every layer that rotates uses the same.
        layers: the table of each layer, None: it does not rotate; () where the config has no number of layers.
        model_type: model_type of the text tower; None: not known.
        notes: assumptions that were made.
    """

    tables: Mapping[str, LayerRope]
    layers: tuple[str | None, ...]
    model_type: str | None
    notes: tuple[str, ...] = ()


def read(config: Mapping[str, Any], model_type: str | None = None) -> RopeConfig:
    """Return the ropes that a config.json, or a fragment of one, describes.

    Args:
        config: the parsed JSON object.
        model_type: used where the config gives none.

    Raises:
        BadEncoding: nothing rotates, or a size is missing or impossible.
        BadScaling: a RoPE parameter is missing, unknown or impossible.

    Source: transformers 5.23 modeling_rope_utils.RotaryEmbeddingConfigMixin and each family's configuration.
    """
    if not isinstance(config, Mapping):
        raise BadEncoding(f"config is {str(config)[:60]}; it must be an object of keys and values")
    source = source_of(config, model_type)
    by_type = tables_of(source)
    tables = {
        name: _layer_rope(source, name, parameters) for name, parameters in by_type.items() if parameters is not None
    }
    layers = layers_of(source, by_type)
    return RopeConfig(tables, layers, source.model_type, tuple(source.notes))


def _layer_rope(source: Source, name: str, parameters: Parameters) -> LayerRope:
    notes: list[str] = []
    rope_type = rope_type_of(source, parameters)
    width = head_dim(source, None if name == ALL else name)
    rotary = _rotary_dim(source, parameters, rope_type, width, notes)
    max_positions = source.count("max_position_embeddings")
    needs_length = rope_type in ("dynamic", "longrope") or (rope_type == "yarn" and not parameters.get("factor"))
    if max_positions is None and needs_length:
        max_positions = source.size("max_position_embeddings")
    if (stretched := source.convention.stretched) and source.data.get(stretched[0]):
        max_positions = source.count(stretched[1]) or stretched[2]
    scaling = _scaling_parameters(source, parameters, rope_type, notes)
    theta = positive("rope_theta", parameters["rope_theta"])
    rope = Rope.of(theta, rotary, rope_type, scaling, head_dim=width, max_position_embeddings=max_positions)
    frequencies(rope, "parity")  # raises BadScaling for impossible parameters
    _note_null_head(source, rope_type, notes)
    sections, axes = _sections(source, parameters, rotary)
    layout = source.convention.layout
    if source.data.get("rope_interleave") is False and layout == "interleave_in_half_out":
        layout = "half"
    softmax_scale = _softmax_scale(source, parameters, rope, notes)
    return LayerRope(rope, layout, sections, axes, tuple(notes), softmax_scale)


def _rotary_dim(source: Source, parameters: Parameters, rope_type: str, width: int, notes: list[str]) -> int:
    row = source.convention
    if rope_type == "proportional" or row.head == "mla" or (not source.known and source.get("qk_rope_head_dim")):
        return width
    fraction = parameters.get("partial_rotary_factor")
    fraction = source.get("partial_rotary_factor") if fraction is None else fraction
    if fraction is None and row.head == "joined":
        fraction = (source.count("qk_rope_head_dim") or row.rotary_dim or width) / width
    absolute = source.count(row.rotary_key) or row.rotary_dim
    if fraction is None and row.head == "given" and absolute and (row.partial is not None or row.rotary_dim):
        return absolute
    if row.partial is None and rope_type == "default":
        if fraction not in (None, 1, 1.0):
            notes.append(
                f"partial_rotary_factor {fraction} is not read: transformers 5.23 rotates the whole head of "
                f"{source.model_type} where RoPE is not scaled"
            )
        return width
    fraction = finite("partial_rotary_factor", (row.partial or 1.0) if fraction is None else fraction)
    return int(min(width * fraction, 2.0 * width))  # more than the head fails in the check of sizes


def _scaling_parameters(source: Source, parameters: Parameters, rope_type: str, notes: list[str]) -> Parameters:
    """Return the scaling's own parameters, without those that this family's code ignores."""
    not_scaling = set(_NOT_SCALING)
    if rope_type != "proportional":
        not_scaling.add("partial_rotary_factor")
    if rope_type not in READING_TRAINED:
        not_scaling.add(TRAINED)
    kept = {key: value for key, value in parameters.items() if key not in not_scaling and value is not None}
    ignored: list[str] = []
    if rope_type == "ntk_alpha":
        ignored = [key for key in kept if key != "alpha"]
    elif source.known and source.model_type != "phimoe":
        ignored = [key for key in _MSCALES if key in kept]
    if ignored:
        notes.append(f"{rope_type} here does not read {', '.join(ignored)}")
    if rope_type == "ntk_alpha" and not str(source.model_type).startswith("hunyuan"):
        notes.append("dynamic with alpha is vLLM's spelling of ntk_alpha; transformers 5.23 reads it for Hunyuan alone")
    if "llama_4_scaling_beta" in parameters:
        notes.append("llama_4_scaling_beta also scales queries by their position; that is not in cos and sin")
    return {key: _plain(key, value) for key, value in kept.items() if key not in ignored}


def _plain(key: str, value: Any) -> Any:
    """Return a parameter that is a number, true or false, a text, or a list of numbers; the scaling checks which."""
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, int | float | str) for item in items):
        raise BadScaling(f"{key} is {str(value)[:60]}; it must be a number, true or false, or a list of numbers")
    return value


def _note_null_head(source: Source, rope_type: str, notes: list[str]) -> None:
    if rope_type in ("dynamic", "yarn", "longrope") and source.has("head_dim") and source.get("head_dim") is None:
        notes.append(
            "head_dim is null: hidden_size / num_attention_heads is taken; transformers 5.23 stops at this with a "
            "TypeError in families that do not fill it in (mixtral), though only for dynamic, yarn and longrope"
        )


def _sections(source: Source, parameters: Parameters, rotary: int) -> tuple[tuple[int, ...] | None, str | None]:
    """Return mrope_section and how the axes share the frequencies."""
    row, sections_given = source.convention, parameters.get("mrope_section")
    if source.known and row.axes is None:
        return None, None
    if sections_given is None and row.sections is None:
        return None, None
    sections = row.sections if sections_given is None else sections_given
    whole = isinstance(sections, list | tuple) and all(type(section) is int and section >= 0 for section in sections)
    if not whole or sections is None or len(sections) != 3 or sum(sections) != rotary // 2:
        was = "is" if sections_given is not None else "is missing, and the default is"
        raise BadEncoding(
            f"mrope_section {was} {str(sections)[:60]}; "
            f"it must be three whole numbers that sum to rotary_dim/2 = {rotary // 2}"
        )
    return tuple(sections), row.axes or ("interleaved" if parameters.get("mrope_interleaved") else "chunked")


def _softmax_scale(source: Source, parameters: Parameters, rope: Rope, notes: list[str]) -> float:
    """Return DeepSeek's m(factor, mscale_all_dim)^2, which its attention multiplies the scores by."""
    mscale = parameters.get("mscale_all_dim")
    if not source.convention.softmax or rope.rope_type == "default" or not mscale:
        return 1.0
    factor = parameters.get("factor") or (rope.max_position_embeddings or 0) / parameters[TRAINED]
    scale = float((0.1 * mscale * math.log(factor) + 1.0) ** 2) if factor > 1 else 1.0
    notes.append(
        f"attention scores are also multiplied by m(factor, mscale_all_dim)^2 = {scale:.9g}: not in cos and sin"
    )
    return scale
