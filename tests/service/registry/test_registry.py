"""Models in motion: loaded, exchanged and let go while others are served; nobody who was let in loses an answer."""

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
from models.artifacts.export import export
from service.embedding.pipeline import Encoder
from service.embedding.requests import EmbedRequest, Ids, Text
from service.errors import BadRequest, EngineFailure, NotFound, StartError
from service.observability.metrics import Metrics
from service.registry import model
from service.registry import warmup as trial
from service.registry.registry import Catalog, open_catalog
from service.settings import Settings
from tests.golden_cases import (
    Case,
    cases,
    tiny_bert,
    tiny_config,
    write_checkpoint,
    write_folder,
    write_sentence_files,
    write_tokenizer,
)
from tests.vision_cases import export_seen, seen

WORDS = Text("hello world")
HIDDEN = ("last_hidden_state",)


def write(store: Path, name: str, seed: int = 0) -> None:
    """A sentence encoder whose weights the seed decides, exported to the store or over what is there."""
    source = store.parent / f"checkpoint-{seed}"
    tensors = tiny_bert(seed=seed)
    write_folder(source, tiny_config(tensors), tensors)
    write_tokenizer(source / "tokenizer.json")
    write_sentence_files(source, "mean")
    export(source, store / name)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """a and b of one checkpoint, nothing else."""
    write(tmp_path / "store", "a")
    shutil.copytree(tmp_path / "store/a", tmp_path / "store/b")
    return tmp_path / "store"


def opened(store: Path, **changes: Any) -> Encoder:
    settings = Settings(store=store, device="cpu", **changes)
    return Encoder(open_catalog(settings, Metrics()), settings)


async def vector(encoder: Encoder, name: str | None = "a") -> bytes:
    (output,) = (await encoder.embed(EmbedRequest([WORDS], name))).outputs
    return output.rows.tobytes()


async def alone(store: Path) -> bytes:
    """What a process that starts now answers."""
    return await vector(opened(store))


def held_up(encoder: Encoder, name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, threading.Event]:
    """Set when the model's engine is entered, and what lets it go on."""
    entered, go_on, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()
    engine = encoder.catalog.models[name].engine
    run = engine.run

    def wait(*arguments: Any) -> Any:
        loop.call_soon_threadsafe(entered.set)
        assert go_on.wait(30)
        return run(*arguments)

    monkeypatch.setattr(engine, "run", wait)
    return entered, go_on


# ---- loading and unloading


async def test_a_model_of_the_store_is_loaded_while_another_is_served(store: Path) -> None:
    encoder = opened(store, models=("a",))
    with pytest.raises(NotFound, match="no model 'b' here; loaded: 'a'"):
        await vector(encoder, "b")
    await encoder.catalog.load("b")
    assert await vector(encoder, "b") == await vector(encoder, "a")


async def test_an_unloaded_model_is_refused_by_the_names_that_are_loaded(store: Path) -> None:
    encoder = opened(store)
    await encoder.catalog.unload("b")
    with pytest.raises(NotFound, match="no model 'b' here; loaded: 'a'"):
        await vector(encoder, "b")
    with pytest.raises(NotFound, match="no model 'b' here; loaded: 'a'"):
        await encoder.catalog.unload("b")


async def test_what_the_store_does_not_hold_is_refused_by_what_it_holds(store: Path) -> None:
    (store / "empty").mkdir()
    (store / ".half").mkdir()
    catalog = opened(store, models=("a",)).catalog
    for name in ("c", "empty"):
        with pytest.raises(NotFound, match=f"the store holds no model '{name}'; it holds 'a', 'b'"):
            await catalog.load(name)


async def test_a_model_exported_after_the_start_can_be_loaded(store: Path) -> None:
    encoder = opened(store)
    write(store, "late", seed=1)
    await encoder.catalog.load("late")
    assert await vector(encoder, "late") != await vector(encoder, "a")


