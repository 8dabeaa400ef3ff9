"""Runs the blocks of a page in order, in one folder, against a server of its own or one that pages share."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.clients.offline import offline
from tests.docs import hub_models
from tests.docs.blocks import JAVASCRIPT, Block, check_syntax

ROOT = Path(__file__).parents[2]
STORE = ROOT / "models/store"
DEMO, RERANKER = "all-MiniLM-L6-v2", "random-reranker"
MODELS = {DEMO: STORE / DEMO, RERANKER: ROOT / ".venv" / RERANKER}
"""Where the models lie that every page has; make exports them."""
if not MODELS[RERANKER].is_dir():
    MODELS[RERANKER] = STORE / RERANKER  # of `make reranker`
CLIENTS = ROOT / ".venv/clients/bin/python"
NODE_PACKAGES = ROOT / ".venv/js"
EXAMPLES = ROOT / "docs/examples"
INTERPRETER = Path(__file__).with_name("interpreter.py")
BLOCK_SECONDS = 240
SERVES = re.compile(r"REST (https?://\S+) .* gRPC (\S+)")
REST, RPC = 8080, 50051
NOWHERE = "http://127.0.0.1:9"
_LOCAL = re.compile(r"\b(localhost|127\.0\.0\.1|0\.0\.0\.0):(\d{4,5})\b")
_OPTION = re.compile(r"((?:--(?:grpc-|management-)?port[ =])|(?:INLAY_(?:GRPC_|MANAGEMENT_)?PORT=))(\d{4,5})\b")
CURL = """#!/bin/bash
# curl as pages call it, but an answer of 400 or more fails the block
for word in "$@"; do case "$word" in --fail*) exec {curl} "$@" ;; --*) ;; -*f*) exec {curl} "$@" ;; esac; done
exec {curl} --fail-with-body "$@"
"""


class BlockFailed(AssertionError):
    """A block that failed; the message holds its output."""


@dataclass(frozen=True)
class Server:
    """A running server: its process and its ports."""

    process: "subprocess.Popen[bytes]"
    rest: int
    rpc: int


def environment(**more: str) -> dict[str, str]:
    """Return the environment of blocks: no settings of the caller, no proxy before this machine, no hub."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("INLAY_", "HF_", "PYTHON"))}
    own = {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "INLAY_STORE": "models/store",
        "NO_PROXY": "localhost,127.0.0.1",
        "no_proxy": "localhost,127.0.0.1",
        "ORT_DISABLE_TELEMETRY": "1",
        "PYTHONPATH": str(ROOT),
        "TERM": "dumb",
    }
    return kept | own | more


def copy_store(folder: Path) -> Path:
    """Return a new store of the models that every page has: their cards copied, their other files linked."""
    for name, model in MODELS.items():
        (folder / name).mkdir(parents=True)
        for path in filter(Path.is_file, model.resolve().iterdir()):
            place = shutil.copy2 if path.suffix == ".json" else _link
            place(path, folder / name / path.name)
    return folder


def _link(source: Path, place: Path) -> None:
    try:
        os.link(source, place)
    except OSError:  # another file system
        shutil.copy2(source, place)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def serving(command: str, cwd: Path, variables: Mapping[str, str]) -> Iterator[Server]:
    """Run a command that starts a server in the background until it says where it serves; end it with the block.

    Raises:
        BlockFailed: the command ended, or did not serve in time.
    """
    log = cwd / f".server-{time.monotonic_ns()}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=cwd,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield _started(process, log)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _started(process: "subprocess.Popen[bytes]", log: Path) -> Server:
    """Return the server once it accepts connections on the ports that its start-up lines name."""
    given_up = time.monotonic() + BLOCK_SECONDS
    while time.monotonic() < given_up:
        text = log.read_text(encoding="utf-8", errors="replace")
        if process.poll() is not None:
            raise BlockFailed(f"the server ended with {process.returncode}:\n{text}")
        if said := SERVES.search(text):
            rest, rpc = (int(address.rpartition(":")[2]) for address in said.groups())
            with suppress(ConnectionRefusedError):  # it says so a moment earlier
                socket.create_connection(("127.0.0.1", rest), 5).close()
                return Server(process, rest, rpc)
        time.sleep(0.05)
    raise BlockFailed(f"the server did not serve within {BLOCK_SECONDS} s:\n{log.read_text(errors='replace')}")


