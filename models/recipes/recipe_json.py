"""Recipes as the JSON of cards: each step and each part an object with its kind."""

from dataclasses import fields, is_dataclass
from typing import Any

from models.recipes.steps import PARTS, STEPS, Recipe


def to_json(recipe: Recipe) -> list[dict[str, Any]]:
    """Return the steps as JSON objects, each with its `step` name."""
    return [_to_json(step) for step in recipe]


def _to_json(node: Any) -> dict[str, Any]:
    return {"step": type(node).__name__} | {field.name: _json(getattr(node, field.name)) for field in fields(node)}


def _json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_json(own) for own in value]
    return _to_json(value) if is_dataclass(value) else value


def from_json(data: list[dict[str, Any]]) -> Recipe:
    """Return the recipe of `to_json`'s objects; KeyError or TypeError if the data is not a recipe."""
    return tuple(_step(entry) for entry in data)


def _step(entry: dict[str, Any]) -> Any:
    values = {key: _value(value) for key, value in entry.items() if key != "step"}
    return (STEPS | PARTS)[entry.get("step") or _kind(entry)](**values)


def _kind(entry: dict[str, Any]) -> str:
    """Return the kind of a part in cards of earlier versions, which do not name it."""
    return "LayerNorm" if "eps" in entry else "ScoreBias" if "buckets" in entry else "Linear"


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return _step(value)
    return tuple(_value(own) for own in value) if isinstance(value, list) else value
