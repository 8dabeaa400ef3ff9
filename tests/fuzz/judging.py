"""What every decoder promises: any bytes give a value or one of its own errors, quickly, in memory like the input's.

An error is an InlayError or a ModelError (or what a target names) whose message can be sent; all else is a fault.
"""

import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from models.errors import ModelError
from service.errors import InlayError

REFUSALS: tuple[type[Exception], ...] = (InlayError, ModelError)
SECONDS = 2.0  # of the processor, for an input of some kilobytes
SPARE_BYTES, BYTES_A_BYTE = 4 << 20, 512
"""Memory a decoder may take: the smallest element of any format is a byte or two, and a Python object up to 200."""
SPARE_CHARACTERS, CHARACTERS_A_BYTE = 4000, 10


class Target(NamedTuple):
    """A decoder to be fuzzed.

    run      reads one input
    seeds    inputs it takes, for mutations to start from; made when called
    refuses  further exceptions that are refusals of this layer
    words    what a mutation may put in: names and numbers the format gives meaning to
    """

    run: Callable[[bytes], Any]
    seeds: Callable[[], Sequence[bytes]]
    refuses: tuple[type[Exception], ...] = ()
    words: tuple[bytes, ...] = ()


class Fault(AssertionError):
    """A decoder broke its promise; the message says which."""


def judge(target: Target, data: bytes, *, measured: bool = False) -> bool:
    """Return whether the target accepted the input; False: it rejected it with one of its own errors.

    Args:
        measured: also measure the memory it took, which is slow.

    Raises:
        Fault: the target broke its promise.
        Exception: an exception that the target did not handle.
    """
    begun = time.process_time()
    taken = _taken(target, data)
    seconds = time.process_time() - begun
    if seconds > SECONDS:
        raise Fault(f"{len(data)} bytes took {seconds:.1f} s")
    if measured and (peak := _peak(target, data)) > SPARE_BYTES + BYTES_A_BYTE * len(data):
        raise Fault(f"{len(data)} bytes took {peak} bytes of memory")
    return taken


def _peak(target: Target, data: bytes) -> int:
    """The memory an input takes, the second time: the first imports modules and fills caches."""
    tracemalloc.start()
    try:
        _taken(target, data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _taken(target: Target, data: bytes) -> bool:
    try:
        target.run(data)
    except target.refuses:
        return False
    except REFUSALS as error:
        message = str(error)
        message.encode()  # half a surrogate pair could be sent by no protocol
        if getattr(error, "code", "") == InlayError.code:
            raise Fault(f"it is called a fault of the service: {message}") from error
        if not message or len(message) > SPARE_CHARACTERS + CHARACTERS_A_BYTE * len(data):
            raise Fault(f"the refusal has {len(message)} characters for {len(data)} bytes") from error
        return False
    return True