class Namespace:
    """A Python process whose blocks share one namespace."""

    def __init__(self, python: Path, cwd: Path, variables: Mapping[str, str]) -> None:
        answers, given = os.pipe()
        self._out = (cwd / f".{python.parts[-3]}.log").open("w+b")
        self._answers = os.fdopen(answers)
        self._process = subprocess.Popen(
            [python, INTERPRETER, str(given)],
            cwd=cwd,
            env=dict(variables),
            stdin=subprocess.PIPE,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            pass_fds=(given,),
            text=True,
            start_new_session=True,
        )
        os.close(given)

    def run(self, block: Block, text: str) -> tuple[str, str]:
        """Run a block; return what failed, empty if nothing did, and what all blocks printed."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"text": text, "name": str(block)}) + "\n")
        self._process.stdin.flush()
        line = self._answers.readline()  # the test's own time limit ends a block that hangs
        failed = json.loads(line) if line else f"Python ended with {self._process.wait()}"
        return failed, self._printed()

    def _printed(self) -> str:
        self._out.seek(0)
        return self._out.read().decode(errors="replace")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._answers.close()
        self._out.close()


class Page:
    """Runs a page's blocks.

    Args:
        folder: a new one, in which all blocks run; it has a store of its own at models/store, and a copy of
            docs/examples.
        shared: the ports of the server that blocks talk to until the page starts its own.
        clients: whether blocks for .venv/clients run.
    """

    def __init__(self, folder: Path, shared: Server, *, clients: bool = False) -> None:
        self.folder, self.clients = folder, clients
        self._ports = {REST: shared.rest, RPC: shared.rpc}
        self._stack, self._server = ExitStack(), ExitStack()
        self._stack.enter_context(self._server)
        self._namespaces: dict[Path, Namespace] = {}
        self._variables: dict[str, str] = {}

    def run(self, blocks: list[Block]) -> None:
        """Run the blocks in order.

        Raises:
            BlockFailed: one failed, or should have and did not.
        """
        copy_store(self.folder / "models/store")
        if EXAMPLES.is_dir():
            shutil.copytree(EXAMPLES, self.folder / "docs/examples")
        tools = self.folder / ".bin"
        tools.mkdir()
        (tools / "curl").write_text(CURL.format(curl=shutil.which("curl")), encoding="utf-8")
        (tools / "curl").chmod(0o755)
        with self._stack:
            hub_text = "".join(block.text for block in blocks if "hub" in block.modes)
            hub = hub_models.stand_in(self.folder / ".hub", hub_text)
            self._hub = self._stack.enter_context(hub) if hub_text else None
            for block in blocks:
                check_syntax(block)
                if block.runs and (self.clients or "clients" not in block.modes):
                    self._run(block)

    def _run(self, block: Block) -> None:
        if "server" in block.modes:
            return self._serve(block)
        run = {"bash": self._bash, "python": self._python, JAVASCRIPT: self._javascript}[block.language]
        failed, output = run(block)
        if bool(failed) != ("error" in block.modes):
            what = failed or "it should have failed and did not"
            raise BlockFailed(f"{block}: {what}\n--- the block\n{block.text}--- its output\n{output[-6000:]}")
        return None

    def _python_of(self, block: Block) -> Path:
        return CLIENTS if "clients" in block.modes else Path(sys.executable)

    def _environment(self, block: Block) -> dict[str, str]:
        """Return the environment of a block."""
        folders = (self.folder / ".bin", self._python_of(block).parent, Path(sys.executable).parent, os.environ["PATH"])
        variables = environment(PATH=":".join(map(str, folders)))
        if "clients" in block.modes:  # huggingface_hub's client of any server calls none while it is offline
            del variables["HF_HUB_OFFLINE"]
            variables |= {"HF_ENDPOINT": NOWHERE, **offline(CLIENTS.parents[1])}
        if self._hub is not None and "hub" in block.modes:
            variables.pop("HF_HUB_OFFLINE", None)
            variables |= {"HF_ENDPOINT": self._hub.endpoint, "HF_HOME": str(self.folder / ".hf")}
        return variables

    def _placed(self, text: str) -> str:
        """Return a block's text with the ports that are in use instead of those that the page names."""
        text = _LOCAL.sub(lambda match: f"{match[1]}:{self._port(int(match[2]))}", text)
        return _OPTION.sub(lambda match: f"{match[1]}{self._port(int(match[2]))}", text)

    def _port(self, named: int) -> int:
        return self._ports.setdefault(named, free_port())

    def _serve(self, block: Block) -> None:
        self._server.close()
        self._ports |= {REST: free_port(), RPC: free_port()}
        variables = self._environment(block)
        variables |= {"INLAY_PORT": str(self._ports[REST]), "INLAY_GRPC_PORT": str(self._ports[RPC])}
        try:
            server = self._server.enter_context(serving(self._placed(block.text), self.folder, variables))
        except BlockFailed as error:
            raise BlockFailed(f"{block}: {error}") from None
        self._ports |= {REST: server.rest, RPC: server.rpc}

    def _bash(self, block: Block) -> tuple[str, str]:
        return self._program(block, ["bash", "-euo", "pipefail", "-c"], self.folder)

    def _javascript(self, block: Block) -> tuple[str, str]:
        """Run a block where its packages lie: they are looked for from there."""
        return self._program(block, ["node", "--input-type=module", "--eval"], NODE_PACKAGES)

    def _program(self, block: Block, command: list[str], cwd: Path) -> tuple[str, str]:
        log = self.folder / f".{block.language}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, self._placed(block.text)],
                cwd=cwd,
                env=self._environment(block),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            code = process.wait(BLOCK_SECONDS)
            failed = f"ended with {code}" if code else ""
        except subprocess.TimeoutExpired:
            failed = f"took longer than {BLOCK_SECONDS} s"
        with suppress(ProcessLookupError):  # and what it left in the background
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return failed, log.read_text(encoding="utf-8", errors="replace")

    def _python(self, block: Block) -> tuple[str, str]:
        python = self._python_of(block)
        if python not in self._namespaces:
            self._namespaces[python] = Namespace(python, self.folder, self._environment(block))
            self._stack.callback(self._namespaces[python].close)
        return self._namespaces[python].run(block, self._placed(block.text))


def pages() -> dict[str, Path]:
    """Return every page whose blocks are run, by its name in the repository."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {path.relative_to(ROOT).as_posix(): path for path in paths}
