"""A TCP proxy that misbehaves as networks do: late, slow, cut in the middle, or silent with the line still up."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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
    """Passes connections on to `target`, each with two threads."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.weather = Weather()
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address: tuple[str, int] = self._listener.getsockname()
        self._stopped = threading.Event()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def close(self) -> None:
        """Hang up on everybody."""
        self._stopped.set()
        for line in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(10)
        for line in (self._listener, *self._open):
            line.close()

    def _begin(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, name="proxy")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                theirs, _ = self._listener.accept()
                ours = socket.create_connection(self._target)
            except OSError:
                return
            self._open += [theirs, ours]
            passed = [0]
            self._begin(self._pass, theirs, ours, self.weather, None)
            self._begin(self._pass, ours, theirs, self.weather, passed)

    def _pass(self, source: socket.socket, sink: socket.socket, weather: Weather, passed: list[int] | None) -> None:
        """Pass on what comes until it ends; `passed` counts it where it comes from the service."""
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                self._stopped.wait(weather.delay_s)
                if passed is not None:
                    passed[0] += len(piece)
                    if weather.silent_after is not None and passed[0] > weather.silent_after:
                        self._stopped.wait()
                        return
                    if weather.cut_after is not None and passed[0] > weather.cut_after:
                        self._reset(source, sink)
                        return
                sink.sendall(piece)
                if passed is not None and weather.bytes_per_s:
                    self._stopped.wait(len(piece) / weather.bytes_per_s)
            sink.shutdown(socket.SHUT_WR)

    def _reset(self, *lines: socket.socket) -> None:
        for line in lines:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._open.remove(line)
            line.shutdown(socket.SHUT_RD)  # wakes the other thread
            line.close()


@contextmanager
def proxied(target: tuple[str, int]) -> Iterator[Proxy]:
    """A proxy that hangs up when the block ends."""
    proxy = Proxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
