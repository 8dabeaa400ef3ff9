"""Sends Python objects between processes; arrays (and `pickle.PickleBuffer`s) travel beside the pickle, uncopied."""

import os
import pickle
from multiprocessing.connection import Connection
from typing import Any, NamedTuple


def send(channel: "Connection[Any, Any]", message: object) -> int:
    """Send an object that can be pickled, and return its bytes; nothing is sent if it cannot.

    Raises:
        OSError: the other process has ended.
    """
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(message, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
    parts = [memoryview(pickled), *[buffer.raw() for buffer in buffers]]
    channel.send([part.nbytes for part in parts])
    for part in parts:
        left = part
        while left.nbytes:
            left = left[os.write(channel.fileno(), left) :]
    return sum([part.nbytes for part in parts])


class Message(NamedTuple):
    """An object that came: its pickle, and its arrays."""

    pickled: bytearray
    buffers: list[bytearray]

    def load(self) -> Any:
        """Return the object."""
        return pickle.loads(self.pickled, buffers=self.buffers)


def receive(channel: "Connection[Any, Any]") -> Message:
    """Return the next message.

    Raises:
        EOFError, OSError: the other process has ended.
    """
    pickled, *buffers = [bytearray(size) for size in channel.recv()]
    for buffer in (pickled, *buffers):  # recv_bytes would hold an array of half a gigabyte twice
        left = memoryview(buffer)
        while left.nbytes:
            count = os.readv(channel.fileno(), [left])
            if not count:
                raise EOFError
            left = left[count:]
    return Message(pickled, buffers)
