"""Adapters of the peft library that are served: merged, and side by side, judged by plain models of merged weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.export import export
from service.cli import checkpoints
from service.errors import StartError
from service.settings import Settings
from tests.golden_cases import tiny_bert, tiny_config, write_folder, write_json, write_tiny_bert
from tests.peft_adapters import LINEARS, matrices, merged, write_adapter
from tests.served import Served, serving

NAME, TOLERANCE = "base", 1e-5
TEXTS = ["a b", "c", "d e f g a b c"]
PROMPT = "d "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base with a default prompt and two adapters; `plain-a` is a's merged weights as a model of its own."""
    folder = tmp_path_factory.mktemp("peft")
    for name in (NAME, "plain-a"):
        write_tiny_bert(folder / name, pooling="mean")
        prompts = {"prompts": {"query": PROMPT}, "default_prompt_name": "query"}
        write_json(folder / name / "config_sentence_transformers.json", prompts)
    write_adapter(folder / "a", NAME, matrices(1))
    write_adapter(folder / "b", NAME, matrices(2, LINEARS[:3]))
    weights = merged(tiny_bert(), matrices(1))
    write_folder(folder / "plain-a", tiny_config(weights), weights)
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    settings = Settings(store=folder / "store", adapters=f"a={folder / 'a'},b={folder / 'b'}")
    checkpoints.exported(settings, [str(folder / NAME)])
    for name in ("plain-a", "a"):
        export(folder / name, folder / "store" / name)
    with serving(folder / "store", default_model=NAME, aliases=f"org/base={NAME}") as service:
        yield service


def vectors(served: Served, model: str, **fields: Any) -> NDArray[np.float32]:
    answer = served.http.post("/embed", json={"inputs": TEXTS, "model": model} | fields)
    assert answer.status_code == 200, answer.text
    return np.array(answer.json(), np.float32)


@pytest.mark.parametrize("name", ["base:a", "org/base:a", "a"])
def test_an_adapter_is_its_plain_model(name: str, served: Served) -> None:
    got, expected = vectors(served, name), vectors(served, "plain-a")
    assert np.abs(got - expected).max() <= TOLERANCE
    assert np.abs(got - vectors(served, NAME)).max() > 100 * TOLERANCE


def test_a_name_and_a_task_choose_the_same_adapter(served: Served) -> None:
    for task in ("a", "b"):
        np.testing.assert_array_equal(vectors(served, f"{NAME}:{task}"), vectors(served, NAME, task=task))
    np.testing.assert_array_equal(vectors(served, f"{NAME}:latest"), vectors(served, NAME))
    openai = served.http.post("/v1/embeddings", json={"input": TEXTS, "model": f"{NAME}:b"}).json()
    rows = np.array([row["embedding"] for row in openai["data"]], np.float32)
    np.testing.assert_array_equal(rows, vectors(served, NAME, task="b"))


def test_adapters_are_listed_and_others_are_refused(served: Served) -> None:
    listed = [each["id"] for each in served.http.get("/v1/models").json()["data"]]
    assert {NAME, f"{NAME}:a", f"{NAME}:b"} <= set(listed)
    for name in (f"{NAME}:c", f"{NAME}:a:b", "plain-a:a", ":" * 10_000):
        assert served.http.post("/embed", json={"inputs": "a", "model": name}).status_code == 404


# ---- `inlay serve` exports again when an option is another


def test_other_options_export_again(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*named: str, **options: Any) -> str:
        checkpoints.exported(Settings(store=tmp_path, **options), [str(folder / name) for name in named or [NAME]])
        return capsys.readouterr().out

    adapters = f"a={folder / 'a'}"
    assert "(once)" in said(adapters=adapters)
    assert "up to date" in said(adapters=adapters)
    assert "(--pooling or --adapter was another)" in said(pooling="last-token")
    write_adapter(folder / "changed", NAME, matrices(1))
    assert "(--pooling or --adapter was another)" in said(adapters=f"c={folder / 'changed'}")
    write_adapter(folder / "changed", NAME, matrices(2, LINEARS[:1]))
    assert "(it has changed since it was exported)" in said(adapters=f"c={folder / 'changed'}")
    for wrong, message in ((f"a={folder / 'a'},a=b", "each name once"), ("a", "is NAME=FOLDER")):
        with pytest.raises(StartError, match=message):
            said(adapters=wrong)
    with pytest.raises(StartError, match="--adapter is of one model, and 2 are given"):
        said(NAME, "plain-a", adapters=adapters)
    export(folder / "plain-a", tmp_path / "plain-a")
    with pytest.raises(StartError, match="was exported by hand"):
        said("plain-a", pooling="cls")
    with pytest.raises(StartError, match="is exported already"):
        checkpoints.exported(Settings(store=tmp_path, pooling="cls"), ["plain-a"])
