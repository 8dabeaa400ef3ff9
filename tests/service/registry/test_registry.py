"""Models are loaded, replaced and unloaded while others are served, and no admitted request loses its answer."""

import asyncio
import gc
import json
import shutil
import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.artifacts import card as cards
from service.embedding.requests import Ids
from service.errors import BadRequest, EngineFailure, NotFound, StartError
from service.observability.metrics import Metrics
from service.registry import loading, warmup
from service.registry.registry import ModelRegistry, open_registry
from service.settings import Settings
from tests.embed_requests import embed_request
from tests.golden_cases import Case
from tests.service.registry.registry_service import Service, fresh_vector, write
from tests.sweeps import sampled
from tests.vision_cases import export_seen, seen

HIDDEN = ("last_hidden_state",)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Models a and b, of one checkpoint."""
    write(tmp_path / "store", "a")
    shutil.copytree(tmp_path / "store/a", tmp_path / "store/b")
    return tmp_path / "store"


def held_up(service: Service, name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, threading.Event]:
    """Return an event that is set when the model's engine runs, and one that lets it go on."""
    entered, go_on, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()
    engine = service.registry.models[name].engine
    run = engine.run

    def wait(*arguments: Any) -> Any:
        loop.call_soon_threadsafe(entered.set)
        assert go_on.wait(30)
        return run(*arguments)

    monkeypatch.setattr(engine, "run", wait)
    return entered, go_on


# ---- loading and unloading


async def test_loads_a_model_while_another_is_served(store: Path) -> None:
    service = Service(store, models=("a",))
    with pytest.raises(NotFound, match="no model 'b' here; loaded: 'a'"):
        await service.vector("b")
    await service.registry.load("b")
    assert await service.vector("b") == await service.vector("a")


async def test_unloaded_model_is_not_found(store: Path) -> None:
    service = Service(store)
    await service.registry.unload("b")
    with pytest.raises(NotFound, match="no model 'b' here; loaded: 'a'"):
        await service.vector("b")
    with pytest.raises(NotFound, match="no model 'b' here; loaded: 'a'"):
        await service.registry.unload("b")


async def test_load_of_a_name_the_store_lacks_is_not_found(store: Path) -> None:
    (store / "empty").mkdir()
    (store / ".half").mkdir()
    registry = Service(store, models=("a",)).registry
    for name in ("c", "empty"):
        with pytest.raises(NotFound, match=f"the store holds no model '{name}'; it holds 'a', 'b'"):
            await registry.load(name)


async def test_loads_a_model_exported_after_the_start(store: Path) -> None:
    service = Service(store)
    write(store, "late", seed=1)
    await service.registry.load("late")
    assert await service.vector("late") != await service.vector("a")


