"""Fixtures for third-party clients: the service as a process of its own, and the table of results.

`make clients` runs all of these modules in an environment of the clients alone, `.venv/clients`, because they and the
service want different versions of the same libraries; `make test` runs those of LIGHT in the service's own. Clients of
JavaScript lie in `.venv/js`; without npm they are not there, and the summary says so.
"""

import importlib.metadata
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.clients.offline import offline
from tests.golden_cases import case, write_checkpoint
from tests.score_models import CLASSIFIER, LABELS, RANKER, write_classifier

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "models/store/all-MiniLM-L6-v2"
CLIENTS_ALONE = Path(sys.prefix).name == "clients"
PYTHON = Path(sys.prefix).parent / "bin/python" if CLIENTS_ALONE else Path(sys.executable)  # the service's own
SECONDS = 60
DECODERS = {"llama": "input_llama", "gemma": "input_gemma_bf16"}

LIGHT = ("test_openai.py", "test_huggingface_hub.py")
JAVASCRIPT = ROOT / ".venv/js"
OUTCOMES = pytest.StashKey[dict[str, dict[str, bool]]]()

if CLIENTS_ALONE:
    os.environ.update(offline(Path(sys.prefix)))  # before a client is imported


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without their client the heavy modules cannot even be imported."""
    name = collection_path.name
    if name == "test_javascript.py":
        return None if _has_javascript() else True
    return True if name.startswith("test_") and name not in LIGHT and not CLIENTS_ALONE else None


def _has_javascript() -> bool:
    return (JAVASCRIPT / ".locked").exists()


@dataclass(frozen=True)
class Server:
    """A running service: its process, REST `host:port` and gRPC `host:port`."""

    process: "subprocess.Popen[str]"
    host: str
    rpc: str

    @property
    def url(self) -> str:
        return f"http://{self.host}"


class Start(Protocol):
    """Starts a service with these settings; leaving the block stops it."""

    def __call__(self, **settings: Any) -> AbstractContextManager[Server]: ...


@contextmanager
def serving(store: Path, **settings: Any) -> Iterator[Server]:
    """`inlay serve` on free ports, with INLAY_ variables of these names, once it says that it serves."""
    variables = {f"INLAY_{name.upper()}": str(value) for name, value in settings.items()}
    process = subprocess.Popen(
        [PYTHON.with_name("inlay"), "serve", "--store", str(store), "--port", "0", "--grpc-port", "0"],
        cwd=ROOT,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        lines = iter(process.stdout.readline, "")
        addresses = (re.search(r"REST http://(\S+) .* gRPC (\S+)", line) for line in lines)
        said = next((match for match in addresses if match), None)
        assert said, "the service ended before it served; its stderr says why"
        _reached(said[1])
        yield Server(process, said[1], said[2])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(SECONDS)
        process.stdout.close()


def _reached(host: str) -> None:
    """Return once the port accepts connections: the service announces it a moment earlier."""
    address, port = host.split(":")
    given_up = time.monotonic() + SECONDS
    while True:
        try:
            socket.create_connection((address, int(port))).close()
            return
        except ConnectionRefusedError:
            assert time.monotonic() < given_up


@pytest.fixture(scope="session")
def demo() -> Path:
    """The store of the demo model."""
    assert DEMO.is_dir(), f"there is no {DEMO.relative_to(ROOT)}: make test and make clients export it"
    return DEMO.parent


@pytest.fixture(scope="session")
def start(demo: Path) -> Start:
    """Starts a service of the demo model with further settings."""
    return partial(serving, demo, models=DEMO.name)


@pytest.fixture(scope="session")
def server(start: Start) -> Iterator[Server]:
    """The demo model as it is served by default."""
    with start() as running:
        yield running


@pytest.fixture(scope="session")
def patient(start: Start) -> Iterator[Server]:
    """The demo model, whose queue refuses nothing only because this machine is slow."""
    with start(max_queue_seconds=1800) as running:
        yield running


@pytest.fixture(scope="session")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Tiny decoders of the golden cases in DECODERS: what vLLM and sglang take rows for."""
    folder = tmp_path_factory.mktemp("decoders")
    for name, golden in DECODERS.items():
        source = write_checkpoint(case(golden), folder / "checkpoints" / name)
        export = [PYTHON.with_name("inlay"), "export", str(source), str(folder / "store" / name)]
        subprocess.run(export, cwd=ROOT, check=True, capture_output=True, timeout=SECONDS)
    with serving(folder / "store", default_model=next(iter(DECODERS))) as running:
        yield running


