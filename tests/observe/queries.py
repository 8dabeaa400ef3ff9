"""The queries of observe/: what the dashboard draws and what the rules compute."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

OBSERVE = Path(__file__).parents[2] / "observe"
DASHBOARD = OBSERVE / "grafana/dashboards/inlay.json"
METRIC = re.compile(r"\b(?:inlay|process)_\w+")
RECORDED = re.compile(r"\binlay:[\w:]+")


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def drawn() -> Iterator[tuple[str, str]]:
    """Every query of every panel, with the panel's title."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def rules() -> list[dict[str, Any]]:
    """Every rule."""
    return [rule for group in read("alerts.yml")["groups"] for rule in group["rules"]]


def read(name: str) -> Any:
    return yaml.safe_load((OBSERVE / name).read_text())
