"""`inlay serve` as an operator meets it: real processes, exit codes, one line for each failure, a clean stop."""

import errno
import json
import math
import os
import platform
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest

from proto import embed_pb2 as pb
from proto.embed_pb2_grpc import EmbedderStub
from service import machine
from service.cli import startup
from service.cli.startup import bind
from service.errors import StartError
from service.machine import available_cpus
from tests.golden_cases import write_tiny_bert

ROOT = Path(__file__).parents[3]
INLAY = Path(sys.executable).with_name("inlay")
SECONDS = 100  # of waiting, beside other work too


def command(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [INLAY, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@contextmanager
def running(
    store: Path, *flags: str, default: str | None = "bert"
) -> Iterator[tuple["subprocess.Popen[str]", str, str]]:
    """A served store, its REST URL and its gRPC address, once it says that it serves."""
    arguments = ["--store", str(store), "--port", "0", "--grpc-port", "0", *flags]
    arguments += ["--default-model", default] if default else []
    process = subprocess.Popen([INLAY, "serve", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        lines = iter(process.stdout.readline, "")
        address = next(match for line in lines if (match := re.search(r"REST (\S+) .* gRPC (\S+)", line)))
        yield process, address[1], address[2]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(SECONDS)
        process.stdout.close()


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_announced_example_request_works(tiny_store: Path) -> None:
    with running(tiny_store) as (process, url, _):
        assert process.stdout is not None
        line = process.stdout.readline().removeprefix("try: curl ").strip()
        target, _, _, _, body = re.split(r" (-H|-d) ", line)
        assert target == f"{url}/embed"
        answer = httpx.post(
            target, content=body.strip("'"), headers={"content-type": "application/json"}, timeout=SECONDS
        )
        assert len(answer.json()[0]) == 32


@pytest.mark.parametrize("setting", ["port", "grpc_port"])
@pytest.mark.parametrize("host", ["999.1.1.1", "no host", "2001:db8::1"])  # no name, and nobody's address
def test_host_of_another_machine_is_reported(host: str, setting: str) -> None:
    with pytest.raises(StartError, match=r"cannot listen on .*:0: .*; choose another with INLAY_HOST or --host"):
        bind(host, 0, "REST", setting)


def test_port_in_use_is_one_line_and_exit_code_1(tiny_store: Path, taken: int) -> None:
    ports = ["--port", "0", "--grpc-port", "0", "--management-port", str(taken)]
    assert_in_use(command("serve", "--store", tiny_store, *ports, "--workers", "2"), taken, "--management-port")


def test_two_services_never_share_a_port(tiny_store: Path) -> None:
    """Though the workers of one do."""
    with running(tiny_store) as (_, url, rpc_address):
        for flag, address, other in (("--port", url, "--grpc-port"), ("--grpc-port", rpc_address, "--port")):
            port = int(address.rpartition(":")[2])
            assert_in_use(command("serve", "--store", tiny_store, flag, str(port), other, "0"), port, flag)


def assert_in_use(ended: "subprocess.CompletedProcess[str]", port: int, flag: str) -> None:
    said = rf"inlay: \w+ cannot listen on 127.0.0.1:{port}: that port is in use; .*{flag}\n"
    assert ended.returncode == 1
    assert re.fullmatch(said, ended.stderr), ended.stderr


def broken_store(folder: Path, kind: str) -> Path:
    store = folder / "store"
    if kind == "broken card":
        (store / "bert").mkdir(parents=True)
        (store / "bert/card.json").write_text("{")
    return store


SAID = {"missing": "does not exist", "broken card": "is not a card this version reads"}


@pytest.mark.parametrize(
    ("kind", "verb", "workers"),
    [("missing", "check", "1"), ("broken card", "serve", "2"), ("missing", "serve", "1")],
)
def test_unusable_store_is_one_line_and_exit_code_1(tmp_path: Path, kind: str, verb: str, workers: str) -> None:
    store = broken_store(tmp_path, kind)
    ended = command(verb, "--store", store, "--port", "0", "--grpc-port", "0", "--workers", workers)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert SAID[kind] in ended.stderr


def test_serves_positions_without_a_model(tmp_path: Path) -> None:
    """An empty store: ready, tables are served, and a route that needs a model says that none is loaded."""
    with running(tmp_path, default=None) as (_, url, _):
        assert command("health", "--url", url).returncode == 0
        assert httpx.get(f"{url}/positions/rope?preset=llama-3.1-8b&length=2", timeout=SECONDS).status_code == 200
        refused = httpx.post(f"{url}/embed", json={"inputs": [5]}, timeout=SECONDS)
        assert refused.is_client_error
        assert "no model is loaded" in refused.text


def test_exports_and_serves_a_checkpoint(tmp_path: Path) -> None:
    checkpoint = write_tiny_bert(tmp_path / "tiny", pooling="mean")
    for _ in range(2):  # the second start reuses the export
        with running(tmp_path / "store", "--model", str(checkpoint), default=None) as (_, url, _):
            assert len(httpx.post(f"{url}/embed", json={"inputs": "hello"}, timeout=SECONDS).json()[0]) == 32
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == [".tiny.checkpoint.json", "tiny"]


def test_broken_graph_is_one_line_and_exit_code_1(tiny_store: Path, tmp_path: Path) -> None:
    for file in (tiny_store / "bert").iterdir():
        target = tmp_path / "store/bert" / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(bytes(file.stat().st_size) if file.suffix == ".onnx" else file.read_bytes())
    ended = command("check", "--store", tmp_path / "store")
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1


def test_several_workers_without_a_folder_name_the_remedy(tiny_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(startup, "TemporaryDirectory", fails)
    with pytest.raises(StartError, match="make /dev/shm or /tmp writable, or set INLAY_WORKERS=1"):
        startup.shared_directory()


def test_stop_finishes_requests_in_flight_and_exits_0(tiny_store: Path) -> None:
    with (
        running(tiny_store) as (process, url, rpc_address),
        httpx.Client(base_url=url, timeout=SECONDS) as client,
        socket.create_connection(("127.0.0.1", httpx.URL(url).port), timeout=SECONDS) as half_sent,
        grpc.insecure_channel(rpc_address) as channel,
    ):
        body = b'{"inputs": [5, 6], "outputs": "token_embeddings"}'
        head = b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        half_sent.sendall(head % len(body) + body[:10])
        request = pb.PositionsRequest(scheme="rope", model="llama")
        request.parameters.update({"length": 1_000_000})
        table = EmbedderStub(channel).Positions(request)
        rpc_size = sum(4 * math.prod(output.shape) for output in next(table).outputs)
        octets = {"accept": "application/octet-stream"}
        with client.stream("GET", "/models/llama/rope?length=1000000", headers=octets) as answer:
            parts = answer.iter_raw()
            size = len(next(parts))
            process.send_signal(signal.SIGTERM)
            rpc_sent = sum(len(chunk.data) for chunk in table)
            half_sent.sendall(body[10:])
            size += sum(map(len, parts))
        answered = b"".join(iter(lambda: half_sent.recv(65536), b""))
        assert process.wait(SECONDS) == 0
    assert rpc_sent == rpc_size
    assert size == int(answer.headers["content-length"])
    assert answered.startswith(b"HTTP/1.1 200 OK\r\n")
    assert json.loads(answered.split(b"\r\n\r\n", 1)[1])["usage"] == {"tokens": 2}


def test_two_workers_share_both_ports(tiny_store: Path) -> None:
    with running(tiny_store, "--workers", "2") as (process, url, rpc_address):
        assert httpx.post(f"{url}/embed", json={"inputs": [5]}, timeout=SECONDS).status_code == 200
        with grpc.insecure_channel(rpc_address) as channel:
            request = pb.EmbedRequest(inputs=[pb.Input(ids=pb.TokenIds(input_ids=[5]))], outputs=["token_embeddings"])
            (output,) = EmbedderStub(channel).Embed(request).outputs
            assert np.frombuffer(output.tensor.data, np.float32).shape == (32,)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0


def heaps(pid: int) -> int:
    """glibc's heaps of a process beside its main one: each begins a reserved range of 64 MiB at a multiple of that."""
    reserved = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p .*\n\2-([0-9a-f]+) ---p ", re.MULTILINE)
    ranges = [(int(each[1], 16), int(each[3], 16)) for each in reserved.finditer(Path(f"/proc/{pid}/maps").read_text())]
    return sum(start % 2**26 == 0 and end - start == 2**26 for start, end in ranges)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heaps are glibc's")
def test_serving_processes_have_few_heaps(tiny_store: Path) -> None:
    with running(tiny_store, "--workers", "2") as (process, url, _):
        with ThreadPoolExecutor(16) as pool, httpx.Client(base_url=url, timeout=SECONDS) as client:
            answers = pool.map(lambda n: client.post("/embed", json={"inputs": [[n % 8]]}).status_code, range(64))
            assert set(answers) == {200}
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert all(heaps(pid) < max(machine.MIN_HEAPS, available_cpus()) for pid in map(int, children))


def test_start_prints_json_lines_only(tiny_store: Path) -> None:
    """No banner on stdout, and every line of stderr is an object, the addresses among them."""
    arguments = ["--store", tiny_store, "--port", "0", "--grpc-port", "0", "--log-format", "json", "--workers", "2"]
    process = subprocess.Popen(
        [INLAY, "serve", *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(json.loads(line)["message"])
        if lines[-1].startswith("try: curl "):
            break
    process.send_signal(signal.SIGTERM)
    rest, _ = process.stderr.read(), process.wait(SECONDS)
    assert any(re.fullmatch(r"REST http://\S+ · web page \S+/ · docs \S+ · gRPC \S+", line) for line in lines)
    assert all(json.loads(line) for line in rest.splitlines())
    assert process.stdout.read() == ""
    process.stdout.close()
    process.stderr.close()


def json_lines(ended: "subprocess.CompletedProcess[str]") -> list[str]:
    """Return the messages of a log of JSON lines; nothing else may be in it, and nothing on stdout."""
    assert ended.stdout == ""
    return [json.loads(line)["message"] for line in ended.stderr.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "TAKEN", "--grpc-port", "0"], "that port is in use"),
        (["--prot", "1"], "--prot is not an option of serve"),
    ],
)
def test_failed_start_is_one_json_line(tiny_store: Path, taken: int, arguments: list[str], said: str) -> None:
    words = [str(taken) if word == "TAKEN" else word for word in arguments]
    ended = command("serve", "--store", tiny_store, *words, INLAY_LOG_FORMAT="json")
    assert ended.returncode in (1, 2)
    (message,) = json_lines(ended)
    assert said in message


def test_export_before_serving_logs_json_lines(tmp_path: Path) -> None:
    checkpoint = write_tiny_bert(tmp_path / "tiny", pooling="mean")
    arguments = ["--store", tmp_path / "store", "--model", checkpoint, "--grpc-port", "nonsense"]
    assert len(json_lines(command("serve", *arguments, "--log-format", "json"))) == 1
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the export is done, then the port is taken
        arguments[-1:] = ["0", "--port", str(listener.getsockname()[1])]
        messages = json_lines(command("serve", *arguments, "--log-format", "json"))
    assert messages[0].startswith(f"exporting {checkpoint} to ")
    assert (tmp_path / "store/tiny/card.json").is_file()


UNCAUGHT = """
import threading, warnings
from service.observability.logs import start_logging

start_logging("json", "info", inputs=False)
warnings.warn("careful")

def fail():
    raise ValueError("a caller's text")

thread = threading.Thread(target=fail)
thread.start()
thread.join()
fail()
"""


def test_warnings_and_uncaught_exceptions_are_json_lines() -> None:
    ended = subprocess.run([sys.executable, "-c", UNCAUGHT], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    warning, *failures = json_lines(ended)
    assert "careful" in warning
    assert failures == ["an exception was not caught"] * 2
    assert "a caller's text" not in ended.stderr


def test_closed_terminal_stops_as_sigterm_does(tiny_store: Path) -> None:
    with running(tiny_store, "--workers", "2") as (process, url, _):
        assert httpx.get(f"{url}/health/live", timeout=SECONDS).status_code == 200
        process.send_signal(signal.SIGHUP)
        assert process.wait(SECONDS) == 0


def handles_sigterm(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM; without one, process 1 of a container does not notice it."""
    (caught,) = re.findall(r"SigCgt:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Processes are started with SIGINT at its default, which the shell of the tests may have ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGTERM, "1"), (signal.SIGINT, "2")])
@pytest.mark.usefixtures("interruptible")
def test_stop_while_it_starts_exits_0(tiny_store: Path, number: int, workers: str) -> None:
    arguments = ["--store", tiny_store, "--port", "0", "--grpc-port", "0", "--workers", workers]
    process = subprocess.Popen([INLAY, "serve", *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        while not handles_sigterm(process.pid):
            assert process.poll() is None
        process.send_signal(number)
        _, log = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert (process.returncode, "Traceback" in log) == (0, False)


def test_stop_while_an_extension_is_imported_exits_0(tiny_store: Path, tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text(
        "import os, signal\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    signal.sigtimedwait((), 1)\n"
        "except SystemExit as stop:\n"  # as C++ initialisation does
        "    raise ImportError from stop\n"
    )
    done = subprocess.run(
        [INLAY, "serve", "--store", tiny_store, "--port", "0", "--grpc-port", "0"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_second_interrupt_ends_at_once_without_a_traceback(tiny_store: Path) -> None:
    arguments = ["--store", tiny_store, "--port", "0", "--grpc-port", "0", "--shutdown-seconds", str(10 * SECONDS)]
    process = subprocess.Popen([INLAY, "serve", *arguments], cwd=ROOT, stdout=-1, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    address = next(match for line in process.stdout if (match := re.search(r"REST http://127.0.0.1:(\d+)", line)))
    with socket.create_connection(("127.0.0.1", int(address[1]))) as client:
        client.sendall(b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
        process.send_signal(signal.SIGINT)
        next(line for line in process.stdout if "stopping: finishing requests" in line)
        process.send_signal(signal.SIGINT)
        log, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "requests in flight are cut off" in log
    assert "Traceback" not in log


def test_names_the_variables_of_kubernetes_that_it_ignores(tmp_path: Path) -> None:
    variables = {"INLAY_PORT": "tcp://10.0.0.1:80", "INLAY_SERVICE_HOST": "10.0.0.1", "INLAY_PORT_80_TCP": "tcp://"}
    ended = command("serve", "--store", tmp_path / "none", "--grpc-port", "0", "--port", "0", **variables)
    assert "ignored, since they hold the address of a Service of Kubernetes: " in ended.stderr
    assert all(name in ended.stderr for name in variables)
