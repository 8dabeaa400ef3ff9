"""Callers who leave, cancel or run out of time: their work is not done, nothing of them stays."""

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from proto import embed_pb2 as pb
from proto.embed_pb2_grpc import EmbedderStub
from tests.faults.conftest import Notes
from tests.faults.processes import MIB, Running, running, until

pytestmark = pytest.mark.faults
CALLERS = 1000
AT_A_TIME = 250
IDS = [[2, 5 + number // 16, 5 + number % 16, 3] for number in range(AT_A_TIME)]  # equal ones would share a run
BODIES = [json.dumps({"inputs": [ids]}).encode() for ids in IDS]
HEAD = b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%s\r\n"


async def hang_up(service: Running, count: int) -> None:
    """Callers that send a request and close, while the engine is busy with an earlier one."""
    connections = [await asyncio.open_connection(*service.address) for _ in range(count)]
    for (_, writer), body in zip(connections, BODIES, strict=True):
        writer.write(HEAD % (len(body), b"") + body)
        await writer.drain()
    await asyncio.to_thread(until, lambda: service.measured("inlay_queue_items") > count / 4, "they wait")
    for _, writer in connections:
        writer.transport.abort()


async def cancel(service: Running, count: int, timeout: float | None = None) -> None:
    """Callers over gRPC that cancel, or run out of time, while the engine is busy with an earlier one."""
    requests = [pb.EmbedRequest(inputs=[pb.Input(ids=pb.TokenIds(input_ids=ids))]) for ids in IDS[:count]]
    async with grpc.aio.insecure_channel(service.rpc_address) as channel:
        stub: Any = EmbedderStub(channel)
        calls = [stub.Embed(request, timeout=timeout) for request in requests]
        if timeout is None:
            await asyncio.to_thread(until, lambda: service.measured("inlay_queue_items") > count / 4, "they wait")
            for call in calls:
                call.cancel()
        for call in calls:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                await call
        assert all([call.done() for call in calls])


async def run_out(service: Running, count: int) -> None:
    """Callers over HTTP that say how long they wait."""
    connections = [await asyncio.open_connection(*service.address) for _ in range(count)]
    for (_, writer), body in zip(connections, BODIES, strict=True):
        writer.write(HEAD % (len(body), b"inlay-timeout-ms: 200\r\nconnection: close\r\n") + body)
    answers = [await asyncio.wait_for(reader.read(), 30) for reader, _ in connections]
    assert {answer.split(b" ")[1] for answer in answers} <= {b"200", b"504"}
    assert sum(answer.split(b" ")[1] == b"504" for answer in answers) > count / 2
    for _, writer in connections:
        writer.close()


LEAVES = {
    "who hang up": hang_up,
    "who cancel over gRPC": cancel,
    "whose gRPC deadline passes": lambda service, count: cancel(service, count, 0.2),
    "whose HTTP deadline passes": run_out,
}


@pytest.mark.parametrize("how", LEAVES)
def test_a_thousand_callers(store: Path, log: Path, notes: Notes, how: str) -> None:
    """1000 leave while the engine is busy: most of their work is never run, as /metrics counts it; queue, requests in
    flight and open files are back; memory is within 12 MiB of that after the first 250; later calls are served."""
    flags = ("--max-queue-seconds", "60", "--client-seconds", "5", "--threads", "1")
    with running(store, log, *flags, meddling={"slow": "0.5"}) as service:
        service.embed().raise_for_status()
        files, private = service.open_files(), []
        before = service.measured("inlay_batch_items_sum", graph="encoder")
        for _ in range(CALLERS // AT_A_TIME):
            asyncio.run(one_wave(service, LEAVES[how]))
            until(service.idle, "nothing waits")
            private.append(service.private_bytes())
        ran = service.measured("inlay_batch_items_sum", graph="encoder") - before
        assert ran < CALLERS / 4
        until(lambda: service.open_files() <= files + 4, "connections are closed")
        assert private[-1] <= private[0] + 12 * MIB
        assert service.embed().status_code == 200
        notes(f"{ran:.0f} of {CALLERS} were run; memory {(private[-1] - private[0]) / MIB:+.1f} MiB")


async def one_wave(service: Running, leave: Any) -> None:
    busy = asyncio.create_task(asyncio.to_thread(service.embed))
    began = time.monotonic()
    while not await asyncio.to_thread(service.measured, "inlay_requests_in_flight"):
        assert time.monotonic() - began < 30
    await leave(service, AT_A_TIME)
    assert (await busy).status_code == 200
