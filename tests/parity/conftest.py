"""Live comparisons with transformers, collected when parity is asked for and summed up in one table."""

import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

import pytest

NEEDED = ("torch", "transformers", "sentence_transformers")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
LARGEST = pytest.StashKey[dict[tuple[str, str], float]]()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without torch these modules cannot even be imported, so a run that leaves parity out does not look at them."""
    if "not parity" in config.option.markexpr or MISSING:
        return True if collection_path.name.startswith("test_") else None
    return None


class Ledger:
    """The largest difference seen of each thing compared."""

    def __init__(self, largest: dict[tuple[str, str], float]) -> None:
        self._largest = largest

    def check(self, family: str, what: str, difference: float, tolerance: float) -> None:
        """Note the difference, relative to its tolerance's unit, and fail above the tolerance."""
        self._largest[family, what] = max(difference, self._largest.get((family, what), 0.0))
        assert difference <= tolerance, f"{family} {what}: {difference:.3g} is above {tolerance:.3g}"


@pytest.fixture
def ledger(pytestconfig: pytest.Config) -> Ledger:
    return Ledger(pytestconfig.stash.setdefault(LARGEST, {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what a worker of a parallel run noted to the process that prints the table."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["largest"] = [
            [*key, float(difference)] for key, difference in session.config.stash.get(LARGEST, {}).items()
        ]


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take what a worker noted."""
    largest = node.config.stash.setdefault(LARGEST, {})
    for family, what, difference in getattr(node, "workeroutput", {}).get("largest", []):
        largest[family, what] = max(difference, largest.get((family, what), 0.0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if "not parity" in config.option.markexpr:
        return
    if MISSING:
        terminalreporter.section("NOT SHOWN: parity")
        terminalreporter.write_line(f"{', '.join(MISSING)} not installed: nothing was compared; run `make parity`")
    elif largest := config.stash.get(LARGEST, {}):
        terminalreporter.section("largest difference from the reference")
        for (family, what), difference in sorted(largest.items()):
            terminalreporter.write_line(f"{family:<14} {what:<32} {difference:.2e}")
        if path := config.getoption("--save-table"):
            path.write_text(table(largest), encoding="utf-8")


def table(largest: dict[tuple[str, str], float]) -> str:
    """The differences as Markdown, with the libraries they were measured against."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers", "numpy"))
    rows = [f"| {family} | {what} | {difference:.1e} |" for (family, what), difference in sorted(largest.items())]
    command = "make parity ARGS=--save-table=tests/parity/results.md"
    head = ["# Largest differences from the libraries", "", f"By `{command}`, {versions}.", ""]
    return "\n".join([*head, "| family | what | largest |", "|---|---|--:|", *rows, ""])
