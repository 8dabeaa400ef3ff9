"""Sends Python objects between processes: pickled into shared memory, whose descriptor goes through a socket.

The receiver maps the memory, so that arrays (and `pickle.PickleBuffer`s) are not copied.
"""

import mmap
import os
import pickle
import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

HEADER = struct.Struct("<QQ")  # the offsets behind the pickle, and behind the buffers
ALIGNMENT = 64  # of buffers, as numpy's own


def send(channel: socket.socket, message: object) -> int:
    """Send an object that can be pickled, and return its bytes; nothing is sent if it cannot.

    Raises:
        OSError: the other process has ended, or the message is larger than this process may write.
    """
    buffers: list[pickle.PickleBuffer] = []
    with _shared_file() as file:
        pickle.Pickler(file, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append).dump(message)
        pickle_end = file.tell()
        spans: list[int] = []
        for buffer in buffers:
            data = buffer.raw()
            file.seek(-file.tell() % ALIGNMENT, os.SEEK_CUR)
            spans += file.tell(), len(data)
            file.write(data)
        buffers_end = file.tell()
        file.write(struct.pack(f"<{len(spans)}Q", *spans))
        file.flush()
        socket.send_fds(channel, [HEADER.pack(pickle_end, buffers_end)], [file.fileno()])
        return buffers_end


class Message(NamedTuple):
    """An object that came, in shared memory."""

    memory: memoryview
    pickle_end: int
    buffers_end: int

    def load(self) -> Any:
        """Return the object; its arrays lie in the shared memory."""
        spans = struct.iter_unpack("<QQ", self.memory[self.buffers_end :])
        buffers = [self.memory[start : start + size] for start, size in spans]
        return pickle.loads(self.memory[: self.pickle_end], buffers=buffers)


def receive(channel: socket.socket) -> Message:
    """Return the next message.

    Raises:
        EOFError: the other process has ended.
        TimeoutError: nothing came within the socket's timeout.
    """
    header, descriptors, _, _ = socket.recv_fds(channel, HEADER.size, 1)
    if not header:
        raise EOFError
    try:
        return Message(memoryview(mmap.mmap(descriptors[0], 0, access=mmap.ACCESS_COPY)), *HEADER.unpack(header))
    finally:
        os.close(descriptors[0])


@contextmanager
def _shared_file() -> Iterator[BinaryIO]:
    """Yield a file in memory; where the system has none, a temporary one without a name."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("inlay-heavy"), "w+b") as file:
            yield file
    else:
        with tempfile.TemporaryFile() as file:
            yield file
