"""Several worker processes follow a watched store, and agree on the default model."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import httpx
import pytest

from models.artifacts.export import export
from tests.golden_cases import write_tiny_bert
from tests.service.cli.test_startup import SECONDS, running

REQUESTS = 16  # on a connection each, so that every worker gets some


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write(tmp_path / "store/bert", 0)
    return tmp_path / "store"


def write(out: Path, seed: int) -> None:
    export(write_tiny_bert(out.parent.parent / f"checkpoint-{seed}", pooling="mean", seed=seed), out)


def post(url: str, path: str, body: object = None) -> httpx.Response:
    """Send a request on a connection of its own."""
    return httpx.post(url + path, json=body or {}, timeout=SECONDS, trust_env=False, verify=False)


def versions(url: str, model: str = "bert") -> set[str]:
    """Return the different versions of a model that the workers serve."""
    return {
        httpx.get(f"{url}/models/{model}", timeout=SECONDS, trust_env=False, verify=False).json().get("version", "none")
        for _ in range(REQUESTS)
    }


def metrics(url: str) -> str:
    """Return one scrape; empty if its worker was just killed."""
    try:
        return httpx.get(f"{url}/metrics", timeout=SECONDS, trust_env=False, verify=False).text
    except httpx.TransportError:
        return ""


def until(true: Callable[[], bool]) -> None:
    """Wait for a condition, for a bounded time."""
    begun = monotonic()
    while not true():
        assert monotonic() - begun < SECONDS
        sleep(0.05)  # leaves the processor to those that are waited for


def workers(pid: int) -> list[int]:
    """Return the worker processes of a supervisor, without the resource tracker of multiprocessing."""
    children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [each for each in children if b"spawn_main" in Path(f"/proc/{each}/cmdline").read_bytes()]


def test_watched_store_and_its_default_reach_every_worker(store: Path) -> None:
    """A new version, a model that comes and goes, for workers that saw it come and for one that started after it."""
    with running(store, "--workers", "2", "--watch-store", "0.2", default=None) as (process, url, _):

        def statuses(model: str | None = None) -> set[int]:
            body = {"inputs": ["hello world"]} | ({"model": model} if model else {})
            return {post(url, "/embed", body).status_code for _ in range(REQUESTS)}

        until(lambda: "inlay_workers_ready 2" in metrics(url))
        assert statuses() == {200}
        (old,) = versions(url)
        write(store / "bert", 1)
        until(lambda: len(served := versions(url)) == 1 and old not in served)
        write(store / "late", 2)
        until(lambda: statuses() == {422})
        assert statuses("late") == {200}
        os.kill(workers(process.pid)[0], signal.SIGKILL)
        until(lambda: "inlay_worker_restarts_total 1" in metrics(url) and "inlay_workers_ready 2" in metrics(url))
        assert statuses() == {422}
        (store / "late").rename(store.parent / "late")
        until(lambda: statuses() == {200})
        assert statuses("late") == {404}


def test_loads_by_request_reach_every_worker(store: Path) -> None:
    """The one that was asked, the other, and one that started later; a model that cannot be loaded is refused."""
    write(store / "other", 1)
    options = ("--workers", "2", "--model-control", "explicit", "--models", "bert,other")
    with running(store, *options, default="bert") as (process, url, _):

        def statuses() -> set[int]:
            body = {"inputs": ["hello world"], "model": "other"}
            return {post(url, "/embed", body).status_code for _ in range(REQUESTS)}

        until(lambda: "inlay_workers_ready 2" in metrics(url))
        assert post(url, "/v2/repository/models/other/unload").status_code == 200
        assert statuses() == {404}
        os.kill(workers(process.pid)[0], signal.SIGKILL)
        until(lambda: "inlay_worker_restarts_total 1" in metrics(url) and "inlay_workers_ready 2" in metrics(url))
        until(lambda: statuses() == {404})
        write(store / "other", 2)
        assert post(url, "/v2/repository/models/other/load").status_code == 200
        assert statuses() == {200}
        (served,) = versions(url, "other")
        graph = store / "other/encoder.onnx"
        graph.write_bytes(b"\xff" * graph.stat().st_size)
        refused = post(url, "/v2/repository/models/other/load")
        assert refused.status_code >= 400
        assert "cannot be loaded" in refused.text
        assert versions(url, "other") == {served}
        assert post(url, "/v2/repository/models/unknown/load").status_code == 404


def test_workers_load_on_demand_each_for_itself(store: Path) -> None:
    write(store / "other", 1)
    with running(store, "--workers", "2", "--load", "on-demand", default="bert") as (_, url, _):
        body = {"inputs": ["hello world"], "model": "other"}
        answers = [post(url, "/embed", body) for _ in range(REQUESTS)]
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.text for answer in answers}) == 1
        loaded = 'inlay_model_load_seconds_count{model="other"} 2'  # the second worker may not have listened yet
        until(lambda: post(url, "/embed", body).status_code == 200 and loaded in metrics(url))
