"""Several workers are seen as one service, and their logs hold nothing that callers sent."""

import json
import os
import re
import signal
import socket
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import monotonic

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
    """Asked on a connection of its own, so that every worker gets some."""
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
    """Every sample of one scrape, whichever worker it reaches."""
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
    wanted = [str(pair) for pair in labels.items()]
    found = [value for name, value in seen.items() if name.startswith("inlay_requests_total ")]
    assert found
    return sum(
        value
        for name, value in seen.items()
        if name.startswith("inlay_requests_total ") and all(pair in name for pair in wanted)
    )


def ask(service: Running, requests: int) -> None:
    for _ in range(requests):
        assert http(service, "POST", "/embed", {"inputs": SECRET})[0] == 200
        assert http(service, "POST", "/embed", {"inputs": SECRET, SECRET: 1})[0] == 422


def until_workers(service: Running, ready: int) -> None:
    ends = monotonic() + SECONDS
    while monotonic() < ends:
        try:
            if f"\ninlay_workers_ready {ready:.1f}\n" in http(service, "GET", "/metrics")[1]:
                return
        except (OSError, HTTPException):  # its worker was killed with the connection waiting
            continue
    raise AssertionError(f"there were never {ready} workers ready")


def test_scrapes_of_any_worker_tell_of_all_and_no_counter_falls_when_one_is_killed(store: Path, tmp_path: Path) -> None:
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
        before = [numbers(service) for _ in range(6)]
        for seen in before:  # whichever worker answered
            assert total(seen, method="embed", status="200") == REQUESTS
            assert total(seen, method="embed", status="422") == REQUESTS
            assert total(seen, protocol="grpc", status="OK") == 1
            assert seen["inlay_worker_restarts_total []"] == 0
        killed, *_ = sorted(service.workers())
        directory = {Path(path).parent for path in re.findall(r"\S+\.cells", str(service.workers()))}
        os.kill(killed, signal.SIGKILL)
        until_workers(service, WORKERS)
        restarted = numbers(service)
        assert killed not in service.workers()
        fallen = {name for name, value in counters(before[-1]).items() if counters(restarted).get(name, -1) < value}
        assert fallen == set()
        ask(service, REQUESTS)
        after = numbers(service)
        assert total(after, method="embed", status="200") == 2 * REQUESTS
        assert (after["inlay_workers []"], after["inlay_worker_restarts_total []"]) == (WORKERS, 1)
    written = service.log.read_text()
    assert SECRET not in written
    lines = [json.loads(line) for line in written.splitlines()]
    answered = [line for line in lines if line["logger"] == "inlay.access" and line["method"] == "POST /embed"]
    assert len(answered) == 4 * REQUESTS
    assert len({line["request_id"] for line in answered}) == len(answered)
    assert len(directory) == 1
    assert not directory.pop().exists()