@pytest.mark.parametrize("name", ["", ".", "..", "../store/b", "/etc", "b/", "b/../b", ".b", "b\0", "b\\..\\b"])
@pytest.mark.parametrize("motion", ["load", "unload"])
async def test_no_name_becomes_a_path(name: str, motion: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = opened(store, models=("a",)).catalog

    def touched(*_: Any) -> Any:
        raise AssertionError("a file was asked for")

    for call in ("iterdir", "is_file", "stat", "open"):
        monkeypatch.setattr(Path, call, touched)
    with pytest.raises(NotFound, match="names no model: send the name of one folder of the store"):
        await getattr(catalog, motion)(name)


async def test_the_default_model_leaves_no_default_behind_and_is_it_again_when_it_comes_back(store: Path) -> None:
    encoder = opened(store, default_model="a")
    catalog = encoder.catalog
    await catalog.unload("a")
    assert catalog.default is None
    with pytest.raises(BadRequest, match="the default model 'a' is not loaded: send \"model\", one of 'b'"):
        await vector(encoder, None)
    await catalog.unload("b")
    with pytest.raises(BadRequest, match="no model is loaded"):
        await vector(encoder, None)
    await catalog.load("b")
    assert catalog.default is None
    await catalog.load("a")
    assert await vector(encoder, None) == await vector(encoder, "a")


async def test_the_only_model_stays_the_default_when_another_joins_it(store: Path) -> None:
    encoder = opened(store, models=("a",))
    await encoder.catalog.load("b")
    assert encoder.catalog.default is encoder.catalog.models["a"]


async def test_states_list_the_whole_store_and_say_why(store: Path) -> None:
    catalog = opened(store, models=("a",)).catalog
    assert catalog.states() == [("a", True, ""), ("b", False, "not loaded")]
    await catalog.load("b")
    assert catalog.states() == [("a", True, ""), ("b", True, "")]
    await catalog.unload("b")
    assert catalog.states() == [("a", True, ""), ("b", False, "unloaded")]
    shutil.rmtree(store / "a")
    assert catalog.states() == [("a", True, ""), ("b", False, "unloaded")]


async def test_the_bytes_of_a_model_are_shown_while_it_is_loaded(store: Path) -> None:
    settings, metrics = Settings(store=store, device="cpu"), Metrics()
    catalog = open_catalog(settings, metrics)
    await catalog.unload("b")
    assert b'inlay_model_bytes{model="a"}' in metrics.text()
    assert b'inlay_model_bytes{model="b"}' not in metrics.text()
    await catalog.load("b")
    assert b'inlay_model_bytes{model="b"}' in metrics.text()


# ---- a new version in the place of the one that serves


async def test_a_load_of_a_loaded_model_takes_the_present_version(store: Path) -> None:
    encoder = opened(store)
    before = await vector(encoder)
    write(store, "a", seed=1)
    assert await vector(encoder) == before
    await encoder.catalog.load("a")
    assert await vector(encoder) == await alone_of(store, "a") != before
    assert list(encoder.catalog.models) == ["a", "b"]


async def alone_of(store: Path, name: str) -> bytes:
    return await vector(opened(store, models=(name,)), name)


def cut_the_graph(folder: Path) -> None:
    (folder / "encoder.onnx").write_bytes((folder / "encoder.onnx").read_bytes()[:-1])


def spoil_the_graph(folder: Path) -> None:
    size = (folder / "encoder.onnx").stat().st_size
    (folder / "encoder.onnx").write_bytes(b"\xff" * size)


def spoil_the_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(b"{" * (folder / "tokenizer.json").stat().st_size)


def spoil_the_weights(folder: Path) -> None:
    path = folder / "weights.safetensors"
    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    path.write_bytes(data[:header] + b"\xff" * (len(data) - header))  # every float is not a number


def spoil_the_card(folder: Path) -> None:
    (folder / cards.FILE_NAME).write_text("{}")


def double_the_width(folder: Path) -> None:
    path = folder / cards.FILE_NAME
    card = json.loads(path.read_text())
    path.write_text(json.dumps(card | {"hidden_size": 2 * card["hidden_size"]}))


def take_a_file(folder: Path) -> None:
    (folder / "weights.safetensors").unlink()


BROKEN: list[tuple[Callable[[Path], None], str]] = [
    (cut_the_graph, "encoder.onnx"),
    (spoil_the_graph, "cannot be loaded: "),
    (spoil_the_tokenizer, "is not a tokenizer.json"),
    (spoil_the_weights, "fails on its first token: .* not finite"),
    (double_the_width, "gives last_hidden_state 32 wide where its card promises 64"),
    (spoil_the_card, "is not a card this version reads"),
    (take_a_file, "weights.safetensors"),
]


@pytest.mark.parametrize(("spoil", "message"), BROKEN, ids=lambda each: getattr(each, "__name__", ""))
async def test_a_broken_new_version_leaves_the_old_one_serving(
    spoil: Callable[[Path], None], message: str, store: Path
) -> None:
    encoder = opened(store, models=("a",))
    before, served = await vector(encoder), encoder.catalog.models["a"]
    write(store, "a", seed=1)
    spoil(store / "a")
    with pytest.raises(BadRequest, match=rf"^a cannot be loaded: .*{message}.*; the version loaded before goes on"):
        await encoder.catalog.load("a")
    assert encoder.catalog.models["a"] is served
    assert await vector(encoder) == before
    ready = encoder.catalog.states()[0]
    assert ready.ready
    assert "the store's version cannot be loaded: " in ready.reason
    write(store, "a", seed=1)
    await encoder.catalog.load("a")
    assert await vector(encoder) != before
    assert encoder.catalog.states()[0] == ("a", True, "")


async def test_a_broken_model_is_not_loaded_and_its_state_says_why(store: Path) -> None:
    catalog = opened(store, models=("a",)).catalog
    take_a_file(store / "b")
    with pytest.raises(BadRequest, match="b cannot be loaded: ") as refusal:
        await catalog.load("b")
    assert "goes on serving" not in refusal.value.message
    assert (catalog.states()[1].ready, "weights.safetensors" in catalog.states()[1].reason) == (False, True)


async def test_a_fault_no_one_foresaw_leaves_the_old_one_serving(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = opened(store)
    before = await vector(encoder)

    async def fault(_: Any) -> None:
        raise ZeroDivisionError("of a graph")

    monkeypatch.setattr(trial, "passes", fault)
    with pytest.raises(BadRequest, match="a cannot be loaded: ZeroDivisionError: of a graph; the version loaded"):
        await encoder.catalog.load("a")
    assert await vector(encoder) == before


GOING: dict[str, tuple[Callable[[Path], object], str]] = {
    "before it is read": (shutil.rmtree, "is gone, though the store listed it"),
    "while it is read": (lambda folder: (folder / "weights.safetensors").unlink(), r"cannot be read: .*weights\."),
}


@pytest.mark.parametrize("name", GOING)
def test_a_model_that_goes_between_listing_and_opening_is_one_line(
    name: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, message = GOING[name]
    place = {"before it is read": "_identity", "while it is read": "_tokenizer"}[name]
    real = getattr(model, place)

    def going(path: Path, *rest: Any) -> Any:
        folder = store / "a"
        if folder.is_dir() and (folder / "weights.safetensors").is_file():
            go(folder)
        return real(path, *rest)

    monkeypatch.setattr(model, place, going)
    with pytest.raises(StartError, match=message) as refusal:
        opened(store, models=("a",))
    assert "\n" not in str(refusal.value)


async def test_a_folder_exchanged_while_it_is_read_is_read_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = opened(store)
    read, reads = cards.read, []

    def exchanged(folder: Path) -> Any:
        card = read(folder)
        reads.append(folder)
        if len(reads) == 1:
            write(store, "a", seed=1)  # the card of one version, the files of the next
        return card

    monkeypatch.setattr(cards, "read", exchanged)
    await encoder.catalog.load("a")
    assert len(reads) > 1
    assert await vector(encoder) == await alone_of(store, "a")
    monkeypatch.setattr(cards, "read", lambda folder: (write(store, "a", seed=1), read(folder))[1])
    with pytest.raises(BadRequest, match="was exchanged 5 times while it was read"):
        await encoder.catalog.load("a")


# ---- requests in flight


@pytest.mark.parametrize("motion", ["unload", "load"])
async def test_a_request_already_taken_gets_the_answer_of_the_model_it_began_with(
    motion: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = opened(store, models=("a",))
    before = await vector(encoder)
    entered, go_on = held_up(encoder, "a", monkeypatch)
    taken = [asyncio.create_task(vector(encoder)) for _ in range(5)]
    await entered.wait()
    taken.append(asyncio.create_task(vector(encoder)))  # waits behind the run that is held up
    await asyncio.sleep(0)
    write(store, "a", seed=1)
    await getattr(encoder.catalog, motion)("a")
    assert not any(each.done() for each in taken)
    go_on.set()
    assert await asyncio.gather(*taken) == [before] * 6
    if motion == "load":
        assert await vector(encoder) == await alone_of(store, "a") != before


async def test_no_request_is_lost_while_models_come_and_go(store: Path) -> None:
    encoder, moving = opened(store), True
    answers: list[bytes] = []
    refusals: list[tuple[str, str]] = []
    allowed = {await vector(encoder)}
    write(store, "a", seed=1)
    allowed.add(await alone_of(store, "a"))

    async def ask(name: str) -> None:
        while moving:
            await asyncio.sleep(0)  # a refusal takes no turn of its own
            try:
                answers.append(await vector(encoder, name))
            except NotFound as error:
                refusals.append((name, error.message))

    async def move() -> None:
        nonlocal moving
        for turn in range(10):
            await asyncio.to_thread(write, store, "a", seed=turn % 2)
            await asyncio.gather(encoder.catalog.load("a"), encoder.catalog.unload("b"))
            await encoder.catalog.load("b")
        moving = False

    asked = [asyncio.create_task(ask(name)) for name in "aaabbb"]
    await move()
    await asyncio.gather(*asked)
    assert set(answers) == allowed
    assert set(refusals) == {("b", "no model 'b' here; loaded: 'a'")}


async def test_motions_of_one_name_take_turns_and_those_of_others_do_not_wait(store: Path) -> None:
    settings, metrics = Settings(store=store, device="cpu"), Metrics()
    opens = partial(model.opened, settings=settings, threads=1, metrics=metrics)
    inside: list[str] = []
    most: list[tuple[str, ...]] = []
    both = threading.Barrier(2, timeout=30)

    def watched(folder: Path) -> Any:
        inside.append(folder.name)
        most.append(tuple(sorted(inside)))
        both.wait()  # broken unless a and b are opened at the same time
        inside.remove(folder.name)
        return opens(folder)

    catalog = Catalog({}, None, store, watched, metrics)
    await asyncio.gather(*[catalog.load(name) for name in "abab"])
    assert all(len(set(names)) == len(names) for names in most)
    assert list(catalog.models) == ["a", "b"] or list(catalog.models) == ["b", "a"]


async def test_a_load_goes_on_when_its_caller_leaves(store: Path) -> None:
    settings, metrics = Settings(store=store, device="cpu"), Metrics()
    opens = partial(model.opened, settings=settings, threads=1, metrics=metrics)
    loop, began, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    count = 0

    def slow(folder: Path) -> Any:
        nonlocal count
        count += 1
        loop.call_soon_threadsafe(began.set)
        assert go_on.wait(30)
        return opens(folder)

    catalog = Catalog({}, None, store, slow, metrics)
    caller = asyncio.create_task(catalog.load("a"))
    await began.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert catalog.models == {}
    unloaded = asyncio.create_task(catalog.load("a"))  # the next in turn, which waits for the first
    go_on.set()
    await unloaded
    assert (count, list(catalog.models)) == (2, ["a"])


# ---- what is left


async def test_nothing_of_an_unloaded_model_stays(store: Path) -> None:
    encoder = opened(store)
    await vector(encoder)
    await encoder.embed(EmbedRequest([Ids(np.array([5, 6, 7]))], "b", outputs=HIDDEN))
    left = weakref.ref(encoder.catalog.models["b"]), weakref.ref(encoder.catalog.models["b"].tokenizer)
    threads = [each for each in threading.enumerate() if each.name.startswith("b-")]
    assert threads
    assert str(store / "b") in Path("/proc/self/maps").read_text()
    gc.collect()
    gc.disable()  # it goes with its last holder, not when the collector next looks
    try:
        await encoder.catalog.unload("b")
        assert [each() for each in left] == [None, None]
    finally:
        gc.enable()
    for thread in threads:
        await asyncio.to_thread(thread.join, 30)
        assert not thread.is_alive()
    assert str(store / "b") not in Path("/proc/self/maps").read_text()
    assert str(store / "a") in Path("/proc/self/maps").read_text()
    await vector(encoder)


# ---- the trial

WHOLE = [(case, export_seen) for case in seen()] + [(case, None) for case in cases("input_layer")]


@pytest.mark.parametrize(("case", "exports"), WHOLE, ids=lambda each: getattr(each, "name", ""))
async def test_every_family_passes_its_trial(case: Case, exports: Any, tmp_path: Path) -> None:
    source = tmp_path / "checkpoint"
    if exports:
        exports(case, source, tmp_path / "store/m")
    else:
        export(write_checkpoint(case, source), tmp_path / "store/m")
    await trial.passes(opened(tmp_path / "store").catalog.models["m"])


async def test_a_graph_that_fails_does_not_pass(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = opened(store, models=("a",)).catalog.models["a"]

    def fail(*_: Any) -> Any:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(tried.engine, "run", fail)
    with pytest.raises(StartError, match=r"a fails on its first token: .*no kernel.*export it again") as refusal:
        await trial.passes(tried)
    assert isinstance(refusal.value.__cause__, EngineFailure)
