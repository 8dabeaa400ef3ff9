"""A drain delay of a real service: probes fail at once, new connections and calls are served until it ends."""

import os
import signal
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from proto import embed_pb2 as pb
from proto.embed_pb2_grpc import EmbedderStub
from tests.service.cli.test_startup import SECONDS, running
from tests.service.process.test_moving_workers import metrics, post, until, workers

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
CALL = pb.EmbedRequest(inputs=[pb.Input(text="hello")])


def status(url: str, path: str) -> int:
    return httpx.get(url + path, timeout=SECONDS, trust_env=False).status_code


def health(address: str) -> int:
    """The state that a new gRPC connection, which any worker may take, is told."""
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        return int(reply.status)


@pytest.mark.parametrize("count", ["1", "2"])
def test_serves_while_probes_fail_until_a_second_signal(tiny_store: Path, count: str) -> None:
    with running(tiny_store, "--workers", count, "--drain-delay", "3600") as (process, url, address):
        until(lambda: f"inlay_workers_ready {count}" in metrics(url))
        process.send_signal(signal.SIGTERM)
        until(lambda: "inlay_workers_ready 0" in metrics(url))
        for _ in range(8):  # on a connection each, so that every worker gets some
            assert (status(url, "/health/ready"), status(url, "/health/live")) == (503, 200)
            assert health(address) == NOT_SERVING
            answer = post(url, "/embed", {"inputs": "hello"})
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")
            with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
                assert EmbedderStub(channel).Embed(CALL, timeout=SECONDS).outputs
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0


def test_stops_when_the_delay_has_passed(tiny_store: Path) -> None:
    with running(tiny_store, "--drain-delay", "0.3") as (process, _, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0


def test_a_drain_ends_with_the_last_worker(tiny_store: Path) -> None:
    with running(tiny_store, "--workers", "2", "--drain-delay", "3600") as (process, url, _):
        until(lambda: "inlay_workers_ready 2" in metrics(url))
        served = workers(process.pid)
        process.send_signal(signal.SIGTERM)
        until(lambda: "inlay_workers_ready 0" in metrics(url))
        for pid in served:
            os.kill(pid, signal.SIGTERM)
        assert process.wait(SECONDS) == 0
