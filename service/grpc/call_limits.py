"""How many calls are taken at a time, found out before a message of theirs is read. Knows no service.

A message, of max_body_bytes at most, is received whole before its handler runs and can ask the door. The bound that
grpc.aio has, maximum_concurrent_rpcs, would do worse: it counts health checks, reflection and idle streams with all
others, so that a full server is taken for a dead one, and refuses without a code, a time to come again or a count.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any

import grpc

from service.errors import Overloaded
from service.grpc.methods import Context, Service, answering
from service.observability.metrics import Metrics

PER_REQUEST = 2  # calls for each request the door lets in: others are on their way in or out


class Room:
    """Calls of one sort that are under way.

    seconds   how long one may be silent, its first message still to come, while others find no room
    """

    def __init__(self, most: int, seconds: float) -> None:
        self.most, self.inside = most, 0
        self._seconds = seconds
        self._silent: dict[asyncio.Task[Any], float] = {}  # since when, the longest first

    def enter(self, call: asyncio.Task[Any]) -> bool:
        """Whether there is room for a call, if need be in the place of one that was silent for too long."""
        now = perf_counter()
        if self.inside >= self.most and not self._cut_off(now):
            return False
        self.inside += 1
        self._silent[call] = now
        call.add_done_callback(self._leave)
        return True

    def heard(self) -> None:
        """A message of the running task's call has come."""
        self._silent.pop(asyncio.current_task(), None)  # type: ignore[arg-type]

    def _cut_off(self, now: float) -> bool:
        longest = next(iter(self._silent), None)
        if longest is None or now - self._silent[longest] < self._seconds:
            return False
        del self._silent[longest]
        longest.cancel()
        return True

    def _leave(self, call: asyncio.Task[Any]) -> None:
        self.inside -= 1
        self._silent.pop(call, None)


class Calls(grpc.GenericRpcHandler):
    """The methods of every service, by path. Requests, streams and probes have a room each: none takes another's.

    max_requests   what the door lets in
    seconds        how long a call may be silent where there is no room for others
    followed       a handler of a path, numbered and seen
    """

    def __init__(
        self, max_requests: int, seconds: float, metrics: Metrics, followed: Callable[[str, Any], Any]
    ) -> None:
        self._requests, self._streams, self._probes = [Room(max_requests * PER_REQUEST, seconds) for _ in range(3)]
        self._metrics, self._followed = metrics, followed
        self._methods: dict[str, tuple[Any, Any, Room]] = {}

    def add(self, service: Service) -> None:
        """Serve its methods."""
        for name, handler in service.handlers.items():
            path, room = f"{service.name}/{name}", self._room(service, name, handler)
            refusing = self._refusing(service, name, room.most)
            followed = self._followed(path, _heard(handler, room))
            self._methods["/" + path] = followed, self._followed(path, refusing), room

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a call, or one that refuses it; None: no method of these services."""
        found = self._methods.get(handler_call_details.method)
        if found is None:
            return None
        handler, refusing, room = found
        task = asyncio.current_task()
        assert task is not None  # the call's own: its end is the call's
        return handler if room.enter(task) else refusing

    def _room(self, service: Service, name: str, handler: Any) -> Room:
        if name in service.probes:
            return self._probes
        return self._streams if handler.request_streaming else self._requests

    def _refusing(self, service: Service, name: str, most: int) -> Any:
        """A handler that reads nothing; to the caller it is of any kind."""
        refused = answering(self._metrics, service.counted + name, _nothing, service.status_of)

        async def refuse(requests: Any, context: Context) -> None:
            full = f"{most} calls are under way, which is all this server takes: try again in a moment"
            await refused(Overloaded(full), context)

        return grpc.stream_stream_rpc_method_handler(refuse)


def _heard(handler: Any, room: Room) -> Any:
    """The same handler; its room hears of each message."""
    read = handler.request_deserializer

    def heard(data: bytes) -> Any:
        room.heard()
        return read(data)

    return handler._replace(request_deserializer=heard)


async def _nothing(request: Any) -> None:
    """What is done for a call that is refused."""
