"""Threads for coding and decoding bodies, apart from those that compute: /metrics never waits behind a picture."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

from service.process import cpu_count as cores

Given = TypeVarTuple("Given")
Found = TypeVar("Found")
_threads = ThreadPoolExecutor(cores.available(), "coding")


async def aside(work: Callable[[*Given], Found], *given: *Given) -> Found:
    """What `work` gives, made off the event loop; zlib and zstd let go of the GIL."""
    return await asyncio.get_running_loop().run_in_executor(_threads, work, *given)