@pytest.mark.parametrize("name", ["", ".", "..", "../store/b", "/etc", "b/", "b/../b", ".b", "b\0", "b\\..\\b"])
@pytest.mark.parametrize("change", ["load", "unload"])
async def test_rejects_names_that_are_paths(
    name: str, change: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Service(store, models=("a",)).registry

    def touched(*_: Any) -> Any:
        raise AssertionError("a file was asked for")

    for call in ("iterdir", "is_file", "stat", "open"):
        monkeypatch.setattr(Path, call, touched)
    with pytest.raises(NotFound, match="names no model: send the name of one folder of the store"):
        await getattr(registry, change)(name)


async def test_no_default_while_the_default_model_is_unloaded(store: Path) -> None:
    service = Service(store, default_model="a")
    registry = service.registry
    await registry.unload("a")
    assert registry.default is None
    with pytest.raises(BadRequest, match="the default model 'a' is not loaded: send \"model\", one of 'b', or set"):
        await service.vector(None)
    await registry.unload("b")
    with pytest.raises(BadRequest, match="no model is loaded"):
        await service.vector(None)
    await registry.load("b")
    assert registry.default is None
    await registry.load("a")
    assert await service.vector(None) == await service.vector("a")


@pytest.mark.parametrize(
    ("settings", "default"),
    [
        ({}, None),
        ({"models": ("b",)}, "b"),
        ({"models": ("b", "a")}, "b"),
        ({"models": ("b", "a"), "default_model": "a"}, "a"),
        ({"default_model": "b"}, "b"),
    ],
)
async def test_default_model_follows_from_the_settings(
    store: Path, settings: dict[str, Any], default: str | None
) -> None:
    """The one that is set, else the first of the models named, else the only one loaded."""
    registry = Service(store, **settings).registry
    assert (registry.default and registry.default.card.name) == default


@pytest.mark.parametrize("settings", [{}, {"models": ("b", "a")}, {"default_model": "a"}])
async def test_default_model_is_the_same_after_a_restart(store: Path, settings: dict[str, Any]) -> None:
    """However the loaded models came together, requests without a model meet what they would meet after a restart."""
    running = Service(store, **settings).registry
    for change, name in (("unload", "b"), ("unload", "a"), ("load", "b"), ("load", "a")):
        await getattr(running, change)(name)
    restarted = Service(store, **settings).registry
    assert (running.default and running.default.card.name) == (restarted.default and restarted.default.card.name)
    assert running.default_fault() == restarted.default_fault()


async def test_change_of_the_default_model_is_logged(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    registry = Service(store).registry
    await registry.unload("b")
    assert "requests that name no model now get 'a'" in caplog.text
    await registry.load("b")
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "holds several models and none is the default" in warning
    assert "INLAY_DEFAULT_MODEL" in warning


async def test_states_list_the_store_with_reasons(store: Path) -> None:
    registry = Service(store, models=("a",)).registry
    assert registry.states() == [("a", True, ""), ("b", False, "not loaded")]
    await registry.load("b")
    assert registry.states() == [("a", True, ""), ("b", True, "")]
    await registry.unload("b")
    assert registry.states() == [("a", True, ""), ("b", False, "unloaded")]
    shutil.rmtree(store / "a")
    assert registry.states() == [("a", True, ""), ("b", False, "unloaded")]


async def test_model_bytes_metric_exists_while_loaded(store: Path) -> None:
    settings, metrics = Settings(store=store, device="cpu"), Metrics()
    registry = open_registry(settings, metrics)
    await registry.unload("b")
    assert b'inlay_model_bytes{model="a"}' in metrics.text()
    assert b'inlay_model_bytes{model="b"}' not in metrics.text()
    await registry.load("b")
    assert b'inlay_model_bytes{model="b"}' in metrics.text()


# ---- replacing a version


async def test_load_replaces_a_loaded_model(store: Path) -> None:
    service = Service(store)
    before = await service.vector()
    write(store, "a", seed=1)
    assert await service.vector() == before
    await service.registry.load("a")
    assert await service.vector() == await fresh_vector(store, "a") != before
    assert list(service.registry.models) == ["a", "b"]


def spoil_the_graph(folder: Path) -> None:
    size = (folder / "encoder.onnx").stat().st_size
    (folder / "encoder.onnx").write_bytes(b"\xff" * size)


def spoil_the_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(b"{" * (folder / "tokenizer.json").stat().st_size)


def spoil_the_weights(folder: Path) -> None:
    path = folder / "weights.safetensors"
    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    path.write_bytes(data[:header] + b"\xff" * (len(data) - header))  # every float is NaN


def spoil_the_card(folder: Path) -> None:
    (folder / cards.FILE_NAME).write_text("{}")


def double_the_width(folder: Path) -> None:
    path = folder / cards.FILE_NAME
    card = json.loads(path.read_text())
    path.write_text(json.dumps(card | {"hidden_size": 2 * card["hidden_size"]}))


def take_a_file(folder: Path) -> None:
    (folder / "weights.safetensors").unlink()


BROKEN: list[tuple[Callable[[Path], None], str]] = [
    (spoil_the_graph, "encoder.onnx cannot be loaded: "),
    (spoil_the_tokenizer, "is not a tokenizer.json"),
    (spoil_the_weights, "fails on its first token: .* not finite"),
    (double_the_width, "gives last_hidden_state 32 wide where its card promises 64"),
    (spoil_the_card, "is not a card this version reads"),
    (take_a_file, "weights.safetensors"),
]


@pytest.mark.parametrize(("spoil", "message"), BROKEN, ids=lambda each: getattr(each, "__name__", ""))
async def test_broken_new_version_leaves_the_old_one_serving(
    spoil: Callable[[Path], None], message: str, store: Path
) -> None:
    service = Service(store, models=("a",), verify="off")
    before, served = await service.vector(), service.registry.models["a"]
    write(store, "a", seed=1)
    spoil(store / "a")
    with pytest.raises(BadRequest, match=rf"^a cannot be loaded: .*{message}.*; the version loaded before goes on"):
        await service.registry.load("a")
    assert service.registry.models["a"] is served
    assert await service.vector() == before
    ready = service.registry.states()[0]
    assert ready.ready
    assert "the store's version cannot be loaded: " in ready.reason
    write(store, "a", seed=1)
    await service.registry.load("a")
    assert await service.vector() != before
    assert service.registry.states()[0] == ("a", True, "")


async def test_unexpected_error_leaves_the_old_version_serving(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(store)
    before = await service.vector()

    async def fault(*_: Any) -> None:
        raise ZeroDivisionError("of a graph")

    monkeypatch.setattr(warmup, "warm_up", fault)
    with pytest.raises(BadRequest, match="a cannot be loaded: ZeroDivisionError: of a graph; the version loaded"):
        await service.registry.load("a")
    assert await service.vector() == before


GOING: dict[str, tuple[Callable[[Path], object], str]] = {
    "before it is read": (shutil.rmtree, "is gone, though the store listed it"),
    "while it is read": (lambda folder: (folder / "weights.safetensors").unlink(), r"cannot be read: .*weights\."),
}


@pytest.mark.parametrize("name", GOING)
def test_model_removed_before_or_while_read_is_one_line(
    name: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, message = GOING[name]
    place = {"before it is read": "_inode", "while it is read": "_map_ahead"}[name]
    real = getattr(loading, place)

    def going(path: Path, *rest: Any) -> Any:
        folder = store / "a"
        if folder.is_dir() and (folder / "weights.safetensors").is_file():
            go(folder)
        return real(path, *rest)

    monkeypatch.setattr(loading, place, going)
    with pytest.raises(StartError, match=message) as error:
        Service(store, models=("a",))
    assert "\n" not in str(error.value)


async def test_folder_replaced_while_read_is_read_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(store)
    read, reads = cards.read, []

    def exchanged(folder: Path) -> Any:
        card = read(folder)
        reads.append(folder)
        if len(reads) == 1:
            write(store, "a", seed=1)  # the card of one version, the files of the next
        return card

    monkeypatch.setattr(cards, "read", exchanged)
    await service.registry.load("a")
    assert len(reads) > 1
    assert await service.vector() == await fresh_vector(store, "a")
    monkeypatch.setattr(cards, "read", lambda folder: (write(store, "a", seed=1), read(folder))[1])
    with pytest.raises(BadRequest, match="was replaced 5 times while it was read"):
        await service.registry.load("a")


# ---- requests in flight


@pytest.mark.parametrize("change", ["unload", "load"])
async def test_admitted_requests_keep_the_model_they_began_with(
    change: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(store, models=("a",))
    before = await service.vector()
    entered, go_on = held_up(service, "a", monkeypatch)
    taken = [asyncio.create_task(service.vector()) for _ in range(5)]
    await entered.wait()
    taken.append(asyncio.create_task(service.vector()))  # waits behind the run that is held up
    await asyncio.sleep(0)
    write(store, "a", seed=1)
    await getattr(service.registry, change)("a")
    assert not any(each.done() for each in taken)
    go_on.set()
    assert await asyncio.gather(*taken) == [before] * 6
    if change == "load":
        assert await service.vector() == await fresh_vector(store, "a") != before


async def test_no_request_is_lost_while_models_change(store: Path) -> None:
    service, moving = Service(store), True
    answers: list[bytes] = []
    refusals: list[tuple[str, str]] = []
    allowed = {await service.vector()}
    write(store, "a", seed=1)
    allowed.add(await fresh_vector(store, "a"))

    async def ask(name: str) -> None:
        while moving:
            await asyncio.sleep(0.001)  # an error does not yield to the loop, and loading wants its time too
            try:
                answers.append(await service.vector(name))
            except NotFound as error:
                refusals.append((name, error.message))

    async def move() -> None:
        nonlocal moving
        for turn in range(10):
            await asyncio.to_thread(write, store, "a", seed=turn % 2)
            await asyncio.gather(service.registry.load("a"), service.registry.unload("b"))
            await service.registry.load("b")
        moving = False

    requests = [asyncio.create_task(ask(name)) for name in "aaabbb"]
    await move()
    await asyncio.gather(*requests)
    assert set(answers) == allowed
    assert set(refusals) == {("b", "no model 'b' here; loaded: 'a'")}


async def test_changes_of_one_name_run_in_order_others_in_parallel(store: Path) -> None:
    settings, metrics = Settings(store=store, device="cpu"), Metrics()
    opens = partial(loading.load_model, settings=settings, threads=1, metrics=metrics)
    inside: list[str] = []
    most: list[tuple[str, ...]] = []
    both = threading.Barrier(2, timeout=30)

    def watched(folder: Path) -> Any:
        inside.append(folder.name)
        most.append(tuple(sorted(inside)))
        both.wait()  # broken unless a and b are opened at the same time
        inside.remove(folder.name)
        return opens(folder)

    registry = ModelRegistry({}, (), store, watched, metrics)
    await asyncio.gather(*[registry.load(name) for name in "abab"])
    assert all(len(set(names)) == len(names) for names in most)
    assert list(registry.models) == ["a", "b"] or list(registry.models) == ["b", "a"]


async def test_load_is_completed_when_its_caller_leaves(store: Path) -> None:
    settings, metrics = Settings(store=store, device="cpu"), Metrics()
    opens = partial(loading.load_model, settings=settings, threads=1, metrics=metrics)
    loop, began, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    count = 0

    def slow(folder: Path) -> Any:
        nonlocal count
        count += 1
        loop.call_soon_threadsafe(began.set)
        assert go_on.wait(30)
        return opens(folder)

    registry = ModelRegistry({}, (), store, slow, metrics)
    caller = asyncio.create_task(registry.load("a"))
    await began.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert registry.models == {}
    unloaded = asyncio.create_task(registry.load("a"))  # waits for the first
    go_on.set()
    await unloaded
    assert (count, list(registry.models)) == (2, ["a"])


# ---- freeing an unloaded model


async def test_unloaded_model_leaves_no_thread_or_mapping(store: Path) -> None:
    service = Service(store)
    await service.vector()
    await service.pipeline.embed(embed_request([Ids(np.array([5, 6, 7]))], "b", outputs=HIDDEN))
    left = weakref.ref(service.registry.models["b"]), weakref.ref(service.registry.models["b"].tokenizer)
    threads = [each for each in threading.enumerate() if each.name.startswith("b-")]
    assert threads
    assert str(store / "b") in Path("/proc/self/maps").read_text()
    gc.collect()
    gc.disable()  # it is freed with its last reference, not by the collector
    try:
        await service.registry.unload("b")
        assert [each() for each in left] == [None, None]
    finally:
        gc.enable()
    for thread in threads:
        await asyncio.to_thread(thread.join, 30)
        assert not thread.is_alive()
    assert str(store / "b") not in Path("/proc/self/maps").read_text()
    assert str(store / "a") in Path("/proc/self/maps").read_text()
    await service.vector()


# ---- warm-up


@pytest.mark.parametrize("case", sampled(seen(), 4), ids=lambda case: case.name)
async def test_every_image_tower_warms_up(case: Case, tmp_path: Path) -> None:
    export_seen(case, tmp_path / "checkpoint", tmp_path / "store/m")
    await warmup.warm_up(Service(tmp_path / "store").registry.models["m"])


async def test_failing_graph_fails_the_warmup(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Service(store, models=("a",)).registry.models["a"]

    def fail(*_: Any) -> Any:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(tried.engine, "run", fail)
    with pytest.raises(StartError, match=r"a fails on its first token: .*no kernel.*export it again") as refusal:
        await warmup.warm_up(tried)
    assert isinstance(refusal.value.__cause__, EngineFailure)
