"""python -m models rope: files in every format, judged by their own libraries; what it prints; what it refuses."""

import errno
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from safetensors import safe_open

from models.__main__ import main
from models.progress import Progress
from models.artifacts.table_files import FORMATS, write
from models.errors import BadEncoding
from models.positions.rope.frequencies import Rope
from models.positions.rope.table import tabulate
from models.positions.table import Table
from tests.golden_cases import case

LLAMA31 = case("rope_llama3_f8_31")
CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_attention_heads": 2,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {name: value for name, value in LLAMA31.params["rope_parameters"].items() if name != "rope_theta"},
}


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def golden(positions: slice) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    arrays = LLAMA31.arrays
    return arrays["cos"][positions, :64], arrays["sin"][positions, :64]


SMALL = slice(0, int((LLAMA31.arrays["positions"] < 8192).sum()))
ROWS = LLAMA31.arrays["positions"][SMALL]


@pytest.mark.parametrize("arithmetic", ["exact", "parity"])
def test_an_npy_file_holds_transformers_cos_and_sin(config: str, arithmetic: str, tmp_path: Path) -> None:
    out = tmp_path / "table.npy"
    assert main(["rope", "--config", config, "--length", "8192", "--arithmetic", arithmetic, "-o", str(out)]) == 0
    table = np.load(out)
    assert (table.shape, table.dtype) == ((2, 8192, 64), np.float32)
    for found, expected in zip(table[:, ROWS], golden(SMALL), strict=True):
        np.testing.assert_allclose(found, expected, atol=3e-7 + 5e-7 * 8192)


def test_a_safetensors_file_says_how_it_was_made(config: str, tmp_path: Path) -> None:
    out = tmp_path / "table.safetensors"
    assert (
        main(["rope", "--config", config, "--length", "100", "--start", "50", "--dtype", "bfloat16", "-o", str(out)])
        == 0
    )
    with safe_open(out, "numpy") as file:
        told = file.metadata()
        assert (told["rope_type"], told["arithmetic"], json.loads(told["theta"])) == ("llama3", "exact", 500000.0)
        assert file.get_tensor("cos").shape == (100, 64)
        assert file.get_tensor("sin").dtype == ml_dtypes.bfloat16


def test_a_json_file_holds_facts_and_values(config: str, tmp_path: Path) -> None:
    out = tmp_path / "table.json"
    assert main(["rope", "--config", config, "--length", "3", "-o", str(out)]) == 0
    told = json.loads(out.read_text())
    assert told["cos"][0] == [1.0] * 64
    assert len(told["inverse_frequency"]) == 64


def test_an_onnx_file_computes_the_same_table(config: str, tmp_path: Path) -> None:
    out = tmp_path / "table.onnx"
    assert main(["rope", "--config", config, "--length", "3", "-o", str(out)]) == 0
    for found, expected in zip(
        onnxruntime.InferenceSession(out).run(None, {"positions": ROWS}), golden(SMALL), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=3e-7 + 5e-7 * 8192)


@pytest.mark.parametrize(("suffix", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_a_picture_is_drawn(config: str, suffix: str, begins: bytes, tmp_path: Path) -> None:
    out = tmp_path / f"table{suffix}"
    assert main(["rope", "--config", config, "--plot", "spectrum", "-o", str(out)]) == 0
    assert out.read_bytes().startswith(begins)


def test_without_a_file_it_says_what_the_table_is_made_of(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rope", "--config", config]) == 0
    told = capsys.readouterr().out
    assert "llama3" in told
    assert "131072 x 64" in told


def test_presets_and_parameters_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Llama 3.1 8B: theta 500000, factor 8, low 1, high 4, trained on 8192, heads of 128."""
    assert main(["rope", "--preset", "llama-3.1-8b", "--length", "5"]) == 0
    preset = capsys.readouterr().out
    named = ["factor=8", "low_freq_factor=1", "high_freq_factor=4", "original_max_position_embeddings=8192"]
    sizes = ["--theta", "5e5", "--head-dim", "128", "--rope-type", "llama3", "--max-position-embeddings", "131072"]
    assert main(["rope", *sizes, "--length", "5", *(each for name in named for each in ("--set", name))]) == 0
    parameters = capsys.readouterr().out

    def frequencies(told: str) -> list[str]:
        return next(line for line in told.splitlines() if line.startswith("inverse_frequency")).split()

    assert frequencies(preset) == frequencies(parameters)
    assert main(["rope", "--preset", "list"]) == 0
    assert "llama-3.1-8b" in capsys.readouterr().out


REFUSED = {
    "an unknown suffix": (["--head-dim", "64", "--length", "4", "-o", "x.txt"], "what is written: .npy, .safetensors"),
    "bfloat16 in npy": (["--head-dim", "64", "--length", "4", "--dtype", "bfloat16", "-o", "x.npy"], "no bfloat16"),
    "nothing at all": ([], "send head_dim or rotary_dim"),
    "two sources": (["--preset", "llama-2-7b", "--theta", "5"], "--preset and --theta contradict each other"),
    "an unknown preset": (["--preset", "llama-2-7"], "did you mean 'llama-2-7b'? --preset list names them all"),
    "no such preset": (["--preset", "nope"], "there is no preset 'nope'; --preset list names them all"),
    "a misspelt parameter": (
        ["--head-dim", "64", "--length", "4", "--rope-type", "yarn", "--set", "factr=4"],
        "no parameter 'factr'; did you mean 'factor'?",
    ),
    "a folder that is not there": (
        ["--head-dim", "64", "--length", "4", "-o", "nowhere/t.npy"],
        "nowhere/t.npy: there is no folder nowhere; make it first",
    ),
    "a parameter that is no JSON": (["--head-dim", "64", "--set", "factor=x"], "is not NAME=VALUE"),
    "no length": (["--head-dim", "64"], "give --length"),
    "a negative start": (["--head-dim", "64", "--start", "-4", "--length", "4"], "begins at 0 or later"),
    "no rows": (["--head-dim", "64", "--length", "0"], "has a row"),
    "a missing file": (["--config", "nowhere.json"], "nowhere.json: No such file"),
    "many values in JSON": (["--head-dim", "64", "--length", "100000", "-o", "x.json"], "too many for .json"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_made_is_refused_in_a_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, message = REFUSED[name]
    assert main(["rope", *arguments]) == 1
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_config_that_is_no_json_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, message in (("{", "is not JSON"), ("[1]", "holds a JSON list")):
        (tmp_path / "config.json").write_text(text)
        assert main(["rope", "--config", str(tmp_path / "config.json")]) == 1
        assert message in capsys.readouterr().err


def test_a_stop_leaves_no_half_file(tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tabulate(Rope(10000.0, 64), range(100_000)), tmp_path / "table.npy", progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(table: Table, path: Path, dtype: str, progress: Progress) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setitem(FORMATS, ".npy", refuse)
    with pytest.raises(PermissionError) as refusal:
        write(tabulate(Rope(10000.0, 64), range(4)), tmp_path / "table.npy")
    assert refusal.value.filename == str(tmp_path / "table.npy")


def test_outputs_of_different_shapes_need_safetensors(tmp_path: Path) -> None:
    from models.positions import alibi

    table = alibi.tabulate(4, query_length=3)
    with pytest.raises(BadEncoding, match="different shapes: slopes"):
        write(table, tmp_path / "bias.npy")
    write(table, tmp_path / "bias.safetensors", "float64")
    with safe_open(tmp_path / "bias.safetensors", "numpy") as file:
        assert file.get_tensor("slopes").tolist() == [0.25, 0.0625, 0.015625, 0.00390625]
