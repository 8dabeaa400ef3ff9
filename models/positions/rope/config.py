"""config.json → the ropes of a model, in every way transformers has written them. Makes no table.

Read as transformers 5.23 computes; what it leaves out without a word is said in the notes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.errors import BadEncoding, BadScaling
from models.positions.rope.config_keys import Source, head_dim, source_of
from models.positions.rope.frequencies import Rope, finite, frequencies, positive
from models.positions.rope.layers import ALL, layers_of
from models.positions.rope.scalings import TRAINED
from models.positions.rope.spelling import READING_TRAINED, Parameters, rope_type_of, tables_of

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

    layout         a row of rotation.LAYOUTS
    sections       of M-RoPE, in the order of its axes; None: one position a token
    axes           a row of multi_axis.AXES; None: no M-RoPE
    notes          what a reader of this table should know
    softmax_scale  attention scores are to be multiplied by it besides; it is not in cos and sin (DeepSeek's YaRN)
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

    tables  by layer type; "all" where one table serves every layer that rotates
    layers  the table of each layer, None: it does not rotate; () where the config has no number of layers
    notes   what was assumed
    """

    tables: Mapping[str, LayerRope]
    layers: tuple[str | None, ...]
    model_type: str | None
    notes: tuple[str, ...] = ()


def read(config: Mapping[str, Any], model_type: str | None = None) -> RopeConfig:
    """The ropes a config.json, or a fragment of one, describes.

    model_type  where the config does not say
    raises      BadScaling or BadEncoding: nothing rotates, a size is missing, a parameter is missing, unknown or
                impossible
    source      transformers 5.23 modeling_rope_utils.RotaryEmbeddingConfigMixin and each family's configuration
    """
    if not isinstance(config, Mapping):
        raise BadEncoding(f"a config is an object of keys and values; got {str(config)[:60]}")
    source = source_of(config, model_type)
    spelled = tables_of(source)
    tables = {name: _layer_rope(source, name, given) for name, given in spelled.items() if given is not None}
    layers = layers_of(source, spelled)
    return RopeConfig(tables, layers, source.model_type, tuple(source.notes))


def _layer_rope(source: Source, name: str, given: Parameters) -> LayerRope:
    notes: list[str] = []
    rope_type = rope_type_of(source, given)
    width = head_dim(source, None if name == ALL else name)
    rotary = _rotary_dim(source, given, rope_type, width, notes)
    longest = source.count("max_position_embeddings")
    if longest is None and (rope_type in ("dynamic", "longrope") or (rope_type == "yarn" and not given.get("factor"))):
        longest = source.size("max_position_embeddings")
    parameters = _scaling_parameters(source, given, rope_type, notes)
    theta = positive("rope_theta", given["rope_theta"])
    rope = Rope.of(theta, rotary, rope_type, parameters, head_dim=width, max_position_embeddings=longest)
    frequencies(rope, "parity")  # refuses what is impossible
    _note_null_head(source, rope_type, notes)
    sections, axes = _sections(source, given, rotary)
    layout = source.convention.layout
    if source.data.get("rope_interleave") is False and layout == "interleave_in_half_out":
        layout = "half"
    softmax_scale = _softmax_scale(source, given, rope, notes)
    return LayerRope(rope, layout, sections, axes, tuple(notes), softmax_scale)


def _rotary_dim(source: Source, given: Parameters, rope_type: str, width: int, notes: list[str]) -> int:
    row = source.convention
    if rope_type == "proportional" or row.head == "mla" or (not source.known and source.get("qk_rope_head_dim")):
        return width
    said = given.get("partial_rotary_factor")
    said = source.get("partial_rotary_factor") if said is None else said
    if said is None and row.head == "joined":
        said = (source.count("qk_rope_head_dim") or row.rotary_dim or width) / width
    absolute = source.count(row.rotary_key) or row.rotary_dim
    if said is None and row.head == "given" and absolute and (row.partial is not None or row.rotary_dim):
        return absolute
    if row.partial is None and rope_type == "default":
        if said not in (None, 1, 1.0):
            notes.append(
                f"partial_rotary_factor {said} is not read: transformers 5.23 rotates the whole head of "
                f"{source.model_type} where RoPE is not scaled"
            )
        return width
    share = finite("partial_rotary_factor", (row.partial or 1.0) if said is None else said)
    return int(min(width * share, 2.0 * width))  # more than the head is refused with the sizes


