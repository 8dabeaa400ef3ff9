"""README's first request names no model: what it says to start keeps the demo model the default beside others."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEMO = "all-MiniLM-L6-v2"


def recipe(arguments: str, target: str = "serve", **variables: str) -> str:
    """Return the command that a target of make would run last."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("INLAY_", "MAKE", "MFLAGS"))
    }
    command = ["make", "--dry-run", target, f"ARGS={arguments}"]
    ran = subprocess.run(command, cwd=ROOT, env=environment | variables, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()[-1]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("arguments", "variables", "named"),
    [
        ("", {}, True),
        ("--workers 2 --model-control explicit", {}, True),
        ("--model org/name", {}, False),
        ("--default-model=other", {}, False),
        ("", {"INLAY_MODELS": "other"}, False),
        ("", {"INLAY_STORE": "/elsewhere"}, False),
        ("", {"INLAY_DEFAULT_MODEL": "other"}, False),
    ],
)
def test_make_serve_names_the_demo_model(arguments: str, variables: dict[str, str], named: bool) -> None:
    assert (f"INLAY_DEFAULT_MODEL={DEMO} " in recipe(arguments, **variables)) is named


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_ray_serve_names_the_demo_model_beside_others() -> None:
    """After `make reranker` the store holds two models."""
    assert f"INLAY_DEFAULT_MODEL={DEMO} " in recipe("", "ray-serve")
    assert f"INLAY_DEFAULT_MODEL={DEMO} " not in recipe("", "ray-serve", INLAY_STORE="/elsewhere")


def test_compose_names_the_demo_model() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for name in ("inlay", "inlay-gpu"):
        assert services[name]["environment"]["INLAY_DEFAULT_MODEL"] == f"${{INLAY_DEFAULT_MODEL-{DEMO}}}"
