"""Runs that fail, do not end or give no numbers hurt their own callers alone; the probes tell the truth about them."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import grpc
import pytest

from proto import embed_pb2 as pb
from proto.embed_pb2_grpc import EmbedderStub
from tests.faults.conftest import Notes
from tests.faults.graphs import BAD_ID, adopted
from tests.faults.processes import Running, running, until
from tests.faults.traffic import TEXTS, traffic

pytestmark = pytest.mark.faults
BAD = 9  # a token id of the tiny model that no text of the traffic has


def answered_rpc(service: Running, ids: list[int]) -> grpc.StatusCode:
    with grpc.insecure_channel(service.rpc_address) as channel:
        request = pb.EmbedRequest(inputs=[pb.Input(ids=pb.TokenIds(input_ids=ids))])
        try:
            EmbedderStub(channel).Embed(request, timeout=30)
        except grpc.RpcError as error:
            return error.code()  # type: ignore[attr-defined, no-any-return]
    return grpc.StatusCode.OK


@pytest.mark.parametrize("fault", ["raise", "nan"])
def test_a_row_that_the_engine_fails_on(store: Path, log: Path, notes: Notes, fault: str) -> None:
    """The engine raises, or gives NaN, for one token id among the traffic's: callers of that id get 424 / INTERNAL,
    every other is right, before, during and after."""
    with running(store, log, meddling={fault: str(BAD)}) as service:
        assert service.embed([[2, 5, 3]]).status_code == 200
        with traffic(service, texts=(0,)) as seen:
            until(lambda: len(seen.answered) > 20, "traffic")
            codes = {service.embed([[2, BAD, 3]]).status_code for _ in range(20)}
            rpc = {answered_rpc(service, [2, BAD, 3]) for _ in range(10)}
            many = len(seen.answered) + 20
            until(lambda: len(seen.answered) > many, "traffic")
        assert (codes, rpc) == ({424}, {grpc.StatusCode.INTERNAL})
        assert not seen.wrong
        assert not seen.broken
        assert service.get("/health/ready").status_code == 200
        assert service.idle()
        notes(f"30 of 30 refused as their own; {len(seen.answered)} others right")


def test_a_foreign_graph_that_divides_by_nought(tmp_path: Path, log: Path) -> None:
    """An adopted ONNX model gives NaN for one id: 424 for requests of it, alone, behind and before good inputs."""
    with running(adopted(tmp_path), log) as service:
        assert service.embed([[5, 6]]).status_code == 200
        with ThreadPoolExecutor(8) as callers:
            good = [callers.submit(service.embed, [[5, 6, 7 + index % 90]]) for index in range(40)]
            bad = [callers.submit(service.embed, [[5], [BAD_ID, 6]]) for _ in range(10)]
        assert {each.result().status_code for each in good} == {200}
        assert {(each.result().status_code, each.result().json()["index"]) for each in bad} == {(424, 1)}


def test_a_run_that_does_not_end(store: Path, log: Path, notes: Notes) -> None:
    """The watchdog gives it up after stuck_seconds: its callers get 424, others go on; after the third the process says
    over /health/live that it should be started anew; SIGTERM then ends it within shutdown_seconds and a little."""
    flags = ("--stuck-seconds", "1", "--shutdown-seconds", "1")
    meddling = {"hang": str(BAD), "slow": "0.01"}  # a faster text that is alone would hang the event loop
    with running(store, log, *flags, meddling=meddling) as service:
        service.embed().raise_for_status()
        took = []
        for number in (1, 2, 3):
            began = time.monotonic()
            stuck = service.embed([[2, BAD, 3]])
            took.append(time.monotonic() - began)
            assert (stuck.status_code, "given up" in stuck.text) == (424, True)
            for _ in range(5):
                assert service.embed().status_code == 200
            assert service.get("/health/live").status_code == (200 if number < 3 else 503)
        assert service.measured("inlay_stuck_runs_total") == 3
        assert service.idle()
        started = time.monotonic()
        service.process.terminate()
        assert service.ended(15) == 0
        notes(f"given up after {max(took):.1f} s at most; ended {time.monotonic() - started:.1f} s after SIGTERM")


def test_a_graph_that_breaks_while_it_serves(store: Path, log: Path, tmp_path: Path, notes: Notes) -> None:
    """Readiness runs a real forward pass: 503 within seconds of the break, over gRPC's protocol too, 200 once mended;
    liveness stays 200 throughout, within 0.5 s each time."""
    broken = tmp_path / "broken"
    with running(store, log, meddling={"broken": str(broken)}) as service:
        assert service.get("/health/ready").status_code == 200
        broken.touch()
        began = time.monotonic()
        until(lambda: service.get("/health/ready").status_code == 503, "not ready")
        seen = time.monotonic() - began
        assert "bert" in service.get("/health/ready").text
        assert service.get("/v2/health/ready").status_code >= 400
        for _ in range(20):
            began = time.monotonic()
            assert service.get("/health/live").status_code == 200
            assert time.monotonic() - began < 0.5
        broken.unlink()
        until(lambda: service.get("/health/ready").status_code == 200, "ready again")
        assert service.embed().status_code == 200
        notes(f"503 after {seen:.1f} s")


def test_more_work_than_can_be_done(store: Path, log: Path, notes: Notes) -> None:
    """Bulk callers at many times capacity: each request gets all its rows, or 504 after its time, or 429 with
    Retry-After and RESOURCE_EXHAUSTED with grpc-retry-pushback-ms; small callers are answered meanwhile; the probes
    stay 200, liveness within 0.5 s; then nothing is left waiting."""
    flags = ("--max-queue-seconds", "0.3", "--max-batch-tokens", "64")
    with running(store, log, *flags, meddling={"slow": "0.02"}) as service:
        random = Random(1)

        def inputs() -> list[list[int]]:
            return [[random.randint(5, 8) for _ in range(20)] for _ in range(12)]  # equal ones would be computed once

        service.embed(inputs()).raise_for_status()
        statuses: list[tuple[str, str | None, int]] = []
        stop = threading.Event()

        def bulk() -> None:
            while not stop.is_set():
                answer = service.embed(inputs())
                rows = len(answer.json()) if answer.status_code == 200 else 0
                statuses.append((str(answer.status_code), answer.headers.get("retry-after"), rows))

        def bulk_rpc() -> None:
            with grpc.insecure_channel(service.rpc_address, [("grpc.enable_retries", 0)]) as channel:
                while not stop.is_set():
                    request = pb.EmbedRequest(inputs=[pb.Input(ids=pb.TokenIds(input_ids=ids)) for ids in inputs()])
                    try:
                        answer = EmbedderStub(channel).Embed(request, timeout=30)
                        statuses.append(("OK", None, answer.outputs[0].tensor.shape[0]))
                    except grpc.RpcError as error:
                        trailers = dict(error.trailing_metadata())  # type: ignore[attr-defined]
                        wait = trailers.get("grpc-retry-pushback-ms")
                        statuses.append((error.code().name, wait, 0))  # type: ignore[attr-defined]

        with ThreadPoolExecutor(20) as callers:
            futures = [callers.submit(bulk if number % 2 else bulk_rpc) for number in range(16)]
            try:
                until(lambda: {"429", "RESOURCE_EXHAUSTED"} <= {status for status, _, _ in statuses}, "overload")
                small, live = [], []
                for _ in range(15):
                    began = time.monotonic()
                    assert service.embed(TEXTS[0]).status_code == 200
                    small.append(time.monotonic() - began)
                    began = time.monotonic()
                    assert service.get("/health/live").status_code == 200
                    live.append(time.monotonic() - began)
                    assert service.get("/health/ready").status_code == 200
            finally:
                stop.set()
        for future in futures:
            future.result()
        assert {status for status, _, _ in statuses} <= {"200", "OK", "429", "RESOURCE_EXHAUSTED", "504"}
        assert all(rows == 12 for status, _, rows in statuses if status in ("200", "OK"))
        assert all(wait and int(wait) >= 1 for status, wait, _ in statuses if status not in ("200", "OK", "504"))
        assert max(live) < 0.5
        until(service.idle, "nothing waits")
        refused = sum(status not in ("200", "OK") for status, _, _ in statuses)
        notes(f"{len(statuses) - refused} whole answers, {refused} refusals, each with a time to wait; a small caller "
              f"waited {max(small) * 1000:.0f} ms at most, liveness {max(live) * 1000:.0f} ms")  # fmt: skip
