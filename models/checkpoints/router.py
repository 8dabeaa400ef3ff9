"""Reads sentence-transformers' Router: modules for queries and others for documents.

Source: sentence-transformers 6.2, base.modules.router.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.checkpoints.checkpoint import read_object
from models.errors import BadCheckpoint

ROUTER = "Router"
CONFIG = "router_config.json"
Chain = list[tuple[str, str]]  # class name and folder in the checkpoint of each module


@dataclass(frozen=True, slots=True)
class Routes:
    """The modules of each route.

    Attributes:
        chains: by the route's name.
        default: the route of texts of which nothing is said; None: there is none.
        mapped: whether routes are chosen by anything but their names.
    """

    chains: Mapping[str, Chain]
    default: str | None
    mapped: bool


def read(folder: Path, place: str) -> Routes:
    """Return the routes of the Router in `place` of a checkpoint; BadCheckpoint if its file is none."""
    path = folder / place / CONFIG
    config = read_object(path)
    try:
        classes = {str(name): str(kind).rpartition(".")[2] for name, kind in config["types"].items()}
        chains = {
            str(route): [(classes[name], _joined(place, name)) for name in names]
            for route, names in config["structure"].items()
        }
        parameters: dict[str, Any] = config.get("parameters") or {}
        default = parameters.get("default_route")
        if default is None and parameters.get("allow_empty_key", True):
            default = next(iter(chains), None)
        return Routes(chains, default, bool(parameters.get("route_mappings")))
    except (KeyError, TypeError, AttributeError) as error:
        raise BadCheckpoint(f"{path} does not describe routes: types, structure and parameters") from error


def _joined(place: str, name: str) -> str:
    return "/".join(part for part in (place, name) if part)
