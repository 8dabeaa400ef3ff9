"""Adopting ONNX of a hub repository: which bytes are fetched, what is said of it, and every way it can fail."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
import pytest

from models.artifacts.adoption import adopt
from models.artifacts.verification import verify
from models.errors import ModelError
from tests.golden_cases import write_sentence_files
from tests.hub_server import COMMIT, serving
from tests.models.artifacts.test_adopted_pooling import with_modules
from tests.models.artifacts.test_adoption import folder_of, model
from tests.sentence_chains import NORMALIZE, dense, layer_norm
from tests.torch_files import pickle_weights

ROOT = Path(__file__).parents[3]
QUANTIZED = "onnx/model_quantized.onnx"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where temporary folders are made, so that one left behind is found."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def repository(place: Path) -> Path:
    """Write a repository that holds a float32 graph, a quantized one with external weights, and more."""
    folder = folder_of(place, model())
    made = model(scale="dynamic")
    onnx.save(made, folder / QUANTIZED, save_as_external_data=True, location="quantized.onnx_data", size_threshold=0)
    write_sentence_files(folder, "mean")
    for name in ("model.safetensors", "pytorch_model.bin", "onnx/model_fp16.onnx", "README.md"):
        (folder / name).write_bytes(bytes(100_000))
    return folder


SMALL = ("config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json", "sentence_bert_config.json")


@pytest.mark.parametrize(
    ("file", "names"),
    [(None, ["onnx/model.onnx"]), (QUANTIZED, [QUANTIZED, "onnx/quantized.onnx_data"])],
    ids=["the float32 file", "a chosen file"],
)
def test_fetches_the_onnx_file_and_the_small_files_alone(file: str | None, names: list[str], tmp_path: Path) -> None:
    folder = repository(tmp_path / "x")
    with serving(folder) as hub:
        card = adopt("org/name", tmp_path / "out", file=file, endpoint=hub.endpoint)
        whole = [name for name, span in hub.requests if span is None and (folder / name).is_file()]
    assert sorted(whole) == sorted([*SMALL, *names])
    assert hub.sent == sum((folder / name).stat().st_size for name in whole)
    assert card.source == f"org/name@{COMMIT}"
    local = adopt(folder, tmp_path / "local", file=file)
    assert (card.files, card.graphs, card.pooling) == (local.files, local.graphs, local.pooling)
    assert verify(tmp_path / "out") == card.largest_difference


def test_quantized_file_is_compared_on_request_alone(tmp_path: Path, temporary: Path) -> None:
    with serving(repository(tmp_path / "x")) as hub:
        plain = adopt("org/name", tmp_path / "a", file=QUANTIZED, endpoint=hub.endpoint).adopted
        assert plain
        assert plain.comparison is None
        assert "--compare fetches them" in (plain.uncompared or "")
        assert not any(name == "onnx/model.onnx" for name, _ in hub.requests)
        compared = adopt("org/name", tmp_path / "b", file=QUANTIZED, compare=True, endpoint=hub.endpoint).adopted
    assert compared
    assert compared == adopt(tmp_path / "x", tmp_path / "c", file=QUANTIZED).adopted
    assert compared.comparison
    assert compared.comparison.reference == "onnx/model.onnx"
    assert list(temporary.iterdir()) == []


def test_fetches_the_modules_behind_pooling_once(tmp_path: Path, temporary: Path) -> None:
    folder = with_modules(tmp_path / "x", model(pooled=True), dense(8, 12), NORMALIZE, layer_norm(12))
    with serving(folder) as hub:
        card = adopt("org/name", tmp_path / "out", endpoint=hub.endpoint)
        fetched = [name for name, span in hub.requests if span is None and name.endswith(".safetensors")]
    assert fetched == ["2_Dense/model.safetensors", "4_LayerNorm/model.safetensors"]
    local = adopt(folder, tmp_path / "local")
    assert (card.files, card.modules, card.sentence_width) == (local.files, local.modules, 12)
    assert verify(tmp_path / "out") == card.largest_difference
    assert list(temporary.iterdir()) == []


def test_pickled_modules_are_adopted(tmp_path: Path) -> None:
    folder = with_modules(tmp_path / "x", model(), dense(8, 12))
    local = adopt(folder, tmp_path / "local")
    pickle_weights(folder / "2_Dense")
    with serving(folder) as hub:
        card = adopt("org/name", tmp_path / "out", endpoint=hub.endpoint)
    assert (card.files, card.modules, card.sentence_width) == (local.files, local.modules, 12)


FAILURES: dict[str, tuple[dict[str, str], tuple[str, ...], str, str | None, str]] = {
    # the server's options, removed files, the id, the chosen file, the message
    "no such repository": ({}, (), "org/other", None, "there is no such model, or it is private"),
    "no such revision": ({}, (), "org/name@v9", None, "org/name has no revision 'v9'"),
    "gated": ({"fault": "gated", "fault_on": ".json"}, (), "org/name", None, "is gated: accept its terms"),
    "unauthorised": ({"fault": "unauthorised", "fault_on": ".json"}, (), "org/name", None, "status 401.*HF_TOKEN"),
    "gated ONNX": ({"fault": "gated", "fault_on": ".onnx"}, (), "org/name", None, "is gated: accept its terms"),
    "a dropped connection": ({"fault": "hangs up", "fault_on": "l.onnx"}, (), "org/name", None, "try again"),
    "no config": ({}, ("config.json",), "org/name", None, "has no config.json"),
    "no such file": (
        {},
        (),
        "org/name",
        "onnx/model_q4.onnx",
        rf"^org/name@{COMMIT} holds no file 'onnx/model_q4\.onnx', but onnx/model\.onnx, onnx/model_fp16\.onnx, "
        rf"onnx/model_quantized\.onnx: choose one with --file$",
    ),
    "no ONNX": (
        {},
        ("onnx/model.onnx", QUANTIZED, "onnx/model_fp16.onnx"),
        "org/name",
        None,
        "holds neither onnx/model.onnx nor model.onnx, and no other ONNX: `inlay export` makes ONNX",
    ),
    "no float32 ONNX": ({}, ("onnx/model.onnx",), "org/name", None, "nor model.onnx, but onnx/model_fp16.onnx, "),
    "no external weights": (
        {},
        ("onnx/quantized.onnx_data",),
        "org/name",
        QUANTIZED,
        rf"^org/name@{COMMIT}/{QUANTIZED} keeps weights in 'quantized.onnx_data', which is not there",
    ),
    "no ONNX but by name": (
        {},
        (),
        "org/name",
        "onnx/model_fp16.onnx",
        rf"^org/name@{COMMIT}/onnx/model_fp16\.onnx is not an ONNX file",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failure_is_one_line_and_leaves_nothing(name: str, tmp_path: Path, temporary: Path) -> None:
    options, removed, what, file, message = FAILURES[name]
    folder = repository(tmp_path / "x")
    for each in removed:
        (folder / each).unlink()
    with serving(folder, **options) as hub, pytest.raises(ModelError, match=message) as caught:
        adopt(what, tmp_path / "out", file=file, endpoint=hub.endpoint)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["temporary", "x"]
    assert list(temporary.iterdir()) == []


def test_hub_that_lists_no_files_is_one_line(tmp_path: Path) -> None:
    with serving(repository(tmp_path / "x"), lists=False) as hub, pytest.raises(ModelError) as caught:
        adopt("org/name", tmp_path / "out", file="onnx/model_q4.onnx", endpoint=hub.endpoint)
    assert str(caught.value).startswith("org/name@main was refused by http")
    assert "\n" not in str(caught.value)


def test_command_takes_hub_ids(tmp_path: Path) -> None:
    with serving(repository(tmp_path / "x")) as hub:
        environment = os.environ | {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home")}
        done = subprocess.run(
            [Path(sys.executable).with_name("inlay"), "adopt", "org/name", "--file", QUANTIZED],
            cwd=ROOT, env=environment | {"INLAY_STORE": str(tmp_path / "store")}, capture_output=True, text=True,
            timeout=100, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "one sequence a run" in done.stdout
    assert "not compared with float32: the float32 weights were not fetched" in done.stdout
    assert hub.unknown_paths == []
    assert (tmp_path / "store/name/model.onnx").is_file()
