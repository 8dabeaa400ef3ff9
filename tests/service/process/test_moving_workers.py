"""Several real worker processes follow a store that changes."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import httpx
import pytest
from tests.service.process.test_serve import SECONDS, running

from models.artifacts.export import export
from tests.golden_cases import write_tiny_bert

REQUESTS = 24  # over a connection each: enough that every worker gets some


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """`bert`, and `b` of the same weights."""
    for name in ("bert", "b"):
        write(tmp_path / "store" / name, 0)
    return tmp_path / "store"


def write(out: Path, seed: int) -> None:
    export(write_tiny_bert(out.parent.parent / f"checkpoint-{seed}", pooling="mean", seed=seed), out)


def post(url: str, path: str, body: object = None) -> httpx.Response:
    """Over a connection of its own."""
    return httpx.post(url + path, json=body or {}, timeout=SECONDS, trust_env=False, verify=False)


def answers(url: str, model: str = "bert") -> set[tuple[int, str]]:
    """What many callers get."""
    found = [post(url, "/embed", {"model": model, "inputs": ["hello world"]}) for _ in range(REQUESTS)]
    return {(each.status_code, each.text) for each in found}


def versions(url: str, model: str = "bert") -> set[str]:
    """By the cards' hashes."""
    return {
        httpx.get(f"{url}/models/{model}", timeout=SECONDS, trust_env=False, verify=False).json().get("version", "none")
        for _ in range(REQUESTS)
    }


def metrics(url: str) -> str:
    """One scrape, over a connection of its own; empty where its worker was just killed."""
    try:
        return httpx.get(f"{url}/metrics", timeout=SECONDS, trust_env=False, verify=False).text
    except httpx.TransportError:
        return ""


def until(true: Callable[[], bool]) -> None:
    """Ask again and again; the time is bounded."""
    begun = monotonic()
    while not true():
        assert monotonic() - begun < SECONDS


def workers(pid: int) -> list[int]:
    """Its children that serve: the tracker of multiprocessing's resources does not."""
    found = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [each for each in found if b"spawn_main" in Path(f"/proc/{each}/cmdline").read_bytes()]


def test_a_watched_store_reaches_every_worker(store: Path) -> None:
    with running(store, "--workers", "2", "--watch-store", "0.2") as (_, url, _):
        (old,) = versions(url)
        write(store / "bert", 1)
        until(lambda: len(found := versions(url)) == 1 and old not in found)
        write(store / "late", 2)
        until(lambda: {status for status, _ in answers(url, "late")} == {200})
        (store / "b").rename(store.parent / "b")
        until(lambda: {status for status, _ in answers(url, "b")} == {404})
        assert {status for status, _ in answers(url)} == {200}


def test_a_replaced_worker_keeps_the_default_model(store: Path) -> None:
    """It starts when the store holds another model, and the default of the others is still its default."""
    (store / "b").rename(store.parent / "b")
    with running(store, "--workers", "2", "--watch-store", "0.2") as (process, url, _):
        until(lambda: "inlay_workers_ready 2" in metrics(url))
        write(store / "late", 2)
        until(lambda: {status for status, _ in answers(url, "late")} == {200})
        os.kill(workers(process.pid)[0], signal.SIGKILL)
        until(lambda: "inlay_worker_restarts_total 1" in metrics(url) and "inlay_workers_ready 2" in metrics(url))
        assert {post(url, "/embed", {"inputs": ["hello world"]}).status_code for _ in range(REQUESTS)} == {200}
