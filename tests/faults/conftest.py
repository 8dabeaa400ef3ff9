"""Real processes meeting real faults; each test enters what it asserted and what it saw, for one table."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from models.artifacts.export import export
from tests.classifier_models import write_classifier
from tests.faults import complaints
from tests.golden_cases import case, write_checkpoint, write_tiny_bert

SEEN = pytest.StashKey[dict[str, tuple[str, str]]]()
Notes = Callable[..., None]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bert`, which reads text and pools, `llama`, which reads ids and rotates, and `ranks`, which scores pairs."""
    folder = tmp_path_factory.mktemp("faults")
    export(write_tiny_bert(folder / "checkpoints/bert", pooling="mean"), folder / "store/bert")
    export(write_checkpoint(case("input_llama"), folder / "checkpoints/llama"), folder / "store/llama")
    export(write_classifier(folder / "checkpoints/ranks", max_position_embeddings=512), folder / "store/ranks")
    return folder / "store"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where the service writes what it has to say."""
    return tmp_path / "log"


@pytest.fixture(autouse=True)
def notes(request: pytest.FixtureRequest) -> Iterator[Notes]:
    """Told what a test saw; its docstring says what it asserts."""
    texts: list[str] = []

    def note(text: str) -> None:
        texts.append(text)

    yield note
    table = request.config.stash.setdefault(SEEN, {})
    name = request.node.name.removeprefix("test_").replace("_", " ")
    asserted = " ".join((request.function.__doc__ or "").split())
    table[f"{request.path.stem.removeprefix('test_')}: {name}"] = (asserted, "; ".join(texts) or "as asserted")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    seen = config.stash.get(SEEN, {})
    if not seen:
        return
    failed = {report.nodeid.split("::")[-1] for report in terminalreporter.stats.get("failed", [])}
    path = config.getoption("--save-table")
    if path and not failed:
        path.write_text(table(seen), encoding="utf-8")


def table(seen: dict[str, tuple[str, str]]) -> str:
    """The faults as Markdown."""
    rows = [f"| {fault} | {asserted} | {saw} |" for fault, (asserted, saw) in sorted(seen.items())]
    head = ["# Faults, what is asserted of each, and what was seen", "", f"By `{COMMAND}`.", ""]
    return "\n".join([*head, "| fault | asserted | seen |", "|---|---|---|", *rows, "", *complaints.table(), ""])


COMMAND = "make faults ARGS=--save-table=tests/faults/results.md"
