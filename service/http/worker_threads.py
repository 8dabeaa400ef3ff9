"""Threads for coding, decoding and writing bodies, apart from those that compute."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

from service.machine import available_cpus

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")
_threads = ThreadPoolExecutor(available_cpus(), "bodies")


async def in_thread(function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Return the function's result, computed off the event loop; zlib and zstd release the GIL."""
    return await asyncio.get_running_loop().run_in_executor(_threads, function, *arguments)
