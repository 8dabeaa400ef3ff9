"""Reads the JSON files of a checkpoint; errors name the file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.errors import BadCheckpoint


def read_json(path: Path) -> Any:
    """Return the value of a JSON file.

    Raises:
        BadCheckpoint: no such file, not UTF-8, or not JSON.
    """
    if not path.is_file():
        raise BadCheckpoint(f"{path} is missing; give the folder that holds {path.name}")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{path} is not JSON: {error}") from error


def line_of(path: Path, text: str) -> str:
    """Return a file and the first line of it that quotes a text, as path:line; the path alone if none does."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    number = next((number for number, line in enumerate(lines, 1) if f'"{text}"' in line), None)
    return str(path) if number is None else f"{path}:{number}"


def read_object(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file; BadCheckpoint for anything else."""
    data = read_json(path)
    if not isinstance(data, dict):
        raise BadCheckpoint(f"{path} holds a JSON {type(data).__name__}; it must be an object")
    return data


def read_optional(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file; empty if there is no such file."""
    return read_object(path) if path.is_file() else {}


def optional_count(path: Path, config: Mapping[str, Any], key: str) -> int | None:
    """Return a positive integer of the object in `path`; None if it has none; BadCheckpoint for other values."""
    value = config.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 1 << 31):
        raise BadCheckpoint(f"{path}: {key} is {str(value)[:20]!r}; it must be a whole number from 1 on")
    return value
