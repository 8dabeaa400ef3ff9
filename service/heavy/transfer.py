"""Sends Python objects between processes; arrays (and `pickle.PickleBuffer`s) travel beside the pickle."""

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
        channel.send_bytes(part)
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
    for buffer in (pickled, *buffers):
        channel.recv_bytes_into(buffer)
    return Message(pickled, buffers)
