"""The PromQL queries of the Helm chart, which Compose uses too: those of the dashboard and those of the rules."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
OBSERVE = ROOT / "deploy/observe"
CHART_FILES = ROOT / "deploy/helm/inlay/files"
METRIC = re.compile(r"\b(?:inlay|process)_\w+")
RECORDED = re.compile(r"\binlay:[\w:]+")


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((CHART_FILES / "dashboard.json").read_text())
    return document


def drawn() -> Iterator[tuple[str, str]]:
    """Yield every query of every panel, with the panel's title."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def rules() -> list[dict[str, Any]]:
    """Return every rule of alerts.yml."""
    return [rule for group in read("alerts.yml", CHART_FILES)["groups"] for rule in group["rules"]]


def read(name: str, folder: Path = OBSERVE) -> Any:
    return yaml.safe_load((folder / name).read_text())
