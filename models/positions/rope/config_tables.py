"""The RoPE parameters in a config.json, in any of its forms, as one flat object per table.

Version 5 of transformers writes rope_parameters, flat or one object per layer type; version 4 wrote rope_theta and
rope_scaling, and some families keys of their own.
"""

from collections.abc import Mapping
from typing import Any

from models.errors import BadScaling
from models.positions.rope.config_keys import Source
from models.positions.rope.conventions import ALL
from models.positions.rope.scaling_parameters import TRAINED, finite
from models.positions.rope.scalings import SCALINGS

Parameters = dict[str, Any]
READING_TRAINED = tuple(name for name, row in SCALINGS.items() if TRAINED in row.required)
_PARAMETERS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}.union(
    *(row.required + row.optional for row in SCALINGS.values())
)
_TYPES = {"su": "longrope", "mrope": "default", "xdrope": "dynamic"}


def tables_of(source: Source) -> dict[str, Parameters | None]:
    """Return layer type, or ALL -> its parameters with rope_theta; None where such layers do not rotate.

    Raises:
        BadScaling: not an object, or flat where the family reads one for each layer type.
    """
    row = source.convention
    current, legacy = _object(source, "rope_parameters"), _object(source, "rope_scaling")
    if _nested(legacy):
        current, legacy = legacy, {}
    if row.tables or _nested(current):
        return _per_type(source, current, legacy)
    if current and legacy and current != legacy:
        source.note(
            "config.json has both rope_parameters and rope_scaling: rope_scaling counts, as in transformers 5.23"
        )
    return {ALL: _flat(source, legacy or current or dict(row.assumed))}


def _object(source: Source, key: str) -> Parameters:
    value = source.data.get(key) or {}
    if not isinstance(value, Mapping):
        raise BadScaling(f"{key} is {str(value)[:60]}; it must be an object of parameters, or null")
    return dict(value)


def _nested(parameters: Parameters) -> bool:
    """Return whether there is one object per layer type; an object as a parameter's value is the scaling's error."""
    return any(isinstance(value, Mapping) and name not in _PARAMETERS for name, value in parameters.items())


def _flat(source: Source, parameters: Parameters) -> Parameters:
    theta = parameters.get("rope_theta")
    parameters["rope_theta"] = _top_theta(source) if theta is None else theta
    if (stretched := source.convention.stretched) and (factor := source.data.get(stretched[0])):
        parameters |= {"rope_type": "dynamic", "factor": factor}
    if rope_type_of(source, parameters) in READING_TRAINED:
        top_level = source.count(TRAINED) or source.convention.trained
        if top_level is not None and parameters.get(TRAINED) not in (None, top_level):
            source.note(
                f"{TRAINED} {top_level} at the top level counts, not {parameters[TRAINED]} in the RoPE parameters"
            )
        parameters[TRAINED] = parameters.get(TRAINED) if top_level is None else top_level
        _default_trained(source, parameters)
    return parameters


def _top_theta(source: Source) -> Any:
    theta = source.get("rope_theta")
    if theta is not None:
        return theta
    ratio = source.data.get("rope_ratio")  # ChatGLM
    return source.convention.theta * (1.0 if ratio is None else finite("rope_ratio", ratio))


def _default_trained(source: Source, parameters: Parameters) -> None:
    if parameters.get(TRAINED) is None and (longest := source.size("max_position_embeddings")) is not None:
        parameters[TRAINED] = longest
        source.note(f"{TRAINED} is missing: max_position_embeddings {longest} stands for it, as in transformers 5.23")


def _per_type(source: Source, current: Parameters, legacy: Parameters) -> dict[str, Parameters | None]:
    row = source.convention
    if current and not _nested(current) and not any(name in current for name in row.tables):
        raise BadScaling(
            f"rope_parameters is one object; {source.model_type} reads one for each of {', '.join(row.tables)}"
        )
    nothing = (*row.tables, *source.texts("layer_types"))  # null under another name is a parameter left out
    written = (
        name for name, value in current.items() if isinstance(value, Mapping) or (value is None and name in nothing)
    )
    names = dict.fromkeys([*row.tables, *written])
    return {name: _one_type(source, name, current, legacy if name in row.scaled else {}) for name in names}


def _one_type(source: Source, name: str, current: Parameters, legacy: Parameters) -> Parameters | None:
    row = source.convention
    written = current.get(name)
    if name in current and written is None and not row.thetas:
        return None
    if written is not None and not isinstance(written, Mapping):
        raise BadScaling(f"rope_parameters.{name} is {str(written)[:60]}; it must be an object of parameters, or null")
    assumed = dict(row.tables.get(name, {}))
    parameters: Parameters = dict(written) if written is not None else {**assumed, "rope_theta": None}
    if legacy:
        parameters = _merged(source, name, parameters, legacy)
    if parameters.get("rope_theta") is None:
        parameters["rope_theta"] = _typed_theta(source, name, assumed)
    if rope_type_of(source, parameters) in READING_TRAINED:
        _default_trained(source, parameters)
    _drop_truncate(source, name, parameters, current)
    return parameters


def _merged(source: Source, name: str, parameters: Parameters, legacy: Parameters) -> Parameters:
    """Return a layer type with an older file's rope_scaling, of which transformers reads `rope_type` but not `type`."""
    if "type" in legacy and "rope_type" not in legacy and source.model_type != "deepseek_v4":
        source.note(
            f"rope_scaling says type {legacy['type']!r}; for {name} of {source.model_type} transformers 5.23 reads "
            "rope_type alone, so nothing is scaled here"
        )
        return parameters
    merged: Parameters = {"rope_type": "default"} | parameters | legacy
    if source.model_type == "deepseek_v4" and rope_type_of(source, merged) == "yarn":
        merged = {"attention_factor": 1.0} | merged
    return merged


def _typed_theta(source: Source, name: str, assumed: Parameters) -> Any:
    row = source.convention
    if (key := row.thetas.get(name)) and source.data.get(key) is not None:
        return source.data[key]
    top = source.data.get("rope_theta")
    if row.thetas and name not in row.thetas and top is not None and top != assumed.get("rope_theta"):
        source.note(f"transformers 5.23 gives rope_theta to the {', '.join(row.thetas)} table alone, not to {name}")
    return assumed["rope_theta"] if "rope_theta" in assumed else _top_theta(source)


def _drop_truncate(source: Source, name: str, parameters: Parameters, current: Parameters) -> None:
    inner, top_level = parameters.pop("truncate", None), current.get("truncate")
    if top_level is not None and rope_type_of(source, parameters) == "yarn":
        parameters["truncate"] = top_level
    if inner is False and top_level is not False:
        source.note(
            f"truncate false of {name} is not read: transformers 5.23 looks for it beside the layer types, so the "
            "blend's ends are whole channels"
        )


def rope_type_of(source: Source, parameters: Parameters) -> str:
    """Return the name of the scaling, which may be unknown.

    Raises:
        BadScaling: it is not a text, or the scaling of a vision tower.
    """
    rope_type = parameters.get("rope_type") or parameters.get("type") or "default"
    if not isinstance(rope_type, str):
        raise BadScaling(f"rope_type is {str(rope_type)[:60]}; it must be one of {', '.join(SCALINGS)}")
    rope_type = source.convention.types.get(rope_type, _TYPES.get(rope_type, rope_type))
    if rope_type == "dynamic" and parameters.get("alpha"):
        return "ntk_alpha"
    if rope_type == "axial":
        raise BadScaling("rope_type axial belongs to a vision tower: its positions are rows and columns of a grid")
    return rope_type
