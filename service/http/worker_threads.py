"""Threads for coding, decoding, reading and writing bodies, separate from those that compute."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

from service.machine import available_cpus

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")
INLINE_BYTES = 65536  # read, or numbers written, on the event loop: one to three milliseconds
_threads = ThreadPoolExecutor(available_cpus(), "bodies")


async def in_thread(function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Return the function's result, computed off the event loop; zlib and zstd release the GIL."""
    return await asyncio.get_running_loop().run_in_executor(_threads, function, *arguments)


async def inline_or_in_thread(size: int, convert: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Return the function's result, computed off the event loop unless few bytes or numbers are involved."""
    return convert(*arguments) if size <= INLINE_BYTES else await in_thread(convert, *arguments)
