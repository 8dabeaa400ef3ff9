"""A warm-up ends in time, holds one thread at most, and reports any error as one of the model."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from models.artifacts.card import HEAD
from models.artifacts.export import export
from service.embedding.model import Model
from service.errors import StartError
from service.observability.metrics import Metrics
from service.registry import warmup
from service.registry.registry import open_registry
from service.settings import Settings
from tests.golden_cases import case, write_checkpoint, write_tiny_bert, write_tokenizer


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer and an output head."""
    folder = tmp_path_factory.mktemp("warmup")
    write_tokenizer(write_checkpoint(case("input_bert"), folder / "bert") / "tokenizer.json")
    export(folder / "bert", folder / "store/bert")
    return folder / "store"


@pytest.fixture
def model(store: Path) -> Model:
    return open_registry(Settings(store=store, device="cpu"), Metrics()).models["bert"]


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """An event that lets a hanging run go on."""
    event = threading.Event()
    yield event
    event.set()


def meddle(model: Model, patch: pytest.MonkeyPatch, before: Callable[[], Any]) -> None:
    """Call a function before each run of the head."""
    run = model.engine.run

    def meddled(graph: str, *arguments: Any) -> Any:
        if graph == HEAD:
            before()
        return run(graph, *arguments)

    patch.setattr(model.engine, "run", meddled)


def fail(*_: Any) -> Any:
    raise ZeroDivisionError("no kernel")


async def test_error_in_the_head_is_a_fault_of_the_model(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    meddle(model, monkeypatch, fail)
    with pytest.raises(StartError, match="bert fails on its first token: ZeroDivisionError: no kernel; export it"):
        await warmup.warm_up(model)


async def test_error_in_the_tokenizer_is_a_fault_of_the_model(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(model.tokenizer), "encode", fail)
    with pytest.raises(StartError, match="bert fails on its first token: ZeroDivisionError: no kernel; export it"):
        await warmup.warm_up(model)


async def test_hanging_warm_up_holds_one_thread(
    model: Model, monkeypatch: pytest.MonkeyPatch, held: threading.Event
) -> None:
    ran: list[str] = []
    began = threading.Event()

    def hang() -> None:
        ran.append(threading.current_thread().name)
        began.set()
        held.wait(20)

    meddle(model, monkeypatch, hang)
    first = asyncio.create_task(warmup.warm_up_within(model, 60))
    assert await asyncio.to_thread(began.wait, 20)
    for _ in range(5):
        with pytest.raises(StartError, match=r"bert gave no answer within 0\.02 s"):
            await warmup.warm_up_within(model, 0.02)
    held.set()
    await first
    assert ran == ["bert-warmup_0"]
    await warmup.warm_up(model)
    assert len(ran) == 2


async def test_head_does_not_wait_for_the_thread_pool(model: Model, held: threading.Event) -> None:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as pool:
        loop.set_default_executor(pool)
        tokenising = loop.run_in_executor(None, held.wait, 20)
        await warmup.warm_up_within(model, 10)
        assert not tokenising.done()
        held.set()
        await tokenising


@pytest.mark.parametrize(
    ("threads", "every", "expected"),
    [(1, True, ["together"]), (2, False, ["alone"]), *[(each, True, ["alone", *["together"] * 2]) for each in (2, 8)]],
)
async def test_sessions_of_runs_together_and_alone_are_warm(
    threads: int, every: bool, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(write_tiny_bert(tmp_path / "checkpoint", pooling="mean"), tmp_path / "store/a")
    model = open_registry(Settings(store=tmp_path / "store", device="cpu", threads=threads), Metrics()).models["a"]
    ran: list[str] = []

    def note(engine: Any, name: str) -> None:
        run = engine.run

        def noted(graph: str, *arguments: Any) -> Any:
            if graph == "encoder":
                ran.append(name)
            return run(graph, *arguments)

        monkeypatch.setattr(engine, "run", noted)

    note(model.engine, "together")
    if model.engine.alone:
        note(model.engine.alone, "alone")
    await warmup.warm_up(model, every)
    assert sorted(ran) == expected
