"""Routers and Asyms of sentence-transformers: each route is exported as the model that its modules are."""

import asyncio
import shutil
from functools import partial
from pathlib import Path

import pytest

from models.artifacts import export as exporting
from models.artifacts.export import export
from models.errors import BadCheckpoint
from models.families import opening
from tests.golden_cases import write_json, write_tiny_bert
from tests.hub_server import serving
from tests.service.registry.registry_service import Service

FILES = {"Router": "router_config.json", "Asym": "config.json"}
SEEDS = {"query": 1, "document": 2}


def routed(folder: Path, kind: str = "Router", place: str = "") -> Path:
    """Write a model whose queries and documents are read by transformers of their own."""
    inner, types, structure = folder / place, {}, {}
    for route, seed in SEEDS.items():
        names = [f"{route}_0_Transformer", f"{route}_1_Pooling"]
        model = write_tiny_bert(inner / names[0], pooling="mean", seed=seed)
        shutil.move(model / "1_Pooling", inner / names[1])
        (model / "modules.json").unlink()
        types |= {name: f"sentence_transformers.models.{name.rpartition('_')[2]}" for name in names}
        structure[route] = names
    write_json(inner / FILES[kind], {"types": types, "structure": structure, "parameters": {"allow_empty_key": True}})
    modules = {kind: place, "Normalize": "1_Normalize"}
    write_json(
        folder / "modules.json",
        [{"path": path, "type": f"sentence_transformers.models.{name}"} for name, path in modules.items()],
    )
    return folder


@pytest.mark.parametrize(("kind", "place"), [("Router", ""), ("Router", "0_Router"), ("Asym", "0_Asym")])
def test_a_route_is_the_model_of_its_modules(kind: str, place: str, tmp_path: Path) -> None:
    checkpoint = routed(tmp_path / "x", kind, place)
    for route, seed in SEEDS.items():
        export(checkpoint, tmp_path / "store" / route, route=route)
        export(
            write_tiny_bert(tmp_path / f"alone-{route}", pooling="mean", seed=seed), tmp_path / f"store/alone-{route}"
        )
    service = Service(tmp_path / "store")
    vectors = {
        name: asyncio.run(service.vector(name)) for name in ("query", "alone-query", "document", "alone-document")
    }
    assert vectors["query"] == vectors["alone-query"] != vectors["document"] == vectors["alone-document"]


def test_a_route_is_fetched_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = export(routed(tmp_path / "x"), tmp_path / "local", route="query")
    with serving(tmp_path / "x") as hub:
        monkeypatch.setattr(exporting, "located", partial(opening.located, endpoint=hub.endpoint))
        fetched = export("org/name", tmp_path / "out", route="query")
    assert fetched.files["weights.safetensors"] == local.files["weights.safetensors"]
    assert fetched.pooling == local.pooling


@pytest.mark.parametrize(
    ("route", "message"),
    [
        (
            None,
            r"x/router_config.json has the routes query, document, a model each here: add --route query or document",
        ),
        ("answer", r"x/router_config.json has no route 'answer': add --route query or document"),
    ],
)
def test_a_router_without_a_known_route_is_refused(route: str | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=message):
        export(routed(tmp_path / "x"), tmp_path / "out", route=route)


def test_a_route_of_a_model_without_a_router_is_refused(tmp_path: Path) -> None:
    checkpoint = write_tiny_bert(tmp_path / "x", pooling="mean")
    with pytest.raises(BadCheckpoint, match=r"chains Transformer, Pooling.*of Router or Asym: leave it out"):
        export(checkpoint, tmp_path / "out", route="query")
