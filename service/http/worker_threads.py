"""Threads for coding, decoding, reading and writing bodies, separate from those that compute."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TypeVar, TypeVarTuple

from service.heavy.lane import run_beside
from service.machine import available_cpus

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")
INLINE_BYTES = 65536  # read, or numbers written, on the event loop: one to three milliseconds
HEAVY_BYTES = 1 << 18  # larger bodies are read by the heavy process: that takes 2 to 25 ms here, and 1 more there
_threads = ThreadPoolExecutor(available_cpus(), "bodies")


async def in_thread(function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Return the function's result, computed off the event loop for the same call; zlib and zstd release the GIL."""
    call: Callable[[], Result] = partial(copy_context().run, function, *arguments)
    return await asyncio.get_running_loop().run_in_executor(_threads, call)


async def inline_or_in_thread(size: int, convert: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Return the function's result, computed off the event loop unless few bytes or numbers are involved."""
    return convert(*arguments) if size <= INLINE_BYTES else await in_thread(convert, *arguments)


async def read_whole(body: bytes, read: Callable[[bytes, *Arguments], Result], *arguments: *Arguments) -> Result:
    """Return `read` of a body and the arguments; a large body is read by the heavy process.

    Args:
        read: a function of a module; what it returns is small, or arrays.
    """
    if len(body) > HEAVY_BYTES:
        return await run_beside(read, body, *arguments)
    return await inline_or_in_thread(len(body), read, body, *arguments)
