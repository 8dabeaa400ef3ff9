"""A lean gRPC generator: grpc.aio calls of one prebuilt message on one channel. Decodes no answer; checks its status.

Reads its order as JSON from standard input (loadtest.generators.Ask, calls, seconds) and prints a Load as JSON.
A Python client costs about what a Python server costs: it may be the ceiling of what it measures.
"""

import asyncio
import base64
import json
import sys
import time
from typing import Any

import grpc
import uvloop

from loadtest.workload import percentile


async def load(order: dict[str, Any]) -> dict[str, float]:
    """Carry out one order."""
    message = base64.b64decode(order["body"])
    micros: list[float] = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{order['port']}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(order["path"])
        await call(message)
        begun = time.perf_counter()
        deadline = begun + order["seconds"]

        async def caller() -> None:
            while (sent := time.perf_counter()) < deadline:
                await call(message)  # raises unless the status is OK
                micros.append((time.perf_counter() - sent) * 1e6)

        await asyncio.gather(*(caller() for _ in range(order["calls"])))
        seconds = time.perf_counter() - begun
    micros.sort()
    return {
        "requests": len(micros),
        "seconds": seconds,
        "p50_us": percentile(micros, 0.5),
        "p99_us": percentile(micros, 0.99),
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(load(json.load(sys.stdin)))))
