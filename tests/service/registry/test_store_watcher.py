"""Complete folders of a watched store are loaded, removed ones unloaded, and broken ones leave the old version."""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.artifacts import card as cards
from models.errors import BadCard
from service.errors import BadRequest, NotFound
from service.registry import registry
from service.registry.store_watcher import StoreWatcher
from tests.service.registry.registry_service import Service, fresh_vector, write


class Watched(Service):
    """A service and the watcher of its store."""

    def __init__(self, store: Path, **changes: Any) -> None:
        super().__init__(store, **changes)
        self.watcher = StoreWatcher(self.registry, store, changes.get("models", ()))

    async def poll(self, times: int = 2) -> None:
        for _ in range(times):
            await self.watcher.poll()


def watched_loads(store: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], Watched]:
    """Return a service, and a list of the names of the folders that it opens from now on."""
    names: list[str] = []
    load = registry.load_model

    def recorded(folder: Path, **arguments: Any) -> Any:
        names.append(folder.name)
        return load(folder, **arguments)

    monkeypatch.setattr(registry, "load_model", recorded)
    service = Watched(store)
    names.clear()
    return names, service


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write(tmp_path / "store", "a")
    return tmp_path / "store"


@pytest.fixture
def other(tmp_path: Path, store: Path) -> Path:
    """A version with other weights, outside the store."""
    write(tmp_path / "versions", "other", seed=1)
    return tmp_path / "versions/other"


def replace(version: Path, target: Path) -> None:
    """Replace a folder by renaming, with a moment in which there is none."""
    fresh = target.with_name(".fresh")
    shutil.copytree(version, fresh)
    shutil.rmtree(target)
    fresh.rename(target)


# ---- new, replaced and removed folders


async def test_unchanged_store_opens_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads, service = watched_loads(store, monkeypatch)
    served = service.registry.models["a"]
    await service.poll(4)
    assert loads == []
    assert service.registry.models["a"] is served


async def test_new_folder_is_served_once_it_stays_the_same(store: Path) -> None:
    service = Watched(store)
    await service.poll()
    write(store, "late", seed=1)
    await service.poll(1)
    assert list(service.registry.models) == ["a"]
    await service.poll(1)
    assert await service.vector("late") != await service.vector("a")


async def test_replaced_folder_is_served(store: Path, other: Path) -> None:
    service = Watched(store)
    before = await service.vector()
    await service.poll()
    replace(other, store / "a")
    await service.poll()
    assert await service.vector() == await fresh_vector(other.parent, "other") != before
    assert service.registry.states() == [("a", True, "")]


async def test_folder_replaced_before_the_first_poll_is_served(store: Path, other: Path) -> None:
    service = Watched(store)
    before = await service.vector()
    replace(other, store / "a")
    await service.poll()
    assert await service.vector() != before


async def test_removed_folder_is_unloaded_after_two_polls(store: Path) -> None:
    write(store, "b")
    service = Watched(store)
    await service.poll()
    shutil.rmtree(store / "b")
    await service.poll(1)
    assert list(service.registry.models) == ["a", "b"]  # it may be about to be replaced
    await service.poll(1)
    assert list(service.registry.models) == ["a"]
    write(store, "b")
    await service.poll()
    assert list(service.registry.models) == ["a", "b"]


