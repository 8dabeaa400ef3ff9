"""Frozen dataclasses as the JSON of cards, written and read by the types of their fields.

A dataclass is an object of its fields, a tuple a list. Where a field may hold one of several dataclasses, as the steps
of a recipe do, the object also names its class as `step`.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

_NAME = "step"
_NAMES = (_NAME, "module")  # what earlier cards call the class of a sentence module


def to_json(kind: Any, value: Any) -> Any:
    """Return a value of a type as a JSON value."""
    if is_dataclass(value):
        chosen: Any = type(value)
        name = {_NAME: chosen.__name__} if len(_classes(kind)) > 1 else {}
        return name | {key: to_json(hint, getattr(value, key)) for key, hint in _hints(chosen).items()}
    if isinstance(value, tuple):
        return [to_json(_element(kind), item) for item in value]
    if isinstance(value, dict):
        return {key: to_json(_element(kind), item) for key, item in value.items()}
    return value


def from_json(kind: Any, data: Any) -> Any:
    """Return the value of a type that `to_json` wrote; missing fields take their defaults.

    Raises:
        KeyError: an unknown class or field.
        TypeError: a missing field, or another value where an object should be.
    """
    classes = _classes(kind)
    if isinstance(data, dict) and classes:
        chosen = classes[0] if len(classes) == 1 else _named(classes, data)
        hints = _hints(chosen)
        return chosen(**{key: from_json(hints[key], item) for key, item in data.items() if key not in _NAMES})
    if classes and data is not None and set(_members(kind)) <= {*classes, type(None)}:
        raise TypeError(f"{data!r:.60} is no {classes[0].__name__}")
    if isinstance(data, list):
        return tuple(from_json(_element(kind), item) for item in data)
    if isinstance(data, dict):
        return {key: from_json(_element(kind), item) for key, item in data.items()}
    return data


def _named(classes: tuple[Any, ...], data: Mapping[str, Any]) -> Any:
    """Return the class that an object names; earlier cards do not name those of norms, biases and products."""
    named = next((data[name] for name in _NAMES if name in data), None)
    if named is None:
        named = "LayerNorm" if "eps" in data else "ScoreBias" if "buckets" in data else "Linear"
    return {each.__name__: each for each in classes}[named]


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


@cache
def _classes(kind: Any) -> tuple[Any, ...]:
    """Return the dataclasses that a value of a type may have."""
    return tuple(member for member in _members(kind) if isinstance(member, type) and is_dataclass(member))


@cache
def _element(kind: Any) -> Any:
    """Return the type of a tuple's items or of a dict's values; Any where it does not say one."""
    for member in _members(kind):
        arguments = get_args(member)
        if get_origin(member) in (dict, Mapping):
            return arguments[1]
        if get_origin(member) is tuple and arguments[-1] is ...:
            return arguments[0]
    return Any


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields, by name."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