@pytest.fixture(scope="session")
def scorers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tiny cross-encoder, the default, and a tiny classifier of three labels."""
    folder = tmp_path_factory.mktemp("scorers")
    for name, labels in ((RANKER, ("relevance",)), (CLASSIFIER, LABELS)):
        source = write_classifier(folder / "checkpoints" / name, labels)
        export = [PYTHON.with_name("inlay"), "export", str(source), str(folder / "store" / name)]
        subprocess.run(export, cwd=ROOT, check=True, capture_output=True, timeout=SECONDS)
    with serving(folder / "store", default_model=RANKER) as running:
        yield running


# ---- which clients were run, and what they showed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[None]") -> Iterator[None]:
    """Note each claim under the client its module names as CLIENT, or under its parameter `package` of npm."""
    report = yield
    client = getattr(getattr(item, "module", None), "CLIENT", None)
    claim = getattr(item, "originalname", "").removeprefix("test_").replace("_", " ")
    if package := getattr(item, "callspec", None) and item.callspec.params.get("package"):  # type: ignore[attr-defined]
        client, claim = f"{package} (npm)", item.callspec.params["claim"].replace("_", " ")  # type: ignore[attr-defined]
    if client and (report.when == "call" or report.failed):
        claims = item.config.stash.setdefault(OUTCOMES, {}).setdefault(client, {})
        claims[claim] = claims.get(claim, True) and report.passed
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table, and with --save-table the same as Markdown."""
    if outcomes := config.stash.get(OUTCOMES, {}):
        terminalreporter.section("clients run against the service")
        for client, claims in sorted(outcomes.items()):
            line = f"{client} {version(client)}"
            terminalreporter.write_line(f"{line:<62} {sum(claims.values())} of {len(claims)} claims hold")
        if CLIENTS_ALONE and (path := config.getoption("--save-table")):
            path.write_text(table(outcomes), encoding="utf-8")
    requested = "clients" in config.option.markexpr and "not clients" not in config.option.markexpr
    if requested and not CLIENTS_ALONE:
        terminalreporter.section("NOT SHOWN: most clients")
        terminalreporter.write_line("they have an environment of their own: run `make clients`")
    if (requested or CLIENTS_ALONE) and not _has_javascript():
        terminalreporter.section("NOT SHOWN: the clients of JavaScript")
        terminalreporter.write_line(
            "they need Node 20 and npm (on Debian: apt-get install npm): `make clients` installs them then"
        )


def version(client: str) -> str:
    """Return the installed version of a client of Python or, `NAME (npm)`, of JavaScript."""
    package = client.removesuffix(" (npm)")
    if package == client:
        return importlib.metadata.version(client)
    described = JAVASCRIPT / "node_modules" / package / "package.json"
    return str(json.loads(described.read_text(encoding="utf-8"))["version"])


def table(outcomes: dict[str, dict[str, bool]]) -> str:
    """The outcomes as Markdown."""
    rows = [
        f"| {client} | {version(client)} | {claim} | {'yes' if held else 'NO'} |"
        for client, claims in sorted(outcomes.items())
        for claim, held in claims.items()
    ]
    python = ".".join(map(str, sys.version_info[:3]))
    command = "make clients ARGS=--save-table=tests/clients/results.md"
    head = ["# Real clients against a running service", "", f"By `{command}`, Python {python}.", ""]
    return "\n".join([*head, "| client | version | claim | holds |", "|---|---|---|---|", *rows, ""])
