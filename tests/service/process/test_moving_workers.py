"""Models in motion under several real worker processes: what was answered is true of all of them."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import httpx
import pytest

from models.artifacts.export import export
from tests.golden_cases import write_tiny_bert
from tests.service.process.test_serve import SECONDS, running

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
    return httpx.post(url + path, json=body or {}, timeout=SECONDS, trust_env=False)


def answers(url: str, model: str = "bert") -> set[tuple[int, str]]:
    """What many callers get."""
    found = [post(url, "/embed", {"model": model, "inputs": ["hello world"]}) for _ in range(REQUESTS)]
    return {(each.status_code, each.text) for each in found}


def versions(url: str, model: str = "bert") -> set[str]:
    """By the cards' hashes."""
    return {
        httpx.get(f"{url}/models/{model}", timeout=SECONDS, trust_env=False).json().get("version", "none")
        for _ in range(REQUESTS)
    }


def until(true: Callable[[], bool]) -> None:
    """Ask again and again; the time is bounded."""
    begun = monotonic()
    while not true():
        assert monotonic() - begun < SECONDS


def workers(pid: int) -> list[int]:
    """Its children that serve: the tracker of multiprocessing's resources does not."""
    found = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [each for each in found if b"spawn_main" in Path(f"/proc/{each}/cmdline").read_bytes()]


def test_a_load_is_answered_when_all_workers_serve_the_new_version(store: Path) -> None:
    with running(store, "--workers", "2", "--model-control", "explicit") as (process, url, _):
        until(lambda: "inlay_workers_ready 2" in httpx.get(f"{url}/metrics", trust_env=False).text)
        (before,) = answers(url)
        for seed in (1, 2):
            write(store / "bert", seed)
            assert post(url, "/v2/repository/models/bert/load").status_code == 200
            (after,) = answers(url)
            assert after[0] == 200
            assert after != before
            before = after
        assert len(versions(url)) == 1
        assert post(url, "/v2/repository/models/b/unload").status_code == 200
        assert {status for status, _ in answers(url, "b")} == {404}
        broken = store / "bert/tokenizer.json"
        kept = broken.read_bytes()
        broken.unlink()
        refused = post(url, "/v2/repository/models/bert/load")
        assert refused.status_code == 400
        assert "goes on serving" in refused.json()["error"]
        assert answers(url) == {before}
        broken.write_bytes(kept)
        # one that is started in the place of another begins where they are
        os.kill(workers(process.pid)[0], signal.SIGKILL)
        until(lambda: "inlay_worker_restarts_total 1" in httpx.get(f"{url}/metrics", trust_env=False).text)
        until(lambda: "inlay_workers_ready 2" in httpx.get(f"{url}/metrics", trust_env=False).text)
        assert answers(url) == {before}
        assert {status for status, _ in answers(url, "b")} == {404}
        assert post(url, "/v2/repository/models/b/load").status_code == 200
        assert {status for status, _ in answers(url, "b")} == {200}


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
