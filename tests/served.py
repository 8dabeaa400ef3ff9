"""The service on real sockets, for tests: REST and gRPC of one process, reached as any client reaches them."""

import asyncio
import gc
import queue
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import httpx
import ml_dtypes
import numpy as np
import uvicorn
from numpy.typing import NDArray

from proto import embed_pb2 as pb
from proto.embed_pb2_grpc import EmbedderStub
from service.app import Application, create_app
from service.context import ServiceContext
from service.http.server import HttpProtocol
from service.settings import Settings

DTYPES: dict[int, Any] = {pb.FLOAT32: np.float32, pb.FLOAT16: np.float16, pb.BFLOAT16: ml_dtypes.bfloat16}
START_SECONDS = 100
STOPPED = count(1)
STOPS_PER_COLLECTION = 2  # a collection takes 30 ms, a stopped service of the demo model holds 50 MB until one
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@dataclass(frozen=True)
class Served:
    """A running service, a client of each protocol, and the application behind it."""

    address: tuple[str, int]
    rpc_address: str
    http: httpx.Client
    stub: EmbedderStub
    app: Application

    def post(self, body: dict[str, Any], accept: str = "application/json") -> httpx.Response:
        return self.http.post("/embed", json=body, headers={"accept": accept})


@dataclass(frozen=True)
class Here:
    """A service in the test's own event loop: its addresses, context and HTTP server, for tests that hold them up."""

    address: tuple[str, int]
    rpc_address: str
    context: ServiceContext
    server: uvicorn.Server


class _Start:
    """A listening socket, an application and the gRPC port once it is known."""

    def __init__(self, store: Path, http: Any = HttpProtocol, http_port: int = 0, **settings: Any) -> None:
        self.rpc_port: queue.Queue[int] = queue.Queue()
        # one run at a time, so that a test that holds it up decides what is queued
        chosen = Settings(store=store, grpc_port=0, device="cpu", **{"threads": 1, **settings})
        self.app = create_app(chosen, ready=lambda _context, port: self.rpc_port.put(port))
        self.server = uvicorn.Server(
            uvicorn.Config(self.app, http=http, log_config=None, access_log=False, proxy_headers=False)
        )
        # listens now: no client comes too early
        self.listener = socket.create_server(("127.0.0.1", http_port), backlog=1024)

    @property
    def address(self) -> tuple[str, int]:
        address: tuple[str, int] = self.listener.getsockname()
        return address


def _free_stopped() -> None:
    """Collect the models of stopped services, which lie in circles of references."""
    if next(STOPPED) % STOPS_PER_COLLECTION == 0:
        gc.collect()


@contextmanager
def serving(store: Path, **settings: Any) -> Iterator[Served]:
    """The models of `store` served from a thread of this process.

    Args:
        settings: of the service; `http` is uvicorn's protocol class, if not Inlay's own; `http_port`: 0 is a free one.
    """
    start = _Start(store, **settings)
    thread = threading.Thread(target=start.server.run, kwargs={"sockets": [start.listener]}, name="served")
    thread.start()
    try:
        rpc_address = f"127.0.0.1:{start.rpc_port.get(timeout=START_SECONDS)}"
        url = "http://{}:{}".format(*start.address)
        with (
            httpx.Client(base_url=url, timeout=60, trust_env=False) as http,
            grpc.insecure_channel(rpc_address, UNLIMITED) as channel,
        ):
            yield Served(start.address, rpc_address, http, EmbedderStub(channel), start.app)
    finally:
        start.server.should_exit = True
        thread.join()
        _free_stopped()


@asynccontextmanager
async def serving_here(store: Path, **settings: Any) -> AsyncIterator[Here]:
    """The same in the running event loop, so that a test decides what arrives together."""
    start = _Start(store, **settings)
    running = asyncio.create_task(start.server.serve(sockets=[start.listener]))
    try:
        rpc_port = await asyncio.to_thread(start.rpc_port.get, timeout=START_SECONDS)
        yield Here(start.address, f"127.0.0.1:{rpc_port}", start.app.context, start.server)
    finally:
        start.server.should_exit = True
        await running
        _free_stopped()


def array_of(tensor: pb.Tensor) -> NDArray[Any]:
    """A gRPC tensor as an array of its dtype and shape."""
    return np.frombuffer(tensor.data, DTYPES[tensor.dtype]).reshape(tuple(tensor.shape))
