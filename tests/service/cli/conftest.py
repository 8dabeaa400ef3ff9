"""Commands run in this process, without the variables of the machine."""

from collections.abc import Callable
from pathlib import Path

import pytest

from service import settings
from service.cli.main import main
from service.cli.options import ELSEWHERE
from service.observability import logs
from service.settings import Settings

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reads the settings or the store of the machine it runs on."""
    monkeypatch.setattr(settings, "ROOT", tmp_path / "installed")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in [*(f"INLAY_{name.upper()}" for name in Settings.model_fields), *ELSEWHERE]:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def no_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """`inlay serve` in this process leaves the logging of the tests alone."""
    monkeypatch.setattr(logs, "start_logging", lambda *_, **__: None)


@pytest.fixture
def inlay(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command; returns its exit code, what it printed to stdout and what to stderr."""

    def run(*words: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(map(str, words)))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run
