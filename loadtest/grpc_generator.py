"""A small gRPC load generator in Python: grpc.aio calls of one prepared message on one channel.

Reads the fields of loadtest.generators.LoadRequest, `calls` and `seconds` as JSON from standard input and prints a
LoadResult as JSON. It checks status and size of each answer and decodes none. A Python client costs about what a Python
server costs, so it may be the limit of what it measures.
"""

import asyncio
import base64
import json
import sys
import time
from dataclasses import asdict
from typing import Any

import grpc
import uvloop

from loadtest.generators import LoadResult


async def load(order: dict[str, Any]) -> LoadResult:
    """Send the calls of one order and return what was measured."""
    message = base64.b64decode(order["body"])
    micros: list[float] = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{order['port']}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(order["path"])
        await call(message)
        begun = time.perf_counter()
        deadline = begun + order["seconds"]

        async def caller() -> None:
            while (sent := time.perf_counter()) < deadline:
                response = await call(message)  # raises unless the status is OK
                if len(response) < order["response_bytes"]:
                    raise ValueError(f"answered with {len(response)} bytes, not {order['response_bytes']}")
                micros.append((time.perf_counter() - sent) * 1e6)

        await asyncio.gather(*(caller() for _ in range(order["calls"])))
        return LoadResult.of(micros, time.perf_counter() - begun)


if __name__ == "__main__":
    print(json.dumps(asdict(uvloop.run(load(json.load(sys.stdin))))))
