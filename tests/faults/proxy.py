"""A TCP proxy that misbehaves as networks do: late, slow, cut in the middle, or silent with the line still up."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PIECE_BYTES = 16384
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with RST, at once


@dataclass
class Weather:
    """What happens to the bytes; may be changed while they flow.

    delay_s        before each piece is passed on
    bytes_per_s    from the service to the client; None: as fast as it goes
    cut_after      bytes from the service after which both sides are reset; None: never
    silent_after   bytes from the service after which nothing passes any more, either way; None: never
    """

    delay_s: float = 0.0
    bytes_per_s: float | None = None
    cut_after: int | None = None
    silent_after: int | None = None


class Proxy:
    """Passes connections on to `target`."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.weather = Weather()
        self._target = target
        self.address: tuple[str, int] = ("", 0)
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.address = server.sockets[0].getsockname()
        ready.set()
        await stop.wait()
        server.close()
        left = list(self._writers)
        for writer in left:
            writer.transport.abort()
        for writer in left:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        weather = self.weather
        theirs, ours = await asyncio.open_connection(*self._target)
        both = (writer, ours)
        self._writers.update(both)
        passed = 0

        async def flow(source: asyncio.StreamReader, sink: asyncio.StreamWriter, answers: bool) -> None:
            nonlocal passed
            while piece := await source.read(PIECE_BYTES):
                await asyncio.sleep(weather.delay_s)
                if weather.silent_after is not None and passed >= weather.silent_after:
                    await asyncio.Event().wait()
                if answers and weather.cut_after is not None and passed + len(piece) > weather.cut_after:
                    sink.write(piece[: weather.cut_after - passed])
                    await sink.drain()
                    for each in both:
                        each.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                        each.transport.abort()
                    return
                sink.write(piece)
                await sink.drain()
                if answers:
                    passed += len(piece)
                    if weather.bytes_per_s:
                        await asyncio.sleep(len(piece) / weather.bytes_per_s)
            sink.close()

        with contextlib.suppress(ConnectionError):
            await asyncio.gather(flow(reader, ours, False), flow(theirs, writer, True))
        self._writers.difference_update(both)


@contextmanager
def proxied(target: tuple[str, int]) -> Iterator[Proxy]:
    """A proxy in a thread of its own."""
    proxy, ready = Proxy(target), threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def serve() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(proxy.serve(ready, stop))

    thread = threading.Thread(target=serve, name="proxy")
    thread.start()
    assert ready.wait(10)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
