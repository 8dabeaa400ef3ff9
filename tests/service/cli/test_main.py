"""What holds for every command: usage errors, help, completion and what is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from models import VERSION
from service.cli import application, console
from service.settings import Settings
from tests.service.cli.conftest import Run

SECRET = "correct-horse-battery"
COMMANDS = list(application.COMMANDS)
INLAY = Path(sys.executable).with_name("inlay")


def installed(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """The installed command in a process of its own."""
    environment = os.environ | variables
    return subprocess.run([INLAY, *words], env=environment, capture_output=True, text=True, timeout=100, check=False)


def imported_by(*words: str) -> set[str]:
    """The top-level modules that a command imports."""
    code = f"import sys\nfrom service.cli.main import main\ncode = main({list(words)!r})\n"
    code += "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize("words", [[SECRET], ["--api-keys", SECRET, "serve"], [f"--api-keys={SECRET}", SECRET]])
def test_unknown_command_is_not_shown(inlay: Run, words: list[str]) -> None:
    code, _, error = inlay(*words)
    assert code == 2
    assert "one of serve, export, adopt" in error
    assert SECRET not in error


def test_an_option_before_the_command_shows_no_value(inlay: Run) -> None:
    code, out, error = inlay(f"--api-keys={SECRET}", "serve")
    assert code == 2
    assert SECRET not in out + error


def test_a_misspelt_command_names_the_nearest(inlay: Run) -> None:
    assert "did you mean serve?" in inlay("sevre")[2]


def test_no_command_prints_help_with_exit_code_2(inlay: Run) -> None:
    code, out, error = inlay()
    assert code == 2
    assert all(command in out + error for command in COMMANDS)


@pytest.mark.parametrize(
    "words",
    [
        ["bake"],
        ["export"],
        ["create", "x"],
        ["create", "x", "--model-type", "bert", "--dtype", "int8"],
        ["create", "x", "--base", "y"],
    ],
)
def test_wrong_usage_is_exit_code_2(words: list[str], inlay: Run) -> None:
    code, out, error = inlay(*words)
    assert (code, out) == (2, "")
    assert error


@pytest.mark.parametrize("command", COMMANDS)
def test_help_cuts_no_option_off_at_80_columns(command: str, inlay: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = inlay(command, "--help")
    assert (code, "…" in out) == (0, False)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_and_argument_has_help(command: str) -> None:
    import typer

    commands = typer.main.get_command(application.application(with_settings=True)).commands  # type: ignore[attr-defined]
    assert [parameter.name for parameter in commands[command].params if not getattr(parameter, "help", None)] == []


def test_health_imports_neither_typer_nor_pydantic() -> None:
    assert not imported_by("health") & {"typer", "rich", "pydantic", "numpy", "argparse"}


@pytest.mark.parametrize("words", [["--help"], ["list", "--help"], ["export", "--help"], ["health", "--port", "1"]])
def test_help_imports_neither_numpy_nor_the_service(words: list[str]) -> None:
    assert not imported_by(*words) & {"numpy", "onnx", "onnxruntime", "uvicorn", "grpc", "fastapi"}


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("inlay se", {"serve", "settings"}),
        ("inlay serve --max-in", {"--max-inputs", "--max-input-tokens"}),
        ("inlay serve --device c", {"cpu", "cuda"}),
    ],
)
def test_bash_completes_commands_options_and_choices(words: str, completed: set[str]) -> None:
    position = str(len(words.split()) - 1)
    done = installed(_INLAY_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=position)
    assert set(done.stdout.split()) == completed, done.stderr


def test_closed_pipe_ends_a_command_quietly() -> None:
    with subprocess.Popen([INLAY, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(100) == 0


def test_progress_is_lines_where_stderr_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for seconds, expected in (
        (0.0, "hashing: 1,000 of 2,000\nhashing: 2,000 of 2,000, 0 s left\ncomparing\n"),
        (1e9, ""),
    ):
        monkeypatch.setattr(console, "REPORT_SECONDS", seconds)
        with console.progress_bars() as show:
            show("hashing", 1000, 2000)
            show("hashing", 2000, 2000)
            show("comparing", 0, 0)
        assert capsys.readouterr().err == expected


def test_every_setting_is_listed_with_variable_and_option(inlay: Run) -> None:
    _, listed, _ = inlay("settings")
    _, helped, _ = inlay("serve", "--help")
    assert "INLAY_TABLE_CACHE_BYTES  --table-cache-bytes  default: unset" in listed
    for name, field in Settings.model_fields.items():
        assert f"INLAY_{name.upper()} " in listed
        assert field.description
        assert " ".join(field.description.split()) in " ".join(listed.split())
        assert f"--{name.replace('_', '-')} " in helped
        assert field.description.split()[0] in helped


def test_help_shows_what_an_option_takes(inlay: Run) -> None:
    _, helped, _ = inlay("serve", "--help")
    rows = {words[1]: words[2] for line in helped.splitlines() if (words := line.split())[1:2] and len(words) > 2}
    assert rows["--workers"] == "N"
    assert rows["--compression"] == "{asked|always|never}"
    assert rows["--engine"] == "NAME"
    assert rows["--access-log"] == "{true|false}"
    assert rows["--tls-cert"] == "PATH"
    assert rows["--models"] == "A,B,..."


def test_a_foreign_package_called_proto_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "proto").mkdir()
    (tmp_path / "proto/__init__.py").touch()  # as proto-plus installs it beside Ray
    code = "from service.cli.main import main\nmain(['--version'])\nimport proto.embed_pb2"
    environment = os.environ | {
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[3]}",
        "PYTHONSAFEPATH": "1",
    }
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, timeout=100)


@pytest.mark.parametrize("checkout", [True, False])
def test_the_default_store_is_absolute(
    checkout: bool, inlay: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "installed"
    store = installed / "models/store" if checkout else tmp_path / "data/inlay/models"
    if checkout:
        installed.mkdir()
        (installed / "pyproject.toml").touch()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, out, error = inlay("check")
    assert (code, error) == (0, "")
    assert out.startswith(f"inlay: models of {store}\n")
    assert inlay("list")[1].startswith(f"no exported models in {store}\n")


def test_version_is_printed(inlay: Run) -> None:
    assert inlay("--version") == (0, f"inlay {VERSION}\n", "")
    assert "--version" in inlay("--help")[1]
