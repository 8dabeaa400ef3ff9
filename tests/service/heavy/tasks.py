"""Functions that the tests have run in the heavy process."""

import os
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.errors import OutOfRange


def process_number() -> int:
    """Return the number of the process that runs this."""
    return os.getpid()


def echoed(value: object) -> object:
    """Return the argument."""
    return value


def doubled(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return twice the rows."""
    return rows * 2


def refused(value: int) -> None:
    """Raise an error that a caller gets."""
    raise OutOfRange(f"is {value}", field=("inputs", 3), allowed="it is below 5", remedy="send less")


def without_end() -> None:
    """Raise what the process itself meets when its parent ends."""
    raise EOFError("a file's end")


def faulty() -> None:
    """Raise an error of the code."""
    raise ZeroDivisionError("a fault")


def unsendable() -> object:
    """Return something that cannot be pickled."""
    return lambda: None


def greedy(body: bytes, size: int) -> int:
    """Allocate and touch memory in Python."""
    return len([bytearray(2**20) for _ in range(size // 2**20)]) + len(body)


def greedy_result(size: int) -> NDArray[np.uint8]:
    """Return an array larger than what may be sent."""
    return np.broadcast_to(np.uint8(1), size).reshape(-1, 2**20).repeat(2, axis=0)


def endless(body: bytes) -> None:
    """Never return, and never give the interpreter's lock away for long."""
    while True:
        pass


def die(number: int) -> None:
    """End this process by a signal."""
    os.kill(os.getpid(), number)
    time.sleep(60)


def wait_for(path: Path, name: str, log: Path) -> None:
    """Wait until a file is there, then write a line to the log."""
    while not path.exists():
        time.sleep(0.005)
    with log.open("a") as file:
        file.write(f"{name}\n")


_KEPT: list[bytearray] = []


def kept(size: int) -> None:
    """Allocate memory and keep it."""
    _KEPT.append(bytearray(size))
