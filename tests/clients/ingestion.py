"""Ordinary ingestion: 24 threads of a client send 48 lists of 32 texts of 5 to 60 words; a user asks beside them."""

import random
import re
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.clients.conftest import Server

THREADS = 24
REQUESTS = 2 * THREADS
TEXTS = 32
WORDS = ("river", "stone", "market", "engine", "violin", "harbour", "theory", "copper", "garden", "signal")
Embed = Callable[[Sequence[str]], Any]


def lists() -> list[list[str]]:
    """The texts of every request."""
    rng = random.Random(1)
    return [[" ".join(rng.choices(WORDS, k=rng.randint(5, 60))) for _ in range(TEXTS)] for _ in range(REQUESTS)]


def refusals(server: Server) -> float:
    """The requests that the server has refused so far because it was overloaded."""
    text = httpx.get(f"{server.url}/metrics").text
    return sum(map(float, re.findall(r'^inlay_refusals_total\{[^}]*reason="overloaded"[^}]*\} (\S+)', text, re.M)))


def assert_nothing_is_refused(server: Server, embed: Embed) -> None:
    """Every list gets its vectors, and a user who asks meanwhile does not wait for them all.

    Args:
        embed: the client's call, with its defaults.
    """
    before, waits, done = refusals(server), list[float](), threading.Event()

    def ask() -> None:
        while not done.is_set():
            began = time.perf_counter()
            embed(["a text of a user"])
            waits.append(time.perf_counter() - began)
            done.wait(0.1)

    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as threads, ThreadPoolExecutor(1) as user:
        asking = user.submit(ask)
        try:
            answers = list(threads.map(embed, lists()))
        finally:
            done.set()
        asking.result()
    took = time.perf_counter() - began
    assert [len(answer) for answer in answers] == [TEXTS] * REQUESTS
    assert refusals(server) == before
    assert statistics.median(waits) < took / 8
    print(f"{REQUESTS} lists in {took:.1f} s; a text beside them took {statistics.median(waits):.2f} s at the median")
