"""A small HTTP/1.1 load generator in Python: an asyncio protocol that sends prepared requests again and again.

Reads the fields of loadtest.generators.LoadRequest, `calls` and `seconds` as JSON from standard input and prints a
LoadResult as JSON. It checks status and size of each answer. It is slower than wrk and may be the limit of what it
measures.
"""

import asyncio
import base64
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import cycle
from typing import Any, cast

import uvloop

from loadtest.generators import LoadResult


class Connection(asyncio.Protocol):
    """One connection with one request in flight at a time, until its deadline; `done` holds how it ended."""

    def __init__(self, requests: Iterator[bytes], response_bytes: int, deadline: float, micros: list[float]) -> None:
        self.requests, self.response_bytes = requests, response_bytes
        self.deadline, self.micros = deadline, micros
        self.missing = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class does not derive from it
        self._send()

    def _send(self) -> None:
        self.sent = time.perf_counter()
        self.transport.write(next(self.requests))

    def data_received(self, data: bytes) -> None:
        """Count bytes down to the end of the response, then send again."""
        try:
            self.missing = (self.missing or _length(data, self.response_bytes)) - len(data)
        except ValueError as error:
            self._end(error)
            return
        if self.missing:
            return
        now = time.perf_counter()
        self.micros.append((now - self.sent) * 1e6)
        if now < self.deadline:
            self._send()
        else:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Record a failure: the server closed the connection."""
        self._end(exc or ConnectionError("closed by the server"))

    def _end(self, failure: Exception | None) -> None:
        self.transport.close()
        if self.done.done():
            return
        if failure:
            self.done.set_exception(failure)
        else:
            self.done.set_result(None)


def _length(data: bytes, response_bytes: int) -> int:
    """Return the bytes of the whole response that begins with `data`; its head must arrive in one piece."""
    head = data[: data.index(b"\r\n\r\n") + 4].lower()
    if not head.startswith(b"http/1.1 200"):
        raise ValueError(f"not answered with 200: {data[:200]!r}")
    begin = head.index(b"content-length:") + 15
    size = int(head[begin : head.index(b"\r", begin)])
    if size < response_bytes:
        raise ValueError(f"answered with {size} bytes, not {response_bytes}")
    return len(head) + size


def _request(order: dict[str, Any], body: bytes) -> bytes:
    headers = {"host": "127.0.0.1", **order["headers"], "content-length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {order['path']} HTTP/1.1\r\n{lines}\r\n".encode() + body


async def load(order: dict[str, Any]) -> LoadResult:
    """Send the requests of one order and return what was measured."""
    requests = cycle([_request(order, base64.b64decode(body)) for body in (order["body"], *order["others"])])
    micros: list[float] = []
    loop = asyncio.get_running_loop()
    begun = time.perf_counter()
    deadline = begun + order["seconds"]

    def connection() -> Connection:
        return Connection(requests, order["response_bytes"], deadline, micros)

    connections = [
        (await loop.create_connection(connection, "127.0.0.1", order["port"]))[1] for _ in range(order["calls"])
    ]
    await asyncio.gather(*(open_connection.done for open_connection in connections))
    return LoadResult.of(micros, time.perf_counter() - begun)


if __name__ == "__main__":
    print(json.dumps(asdict(uvloop.run(load(json.load(sys.stdin))))))