def _scaling_parameters(source: Source, given: Parameters, rope_type: str, notes: list[str]) -> Parameters:
    """What is handed to the scaling: not what is said elsewhere, nor what this family's code passes over."""
    unread = set(_NOT_SCALING)
    if rope_type != "proportional":
        unread.add("partial_rotary_factor")
    if rope_type not in READING_TRAINED:
        unread.add(TRAINED)
    kept = {key: value for key, value in given.items() if key not in unread and value is not None}
    passed_over: list[str] = []
    if rope_type == "ntk_alpha":
        passed_over = [key for key in kept if key != "alpha"]
    elif source.known and source.model_type != "phimoe":
        passed_over = [key for key in _MSCALES if key in kept]
    if passed_over:
        notes.append(f"{rope_type} here does not read {', '.join(passed_over)}")
    if rope_type == "ntk_alpha" and not str(source.model_type).startswith("hunyuan"):
        notes.append("dynamic with alpha is vLLM's spelling of ntk_alpha; transformers 5.23 reads it for Hunyuan alone")
    if "llama_4_scaling_beta" in given:
        notes.append("llama_4_scaling_beta also scales queries by their position; that is not in cos and sin")
    return {key: _plain(key, value) for key, value in kept.items() if key not in passed_over}


def _plain(key: str, value: Any) -> Any:
    """A parameter that is a number, true or false, a text, or a list of numbers; the scaling checks which."""
    inside = value if isinstance(value, list) else [value]
    if not all(isinstance(each, int | float | str) for each in inside):
        raise BadScaling(f"{key} is {str(value)[:60]}; it must be a number, true or false, or a list of numbers")
    return value


def _note_null_head(source: Source, rope_type: str, notes: list[str]) -> None:
    if rope_type in ("dynamic", "yarn", "longrope") and source.has("head_dim") and source.get("head_dim") is None:
        notes.append(
            "head_dim is null: hidden_size / num_attention_heads is taken; transformers 5.23 stops at this with a "
            "TypeError in families that do not fill it in (mixtral), though only for dynamic, yarn and longrope"
        )


def _sections(source: Source, given: Parameters, rotary: int) -> tuple[tuple[int, ...] | None, str | None]:
    """mrope_section and how the axes share the frequencies."""
    row, written = source.convention, given.get("mrope_section")
    if source.known and row.axes is None:
        return None, None
    if written is None and row.sections is None:
        return None, None
    sections = row.sections if written is None else written
    whole = isinstance(sections, list | tuple) and all(type(each) is int and each >= 0 for each in sections)
    if not whole or sections is None or len(sections) != 3 or sum(sections) != rotary // 2:
        raise BadEncoding(
            f"mrope_section {'is' if written is not None else 'is missing, and the default is'} {str(sections)[:60]}; "
            f"it must be three whole numbers that sum to rotary_dim/2 = {rotary // 2}"
        )
    return tuple(sections), row.axes or ("interleaved" if given.get("mrope_interleaved") else "chunked")


def _softmax_scale(source: Source, given: Parameters, rope: Rope, notes: list[str]) -> float:
    """DeepSeek's m(factor, mscale_all_dim)^2, which its attention multiplies the scores by."""
    share = given.get("mscale_all_dim")
    if not source.convention.softmax or rope.rope_type == "default" or not share:
        return 1.0
    factor = given.get("factor") or (rope.max_position_embeddings or 0) / given[TRAINED]
    scale = float((0.1 * share * math.log(factor) + 1.0) ** 2) if factor > 1 else 1.0
    notes.append(
        f"attention scores are also multiplied by m(factor, mscale_all_dim)^2 = {scale:.9g}: not in cos and sin"
    )
    return scale
