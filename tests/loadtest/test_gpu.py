"""The run on a GPU: the script itself on a CPU, what it says without CUDA, and what counts as wrong."""

import json
from pathlib import Path

import pytest

from loadtest.gpu import __main__ as gpu
from loadtest.gpu import report
from loadtest.gpu.cases import DTYPES, Load, chosen
from loadtest.gpu.measure import Row

RIGHT = Row(
    "m", "Inlay", "float32", cosine=0.9999999, megabytes=812.4, tokens_per_second={16: [3000.0, 1000.0, 2000.0]}
)
FAR = Row("m", "Inlay", "float16", cosine=0.98)
ABSENT = Row("m", "torch", "float32", "it is not there")


def test_without_a_driver_nothing_is_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert gpu.run(gpu.arguments([])) == 3
    assert capsys.readouterr().out.startswith("no CUDA device: there is no nvidia-smi, so no NVIDIA driver;")


def test_the_script_runs_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.run(gpu.arguments(["--device", "cpu", "--quick", "--own", "--models", "minilm-l6"])) == 0
    assert "| minilm-l6 | Inlay | float32 | 1.000000 |" in capsys.readouterr().out


def test_every_type_of_every_model_is_run_on_a_gpu(tmp_path: Path) -> None:
    names = {model.name for model in chosen((), False, tmp_path)}
    assert {"minilm-l6", "mpnet-base", "modernbert-base", "gemma3-270m", "qwen3-0.6b"} < names
    assert {"bge-large", "bge-m3"} < names
    assert DTYPES == ("float32", "float16", "bfloat16")
    assert {length: len(Load().texts(length)) for length in Load().lengths} == {16: 1024, 128: 128, 512: 32}


def test_results_are_a_file_a_table_and_a_picture(tmp_path: Path) -> None:
    report.save([RIGHT, FAR, ABSENT], [("exchange", "a request got 500", False)], {"GPU": "L4"}, tmp_path / "gpu")
    text = (tmp_path / "gpu.md").read_text()
    assert "| m | Inlay | float32 | 1.000000 | 812 | 2,000 |" in text
    assert "| 0.980000, too far |" in text
    assert "| m | torch | float32 | it is not there |" in text
    assert "| exchange | FAILED: a request got 500 |" in text
    assert json.loads((tmp_path / "gpu.json").read_text())["facts"] == {"GPU": "L4"}
    assert "<svg" in (tmp_path / "gpu.svg").read_text()


def test_types_have_bounds_of_their_own() -> None:
    assert RIGHT.is_right
    assert not FAR.is_right
    assert Row("m", "Inlay", "bfloat16", cosine=0.995).is_right
    assert not ABSENT.is_right
