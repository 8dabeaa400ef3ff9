"""`inlay rope`: files in every format, judged by their own libraries; what it prints; what it refuses."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from service.cli.main import main
from service.cli.rope import rope_options
from service.protocols.inlay.positions.parameters import RopeParameters
from tests.golden_cases import case
from tests.onnx_sessions import open_session
from tests.service.cli.conftest import Run

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
def test_npy_holds_transformers_cos_and_sin(config: str, arithmetic: str, tmp_path: Path) -> None:
    out = tmp_path / "table.npy"
    assert main(["rope", "--config", config, "--length", "8192", "--arithmetic", arithmetic, "-o", str(out)]) == 0
    table = np.load(out)
    assert (table.shape, table.dtype) == ((2, 8192, 64), np.float32)
    for rows, expected in zip(table[:, ROWS], golden(SMALL), strict=True):
        np.testing.assert_allclose(rows, expected, atol=3e-7 + 5e-7 * 8192)


def test_a_safetensors_file_says_how_it_was_made(config: str, tmp_path: Path) -> None:
    out = tmp_path / "table.safetensors"
    assert (
        main(["rope", "--config", config, "--length", "100", "--start", "50", "--dtype", "bfloat16", "-o", str(out)])
        == 0
    )
    with safe_open(out, "numpy") as file:
        metadata = file.metadata()
        assert (metadata["rope_type"], metadata["arithmetic"], json.loads(metadata["theta"])) == (
            "llama3",
            "exact",
            500000.0,
        )
        assert file.get_tensor("cos").shape == (100, 64)
        assert file.get_tensor("sin").dtype == ml_dtypes.bfloat16


def test_a_json_file_holds_facts_and_values(config: str, tmp_path: Path) -> None:
    out = tmp_path / "table.json"
    assert main(["rope", "--config", config, "--length", "3", "-o", str(out)]) == 0
    document = json.loads(out.read_text())
    assert document["cos"][0] == [1.0] * 64
    assert len(document["inverse_frequency"]) == 64


def test_an_onnx_file_computes_the_same_table(config: str, tmp_path: Path) -> None:
    out = tmp_path / "table.onnx"
    assert main(["rope", "--config", config, "--length", "3", "-o", str(out)]) == 0
    for rows, expected in zip(open_session(out).run(None, {"positions": ROWS}), golden(SMALL), strict=True):
        np.testing.assert_allclose(rows, expected, atol=3e-7 + 5e-7 * 8192)


@pytest.mark.parametrize(("suffix", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_a_picture_is_drawn(config: str, suffix: str, begins: bytes, tmp_path: Path) -> None:
    out = tmp_path / f"table{suffix}"
    assert main(["rope", "--config", config, "--plot", "spectrum", "-o", str(out)]) == 0
    assert out.read_bytes().startswith(begins)


def test_a_picture_compares_presets_and_parameters(inlay: Run, tmp_path: Path) -> None:
    out = tmp_path / "compared.svg"
    others = ["--compare", "llama-3.1-8b", "--compare", "rope_type=linear&factor=8"]
    own = ["--theta", "5e5", "--head-dim", "128", "--max-position-embeddings", "8192", "--length", "64"]
    assert inlay("rope", *own, *others, "--plot", "spectrum", "-o", out)[0] == 0
    drawn = out.read_text()
    assert "llama-3.1-8b" in drawn
    assert "linear" in drawn
    other = tmp_path / "one.svg"
    assert inlay("rope", *own, *others[:2], "--plot", "spectrum", "-o", other)[0] == 0
    assert "linear" not in other.read_text()


def test_without_a_file_it_prints_the_parameters(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rope", "--config", config]) == 0
    output = capsys.readouterr().out
    assert "llama3" in output
    assert "131072 x 64" in output


def test_a_preset_equals_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    """Llama 3.1 8B: theta 500000, factor 8, low 1, high 4, trained on 8192, heads of 128."""
    assert main(["rope", "--preset", "llama-3.1-8b", "--length", "5"]) == 0
    preset = capsys.readouterr().out
    scaling = [
        "--factor",
        "8",
        "--low-freq-factor",
        "1",
        "--high-freq-factor",
        "4",
        "--original-max-position-embeddings",
        "8192",
    ]
    sizes = ["--theta", "5e5", "--head-dim", "128", "--rope-type", "llama3", "--max-position-embeddings", "131072"]
    assert main(["rope", *sizes, *scaling, "--length", "5"]) == 0
    parameters = capsys.readouterr().out

    def frequencies(output: str) -> list[str]:
        return next(line for line in output.splitlines() if line.startswith("inverse_frequency")).split()

    assert frequencies(preset) == frequencies(parameters)
    assert main(["rope", "--preset", "list"]) == 0
    assert "llama-3.1-8b" in capsys.readouterr().out


CANNOT = {
    "an unknown suffix": (["--head-dim", "64", "--length", "4", "-o", "x.txt"], "allowed: .npy, .safetensors"),
    "bfloat16 in npy": (["--head-dim", "64", "--length", "4", "--dtype", "bfloat16", "-o", "x.npy"], "no bfloat16"),
    "nothing at all": ([], "send head_dim or rotary_dim"),
    "an unknown preset": (["--preset", "llama-2-7"], "did you mean 'llama-2-7b'? --preset list names them all"),
    "no such preset": (["--preset", "nope"], "there is no preset 'nope'; --preset list names them all"),
    "a parameter of another type": (
        ["--head-dim", "64", "--length", "4", "--rope-type", "yarn", "--low-freq-factor", "4"],
        "low_freq_factor",
    ),
    "a missing folder": (
        ["--head-dim", "64", "--length", "4", "-o", "nowhere/t.npy"],
        "nowhere/t.npy: there is no folder nowhere; make it first",
    ),
    "a missing file": (["--config", "nowhere.json"], "nowhere.json: No such file"),
    "many values in JSON": (["--head-dim", "64", "--length", "100000", "-o", "x.json"], "too many for .json"),
}
MISUSED = {
    "two sources": (["--preset", "llama-2-7b", "--theta", "5"], "--preset and --theta contradict each other"),
    "positions and length": (
        ["--preset", "llama-2-7b", "--positions", "1,2", "--length", "5"],
        "contradict each other",
    ),
    "a comparison without a picture": (
        ["--preset", "llama-2-7b", "--compare", "llama-3-8b"],
        "--compare needs a picture",
    ),
    "an unknown parameter to compare": (
        ["--preset", "llama-2-7b", "--compare", "factr=4", "-o", "x.png"],
        'did you mean "factor"?',
    ),
    "not a number": (["--head-dim", "64", "--length", "4", "--factor", "x"], '--factor is "x"; allowed: a number'),
    "not a layout": (["--preset", "llama-2-7b", "--layout", "quarter"], "--layout is 'quarter'; allowed: 'half', "),
    "no length": (["--head-dim", "64"], "give --length"),
    "a negative start": (["--head-dim", "64", "--start", "-4", "--length", "4"], "--start is '-4'; allowed: 0 or more"),
    "no rows": (["--head-dim", "64", "--length", "0"], "--length is '0'; allowed: 1 or more"),
    "a start past the end": (["--preset", "llama-2-7b", "--start", "9999"], "--start 9999 is not among the 4096"),
}


@pytest.mark.parametrize(("code", "name"), [*((1, name) for name in CANNOT), *((2, name) for name in MISUSED)])
def test_an_error_is_one_line_and_writes_nothing(
    code: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inlay: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    words, message = (CANNOT | MISUSED)[name]
    ended, out, error = inlay("rope", *words)
    assert (ended, out, error.count("\n")) == (code, "", 1), error
    assert message in error
    assert list(tmp_path.iterdir()) == []


def test_a_misspelt_option_names_the_nearest(inlay: Run) -> None:
    code, _, error = inlay("rope", "--head-dim", "64", "--factr", "4")
    assert code == 2
    assert "--factr" in error
    assert "--factor" in error


def test_every_http_parameter_is_an_option() -> None:
    """Of GET /positions/rope, but for those that a file's suffix stands for."""
    options = {parameter.name for parameter in rope_options()}
    assert options == set(RopeParameters.model_json_schema()["properties"]) - {"format", "output", "encoding_format"}


def test_positions_are_written_as_over_http(inlay: Run, tmp_path: Path) -> None:
    out = tmp_path / "table.npy"
    assert inlay("rope", "--preset", "llama-2-7b", "--positions", "0,5,100-102", "-o", out)[0] == 0
    whole = tmp_path / "whole.npy"
    assert inlay("rope", "--preset", "llama-2-7b", "--length", "103", "-o", whole)[0] == 0
    np.testing.assert_array_equal(np.load(out), np.load(whole)[:, [0, 5, 100, 101, 102]])


def test_a_config_is_a_file_or_its_text(inlay: Run, config: str) -> None:
    printed = inlay("rope", "--config", config)
    assert printed[0] == 0
    assert inlay("rope", "--config", json.dumps(CONFIG)) == printed


def test_rejects_a_config_that_is_no_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, message in (("{", "is not JSON"), ("[1]", "holds a JSON list")):
        (tmp_path / "config.json").write_text(text)
        assert main(["rope", "--config", str(tmp_path / "config.json")]) == 1
        assert message in capsys.readouterr().err
