"""`inlay health` against small servers: which address it asks, what it prints and its exit code."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from service.cli import health
from tests.service.cli.conftest import Run


class Ready(BaseHTTPRequestHandler):
    """Answers /health/ready with 200, everything below /late with 503, else 404."""

    def do_GET(self) -> None:
        status = {"/health/ready": 200, "/late/health/ready": 503}.get(self.path, 404)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b'{"status":"ready"}' if status == 200 else b"starting")

    def log_message(self, format: str, *values: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Ready) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture(autouse=True)
def first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where a test writes the command of a container's first process."""
    monkeypatch.setattr(health, "FIRST_PROCESS", tmp_path / "cmdline")
    return tmp_path / "cmdline"


def run_here(first: Path, *words: str) -> None:
    """Let `inlay serve` with these options run as the first process."""
    first.write_bytes("\0".join(["/opt/venv/bin/python", "/opt/venv/bin/inlay", "serve", *words, ""]).encode())


@pytest.mark.parametrize("form", ["--port {}", "--port={}", "--host 0.0.0.0 --port {} --workers 2"])
def test_asks_the_port_that_serve_was_started_with(inlay: Run, port: int, first: Path, form: str) -> None:
    run_here(first, *form.format(port).split())
    assert inlay("health") == (0, '{"status":"ready"}\n', "")


def test_the_command_behind_an_init_is_found(inlay: Run, port: int, first: Path) -> None:
    first.write_bytes(f"/sbin/docker-init\0--\0inlay\0serve\0--port\0{port}\0".encode())
    assert inlay("health")[0] == 0


def test_another_first_process_is_not_asked(inlay: Run, port: int, first: Path) -> None:
    first.write_bytes(f"/usr/bin/tail\0inlay\0--port\0{port}\0".encode())
    assert "127.0.0.1:8080" in "".join(inlay("health")[1:]) or inlay("health")[0] == 0


def test_tls_of_the_command_line_is_used(inlay: Run, first: Path, port: int) -> None:
    run_here(first, "--port", str(port), "--tls-cert", "cert.pem", "--tls-key", "key.pem")
    assert f"https://127.0.0.1:{port} is not ready" in inlay("health")[2]


@pytest.mark.parametrize("name", ["INLAY_PORT", "PORT"])
def test_asks_the_port_of_the_variable(name: str, inlay: Run, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, str(port))
    assert inlay("health") == (0, '{"status":"ready"}\n', "")


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "localhost", ""])
def test_asks_the_host_that_the_service_listens_on(
    inlay: Run, port: int, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("INLAY_HOST", host)
    assert inlay("health", "--port", str(port))[0] == 0


def test_an_option_wins_over_the_variable(inlay: Run, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_PORT", "1")
    assert inlay("health", "--port", str(port))[0] == 0
    assert inlay("health", "--url", f"http://127.0.0.1:{port}/")[0] == 0


def test_ignores_the_address_that_kubernetes_sets(inlay: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_PORT", "tcp://10.0.0.1:9000")
    assert "127.0.0.1:8080" in "".join(inlay("health")[1:]) or inlay("health")[0] == 0


def test_asks_the_management_port(inlay: Run, port: int, first: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_MANAGEMENT_PORT", str(port))
    assert inlay("health")[0] == 0
    monkeypatch.delenv("INLAY_MANAGEMENT_PORT")
    run_here(first, "--port", "1", "--management-port", str(port))
    assert [inlay("health", *words)[0] for words in ((), ("--port", "1"), ("--port", str(port)))] == [0, 0, 0]


def test_a_service_that_is_not_ready_is_exit_code_1(inlay: Run, port: int) -> None:
    code, out, error = inlay("health", "--url", f"http://127.0.0.1:{port}/late")
    assert (code, out) == (1, "")
    assert "is not ready: HTTP 503: starting" in error


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:80", "ftp://127.0.0.1", "http://", "http://h:p"])
def test_an_address_without_a_service_is_one_line(inlay: Run, url: str) -> None:
    code, out, error = inlay("health", "--url", url)
    assert (code, out, error.count("\n")) == (1, "", 1)
    assert error.startswith(f"inlay: {url} is not ready: ")


def test_proxy_of_the_environment_is_not_used(inlay: Run, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert inlay("health", "--port", str(port))[0] == 0
