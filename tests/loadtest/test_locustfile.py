"""The locustfile as users run it: results, refusals that are waited for, failures, shapes, an open loop, keys, TLS."""

import importlib.util
import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from loadtest.response_checks import WrongAnswer, expect_ranking
from models.artifacts.export import export
from tests.served import serving
from tests.service.cli.test_startup import running
from tests.test_dual_encoders import CASES, write

pytestmark = pytest.mark.skipif(importlib.util.find_spec("locust") is None, reason="`make load` installs locust")

ROOT = Path(__file__).parents[2]
ENOUGH = 40  # requests after which a run is ended


class Stub(BaseHTTPRequestHandler):
    """Refuses every second request with Retry-After, or answers all with `status`."""

    protocol_version = "HTTP/1.1"
    status = 429
    seen = 0
    enough = threading.Event()

    def do_GET(self) -> None:
        self.answer(200, b'{"served_model_name": "stub"}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        type(self).seen += 1
        if self.seen >= ENOUGH:
            self.enough.set()
        self.answer(self.status, b"{}", **({"Retry-After": "0"} if self.status == 429 else {}))

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Holding(Stub):
    """Answers nothing before HELD requests have come."""

    held = threading.Barrier(8)

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        if self.command == "POST":
            with suppress(threading.BrokenBarrierError):  # those that are left at the end
                self.held.wait(20)
        super().answer(status, body, **headers)


@contextmanager
def stub(status: int, kind: type[Stub] = Stub) -> Iterator[tuple[str, threading.Event]]:
    handler = type("Answering", (kind,), {"status": status, "seen": 0, "enough": threading.Event()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler.enough
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def locust(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--json", "--think", "0"]
    return [*command, "-u", "4", "-r", "4", *arguments]


def results(process: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    output, errors = process.communicate(timeout=100)
    assert "[" in output, errors
    rows: list[dict[str, Any]] = json.loads(output[output.index("[") :])
    return rows


def rows_against(status: int) -> tuple[list[dict[str, Any]], int]:
    """Run RestUser against a stub until it has seen enough."""
    with stub(status) as (host, enough):
        process = subprocess.Popen(
            locust("--host", host, "RestUser"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert enough.wait(100)
        process.terminate()
        return results(process), process.returncode


def test_refusals_are_counted_apart_and_are_no_failures() -> None:
    rows, status = rows_against(429)
    posts = [row for row in rows if row["method"] != "GET"]
    assert {row["method"] for row in posts} == {"refused"}
    assert sum(row["num_requests"] for row in posts) >= ENOUGH - 4
    assert sum(row["num_failures"] for row in rows) == 0
    assert status == 0


def test_other_errors_are_failures() -> None:
    rows, status = rows_against(500)
    posts = [row for row in rows if row["method"] == "POST"]
    assert all(row["num_failures"] == row["num_requests"] > 0 for row in posts)
    assert posts
    assert status != 0


def test_open_loop_does_not_wait_for_answers() -> None:
    """One user alone, whose first answer comes when eight requests have."""
    with stub(429, Holding) as (host, enough):
        words = ["--host", host, "--rate", "100", "-u", "1", "RestUser"]
        process = subprocess.Popen(locust(*words), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert enough.wait(100)
        Holding.held.abort()
        process.terminate()
        rows = results(process)
    assert {row["method"] for row in rows} <= {"GET", "refused"}


@pytest.mark.sweep  # twelve seconds
def test_reranking_pictures_keys_and_tls(minilm_store: Path, score_store: Path, tmp_path: Path) -> None:
    store, key = tmp_path / "store", "correct-horse-battery"
    store.mkdir()
    for folder in (minilm_store / "minilm", score_store / "ranker"):
        (store / folder.name).symlink_to(folder)
    export(write(CASES[0], tmp_path / "clip"), store / "clip", side="vision")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "own.pem"))
    flags = ["--tls-cert", str(tmp_path / "own.pem"), "--tls-key", str(tmp_path / "own.pem"), "--api-keys", key]
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    with running(store, *flags, default="minilm") as (_, url, target), httpx.Client(verify=context, timeout=60) as http:
        words = ["--host", url, "--grpc-host", target, "--ca", str(tmp_path / "ca.pem"), "--key", key]
        process = subprocess.Popen(
            locust(*words, "--rerank", "0.3", "--image-model", "clip", "--images", "0.3"),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wanted = {'method="/rerank"', 'method="/v1/rerank"', 'method="/v2/embed"', 'method="Embed",protocol="grpc"'}
        while wanted:
            assert process.poll() is None
            text = http.get(f"{url}/metrics").text
            wanted = {each for each in wanted if f"inlay_requests_total{{{each}" not in text}
        process.terminate()
        rows = results(process)
    assert [row for row in rows if row["num_failures"]] == []
    names = {row["name"].rpartition(" ")[2] for row in rows}
    assert names >= {"rerank", "picture", "inlay"}


def test_a_ranking_that_is_wrong_is_found() -> None:
    assert expect_ranking([(1, 0.5), (0, 0.25)], 2).tolist() == [[0.25, 0.5]]
    for ranked in ([(1, 0.5)], [(1, 0.5), (1, 0.25)], [(0, 0.25), (1, 0.5)], [(0, float("nan")), (1, 0.5)]):
        with pytest.raises(WrongAnswer):
            expect_ranking(ranked, 2)


@pytest.mark.sweep  # eight seconds
def test_results_are_by_route_and_protocol(minilm_store: Path) -> None:
    with serving(minilm_store) as served:
        host = "http://{}:{}".format(*served.address)
        process = subprocess.Popen(
            locust("--host", host, "--grpc-host", served.rpc_address, "--shape", "ramp", "-t", "6s"),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        rows = results(process)
    assert sum(row["num_failures"] for row in rows) == 0
    assert process.returncode == 0
    protocols = {row["name"].partition(" ")[2].partition(",")[0] for row in rows}
    assert protocols
    assert protocols <= {"openai", "tei", "inlay", "oip"}
