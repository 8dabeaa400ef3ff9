"""A scrape of any worker shows the counts of all, and the logs hold nothing that callers sent."""

import json
import os
import re
import signal
import socket
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import monotonic, sleep

import grpc
import httpx
from prometheus_client.parser import text_string_to_metric_families

from proto import embed_pb2 as pb
from proto.embed_pb2_grpc import EmbedderStub
from tests.observe.processes import SECONDS, Running, running

SECRET = "hunter2planted"
REQUESTS = 30
WORKERS = 2


def http(service: Running, verb: str, path: str, body: object = None) -> tuple[int, str]:
    """Return status and body of a request on a new connection, so that every worker gets some."""
    url = httpx.URL(service.url)
    connection = HTTPConnection(url.host, url.port or 0, timeout=SECONDS)
    try:
        headers = {"content-type": "application/json"} if body else {}
        connection.request(verb, path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def numbers(service: Running) -> dict[str, float]:
    """Return every sample of one scrape, which any worker may answer."""
    samples = [
        sample
        for family in text_string_to_metric_families(http(service, "GET", "/metrics")[1])
        for sample in family.samples
    ]
    return {f"{each.name} {sorted(each.labels.items())}": each.value for each in samples}


def counters(seen: dict[str, float]) -> dict[str, float]:
    kept = re.compile(r"^inlay_(?!worker_cpu)\w+(_total|_count|_sum|_bucket) ")
    return {name: value for name, value in seen.items() if kept.match(name)}


def total(seen: dict[str, float], **labels: str) -> float:
    label_pairs = [str(pair) for pair in labels.items()]
    counts = [value for name, value in seen.items() if name.startswith("inlay_requests_total ")]
    assert counts
    return sum(
        value
        for name, value in seen.items()
        if name.startswith("inlay_requests_total ") and all(pair in name for pair in label_pairs)
    )


def ask(service: Running, requests: int) -> None:
    for _ in range(requests):
        assert http(service, "POST", "/embed", {"inputs": SECRET})[0] == 200
        assert http(service, "POST", "/embed", {"inputs": SECRET, SECRET: 1})[0] == 422


def until_workers(service: Running, ready: int, restarts: int = 0) -> None:
    ends = monotonic() + SECONDS
    while monotonic() < ends:
        try:
            text = http(service, "GET", "/metrics")[1]
            if f"\ninlay_workers_ready {ready}.0\n" in text and f"\ninlay_worker_restarts_total {restarts}.0\n" in text:
                return
        except (OSError, HTTPException):  # its worker was killed with the connection waiting
            continue
    raise AssertionError(f"there were never {ready} workers ready")


def until_counted(service: Running, requests: int) -> None:
    """Wait until scrapes of any worker show so many requests: workers share their counts once a second."""
    ends = monotonic() + SECONDS
    while {total(numbers(service), method="/embed", status="200") for _ in range(6)} != {requests}:
        assert monotonic() < ends
        sleep(0.1)


def files(pid: int) -> list[str]:
    """Return the files that a process holds open."""
    return [str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()]


def test_any_worker_shows_all_and_no_counter_falls_by_a_kill(store: Path, tmp_path: Path) -> None:
    with running(
        store, tmp_path / "log", "--workers", f"{WORKERS}", "--log-format", "json", "--access-log", "true"
    ) as service:
        until_workers(service, WORKERS)
        ask(service, REQUESTS)
        with grpc.insecure_channel(service.rpc_address) as channel:
            EmbedderStub(channel).Embed(pb.EmbedRequest(inputs=[pb.Input(text=SECRET)]))
        with socket.create_connection(("127.0.0.1", httpx.URL(service.url).port or 0)) as connection:
            connection.sendall(f"{SECRET} {SECRET}\r\n\r\n".encode())
            connection.recv(1000)
        until_counted(service, REQUESTS)
        before = numbers(service)
        assert total(before, method="/embed", status="422") == REQUESTS
        assert total(before, protocol="grpc", status="OK") == 1
        assert before["inlay_worker_restarts_total []"] == 0
        killed, *_ = sorted(service.workers())
        (directory,) = {Path(path).parent for path in files(killed) if path.endswith(".lock")}
        os.kill(killed, signal.SIGKILL)
        until_workers(service, WORKERS, restarts=1)
        restarted = numbers(service)
        assert killed not in service.workers()
        fallen = {name for name, value in counters(before).items() if counters(restarted).get(name, -1) < value}
        assert fallen == set()
        ask(service, REQUESTS)
        until_counted(service, 2 * REQUESTS)
        after = numbers(service)
        assert (after["inlay_workers []"], after["inlay_worker_restarts_total []"]) == (WORKERS, 1)
    written = service.log.read_text()
    assert SECRET not in written
    lines = [json.loads(line) for line in written.splitlines()]
    answered = [line for line in lines if line["logger"] == "inlay.access" and line["method"] == "POST /embed"]
    assert len(answered) == 4 * REQUESTS
    assert len({line["request_id"] for line in answered}) == len(answered)
    assert not directory.exists()