async def test_touched_or_copied_folder_is_not_opened_again(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, service = watched_loads(store, monkeypatch)
    await service.poll()
    os.utime(store / "a" / cards.FILE_NAME, (1, 1))
    await service.poll()
    shutil.copytree(store / "a", tmp_path / "copy")
    replace(tmp_path / "copy", store / "a")
    await service.poll()
    assert loads == []


async def test_dangling_link_unloads_nothing(store: Path) -> None:
    service = Watched(store)
    await service.poll()
    (store / "a/notes").symlink_to("nowhere")
    await service.poll(4)
    assert list(service.registry.models) == ["a"]


# ---- incomplete and broken folders


@pytest.mark.parametrize("last", [cards.FILE_NAME, "weights.safetensors"])
async def test_folder_is_not_opened_while_it_is_copied(
    last: str, store: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, service = watched_loads(store, monkeypatch)
    await service.poll()
    names = sorted((path.name for path in other.iterdir()), key=lambda name: name == last)
    (store / "b").mkdir()
    for name in names[:-1]:
        shutil.copyfile(other / name, store / "b" / name)
        await service.poll(1)
    data = (other / last).read_bytes()
    for end in (len(data) // 3, len(data) // 2, len(data)):
        (store / "b" / last).write_bytes(data[:end])
        await service.poll(1)
    assert loads == []
    await service.poll(1)
    assert loads == ["b"]
    assert service.registry.states()[1] == ("b", True, "")


def cut(folder: Path) -> None:
    os.truncate(folder / "weights.safetensors", 100)


def mix(folder: Path) -> None:
    """Weights of another export, of the same size."""
    path = folder / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")


def spoil(folder: Path) -> None:
    (folder / cards.FILE_NAME).write_text("{}")


BROKEN: list[tuple[Callable[[Path], None], str]] = [
    (cut, "weights.safetensors has 100 bytes where its card promises"),
    (mix, "weights.safetensors is not the file its card was written for"),
    (spoil, "is not a card this version reads"),
]


@pytest.mark.parametrize(("harm", "said"), BROKEN, ids=lambda each: getattr(each, "__name__", ""))
async def test_broken_version_keeps_the_old_one_and_is_logged_once(
    harm: Callable[[Path], None], said: str, store: Path, other: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Watched(store)
    before = await service.vector()
    await service.poll()
    replace(other, store / "a")
    harm(store / "a")
    with caplog.at_level(logging.WARNING):
        await service.poll(6)
    assert [said in each.message for each in caplog.records] == [True]
    assert await service.vector() == before
    (state,) = service.registry.states()
    assert state.ready
    assert said in state.reason
    replace(other, store / "a")
    await service.poll()
    assert await service.vector() != before
    assert service.registry.states() == [("a", True, "")]


async def test_restored_version_clears_the_reason_and_opens_nothing(
    store: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, service = watched_loads(store, monkeypatch)
    shutil.copytree(store / "a", tmp_path / "old")
    replace(other, store / "a")
    cut(store / "a")
    await service.poll()
    assert service.registry.states()[0].reason
    loads.clear()
    replace(tmp_path / "old", store / "a")
    await service.poll()
    assert (loads, service.registry.states()) == ([], [("a", True, "")])


async def test_lost_store_unloads_nothing_and_is_logged_once(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    service = Watched(store)
    await service.poll()
    for lost in (store, store / "a"):
        aside = store.parent / "aside"
        lost.rename(aside)
        with caplog.at_level(logging.WARNING):
            await service.poll(4)
        assert ["the store holds no model" in each.message for each in caplog.records] == [True]
        assert list(service.registry.models) == ["a"]
        aside.rename(lost)
        await service.poll()
        caplog.clear()
    await service.vector()


async def test_broken_model_is_left_out_at_the_start_too(store: Path) -> None:
    """A service that starts with the store meets what a running one does; a model that the settings name is needed."""
    write(store, "b", seed=1)
    sound = (store / "b/card.json").read_bytes()
    (store / "b/card.json").write_text("{")
    service = Watched(store, watch_store=1)
    assert list(service.registry.models) == ["a"]
    (state,) = [state for state in service.registry.states() if state.name == "b"]
    assert state.reason.startswith("the store's version cannot be loaded: b/card.json is not a card")
    (store / "b/card.json").write_bytes(sound)
    await service.poll()
    assert await service.vector("b")
    (store / "b/card.json").write_text("{")
    for settings in ({"watch_store": 1, "models": ("a", "b")}, {"watch_store": 1, "default_model": "b"}, {}):
        with pytest.raises(BadCard):
            Watched(store, **settings)


# ---- which models


async def test_models_outside_the_configured_set_are_not_loaded(store: Path) -> None:
    service = Watched(store, models=("a",))
    await service.poll()
    write(store, "b")
    await service.poll()
    assert list(service.registry.models) == ["a"]


async def test_added_model_changes_the_default_as_a_restart_does(store: Path) -> None:
    service = Watched(store)
    await service.poll()
    assert await service.vector(None) == await service.vector("a")
    write(store, "b", seed=1)
    await service.poll()
    for running in (service, Watched(store)):
        with pytest.raises(BadRequest, match=r"several models .* set INLAY_DEFAULT_MODEL"):
            await running.vector(None)
    shutil.rmtree(store / "b")
    await service.poll()
    assert await service.vector(None) == await service.vector("a")


async def test_model_stays_unloaded_until_its_folder_changes(store: Path) -> None:
    write(store, "b")
    service = Watched(store)
    await service.registry.unload("b")
    await service.poll(4)
    with pytest.raises(NotFound):
        await service.vector("b")
    assert service.registry.states()[1] == ("b", False, "unloaded")
    write(store, "b", seed=1)
    await service.poll()
    await service.vector("b")
