"""gRPC calls that Ray Serve's proxy received, served by Inlay's own pipeline of calls.

A message passes Serve as bytes with the path of its method, so Inlay parses it, within its own limits, and methods of
two services may have one name. Serve calls the deployment's method of that name.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import grpc

from proto import embed_pb2, open_inference_pb2, tei_pb2
from service.grpc.server import Pipeline

SERVICES = [
    service
    for contract in (embed_pb2, open_inference_pb2, tei_pb2)
    for service in contract.DESCRIPTOR.services_by_name.values()
]
METHODS = {method.name: method for service in SERVICES for method in service.methods}
"""One of the methods of each name; those of one name are streams alike (`tests/deploy/ray/test_rpc.py`)."""
HANDLERS: dict[tuple[bool, bool], Callable[..., Any]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
"""What declares a method, by whether requests and answers are streams."""


class Message(NamedTuple):
    """A request's bytes, and the path of its method."""

    path: str
    data: bytes


class Answer(NamedTuple):
    """An answer's bytes, which Serve takes as a protobuf message."""

    data: bytes

    def SerializeToString(self) -> bytes:  # the name that protobuf gives it
        """Return the bytes."""
        return self.data


class Aborted(Exception):
    """The call has ended with an error, which Serve's context holds."""


def add_services(servicer: Any, server: Any) -> None:
    """Declare every method to Serve's gRPC proxy, as generated functions do (`grpc_servicer_functions`)."""
    for service in SERVICES:
        handlers = {
            method.name: HANDLERS[method.client_streaming, method.server_streaming](
                getattr(servicer, method.name), partial(Message, f"/{service.full_name}/{method.name}")
            )
            for method in service.methods
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))


class CallContext:
    """What a Call of Inlay needs of grpc's context, on Serve's.

    Args:
        serve: Serve's context of the call; it has no deadline, since the proxy cancels calls whose time is over.
        message: the bytes of a request that is no stream.

    Attributes:
        answers: of a stream, each written once the one before is taken; None ends them.
    """

    def __init__(self, serve: Any, message: bytes | None = None) -> None:
        self._serve, self._message = serve, message
        self._room = asyncio.Semaphore(1)
        self.answers: asyncio.Queue[bytes | None] = asyncio.Queue()

    def peer(self) -> str:
        """Return the caller's address, as grpc writes it."""
        return str(self._serve.peer())

    def time_remaining(self) -> None:
        """Return no deadline."""

    async def read(self) -> bytes | None:
        """Return the bytes of the request."""
        return self._message

    async def write(self, data: bytes) -> None:
        """Send an answer of a stream."""
        await self._room.acquire()
        self.answers.put_nowait(data)

    async def sent(self) -> AsyncIterator[bytes]:
        """Yield the answers."""
        while (answer := await self.answers.get()) is not None:
            yield answer
            self._room.release()

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Leave initial metadata out: Serve does not send any."""

    def set_trailing_metadata(self, metadata: Any) -> None:
        """Set the metadata of the call's end."""
        self._serve.set_trailing_metadata(list(metadata))

    async def abort(self, code: grpc.StatusCode, details: str, metadata: Any = ()) -> NoReturn:
        """End the call with an error."""
        self._serve.set_code(code)
        self._serve.set_details(details)
        self.set_trailing_metadata(metadata)
        raise Aborted(details)


async def unary(pipeline: Pipeline, name: str, requests: Message | AsyncIterator[Message], serve: Any) -> Answer:
    """Serve a call that has one answer; its error goes with Serve's context, which keeps the error's metadata."""
    path, request, context = await _opened(name, requests, serve)
    try:
        return Answer(await asyncio.create_task(_serve(pipeline, path, request, serve, context)))
    except Aborted:
        return Answer(b"")


async def streaming(
    pipeline: Pipeline, name: str, requests: Message | AsyncIterator[Message], serve: Any
) -> AsyncIterator[Answer]:
    """Serve a call whose answers are a stream."""
    path, request, context = await _opened(name, requests, serve)
    task = asyncio.create_task(_serve(pipeline, path, request, serve, context))
    task.add_done_callback(lambda _: context.answers.put_nowait(None))
    try:
        async for answer in context.sent():
            yield Answer(answer)
        await task
    finally:
        task.cancel()


async def _opened(name: str, requests: Message | AsyncIterator[Message], serve: Any) -> tuple[str, Any, CallContext]:
    """Return the path of a call, its request or stream of requests as bytes, and its context."""
    if isinstance(requests, Message):
        return requests.path, requests.data, CallContext(serve, requests.data)
    first = await anext(requests, None)
    # without requests a stream has no answers, whichever service it is of
    path = first.path if first else f"/{METHODS[name].containing_service.full_name}/{name}"
    return path, _data(first, requests), CallContext(serve)


async def _data(first: Message | None, rest: AsyncIterator[Message]) -> AsyncIterator[bytes]:
    if first is not None:
        yield first.data
    async for message in rest:
        yield message.data


async def _serve(pipeline: Pipeline, path: str, request: Any, serve: Any, context: CallContext) -> Any:
    """Serve a call, in the task that it ends with."""
    details = SimpleNamespace(method=path, invocation_metadata=serve.invocation_metadata())
    call = pipeline.service(details)
    requests = "stream" if call.request_streaming else "unary"
    answers = "stream" if call.response_streaming else "unary"
    return await getattr(call, f"{requests}_{answers}")(request, context)
