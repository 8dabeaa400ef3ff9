"""CONVENTIONS: how each model_type reads RoPE from its config.json, where that differs from the default.

The rows are in conventions.json, with the fields of Convention that differ from their defaults.

The default: theta 1e4, layout half, the whole head of hidden_size / num_attention_heads channels, and one table for all
layers. A row also holds the sizes that a config.json may leave out, because text_config of a vision-language model
contains only the values that differ from its class.

Source: transformers 5.23, configuration_*.py and modeling_*.py of each model_type, unless the row names another: the
modelling code published with the checkpoints.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Head = Literal["given", "derived", "doubled", "mla", "joined"]
Parameters = Mapping[str, Any]
Sizes = tuple[int, int, int, int | None]
ALL = "all"  # the layer type of the only table
NOT_ATTENTION = ("linear_attention", "conv", "mamba", "mamba2", "recurrent", "moe", "mlp")


@dataclass(frozen=True, slots=True)
class Pattern:
    """The types of layers where config.json does not list them.

    Attributes:
        period: type `one` comes once in every `period` layers.
        key: key of config.json that may give the period; None: there is none.
        first: True: it is the first of each period; False: the last.
        one: the rarer layer type.
        rest: the type of the other layers.
        also: further layers of type `one`; -1: the last layer.
    """

    period: int
    key: str | None = None
    first: bool = False
    one: str = "full_attention"
    rest: str = "sliding_attention"
    also: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Convention:
    """How one model_type reads RoPE from its config.json.

    Attributes:
        sizes: hidden_size, num_attention_heads, num_hidden_layers, max_position_embeddings of its config class.
        head_dim: default of its config class if the key is absent (null means hidden_size / num_attention_heads).
        head: the size of a head. given: head_dim, else hidden_size / num_attention_heads. derived: always the latter.
            doubled: twice the latter. mla: qk_rope_head_dim, all of which rotates. joined: qk_nope_head_dim +
            qk_rope_head_dim.
        rotary_dim: default of qk_rope_head_dim (mla, joined) or of rotary_dim; None: the class has no default.
        rotary_key: the key that gives the number of rotated channels where no partial_rotary_factor does.
        theta: used where config.json gives none.
        partial: partial_rotary_factor where config.json gives none; None: the class reads it only where RoPE is scaled.
        layout: a row of rotation.LAYOUTS.
        tables: layer type -> default parameters of its table; {}: one table for every layer.
        thetas: layer type -> the top-level key under which older files give its theta.
        scaled: layer types that an older file's rope_scaling is merged into.
        heads: layer type -> (key, default) of its own head_dim.
        assumed: rope_parameters where config.json gives none.
        pattern: layer types where config.json gives none.
        unrotated: layer types that attend without rotating.
        rotates_if_null: a key; where it is null, these layer types rotate after all.
        table_of: layer type -> the table it rotates by, where that is not its own name or the only table.
        listed: (key, rotate, default): layers in the list under key do, or do not, rotate.
        interval: every interval-th layer does not rotate: default of no_rope_layer_interval.
        condition: (key, value, default): rotates only where key has that value.
        types: rope_type in the file -> the row of SCALINGS it means.
        stretched: keys of published code for dynamic RoPE: its factor, and the length from which theta grows, with the
            default of the latter.
        trained: original_max_position_embeddings of its config class, which overrides one among the parameters.
        sections: mrope_section where config.json gives none.
        axes: a row of multi_axis.AXES.
        softmax: attention scores are also scaled by m(factor, mscale_all_dim)^2.
        source: where the row comes from.
    """

    sizes: Sizes | None = None
    head_dim: int | None = None
    head: Head = "given"
    rotary_dim: int | None = None
    rotary_key: str = "rotary_dim"
    theta: float = 10000.0
    partial: float | None = None
    layout: str = "half"
    tables: Mapping[str, Parameters] = field(default_factory=dict)
    thetas: Mapping[str, str] = field(default_factory=dict)
    scaled: tuple[str, ...] = ()
    heads: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    assumed: Parameters = field(default_factory=dict)
    pattern: Pattern | None = None
    unrotated: tuple[str, ...] = ()
    rotates_if_null: str | None = None
    table_of: Mapping[str, str] = field(default_factory=dict)
    listed: tuple[str, bool, tuple[int, ...] | None] | None = None
    interval: int | None = None
    condition: tuple[str, Any, Any] | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    stretched: tuple[str, str, int] | None = None
    trained: int | None = None
    sections: tuple[int, ...] | None = None
    axes: Literal["chunked", "interleaved", "ernie"] | None = None
    softmax: bool = False
    source: str = "transformers 5.23"


def _convention(row: Mapping[str, Any]) -> Convention:
    """Return one row of conventions.json."""
    fields = _frozen(row)
    return Convention(**fields | {"pattern": Pattern(**fields["pattern"])} if "pattern" in fields else fields)


def _frozen(value: Any) -> Any:
    """Return a JSON value with tuples for its lists."""
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


_TABLES = json.loads(Path(__file__).with_name("conventions.json").read_text(encoding="utf-8"))
CONVENTIONS: dict[str, Convention] = {name: _convention(row) for name, row in _TABLES["conventions"].items()}
TEXT_TYPES: dict[str, str] = {outer: inner for inner, outers in _TABLES["text_types"].items() for outer in outers} | {
    name: f"{name}_text" for name in _TABLES["named_alike"]
}
"""The model_type of the text tower of a model of several towers, where text_config gives none."""
NO_ROPE: dict[str, str] = {name: scheme for scheme, names in _TABLES["no_rope"].items() for name in names}
"""What positions a model_type without RoPE has."""
