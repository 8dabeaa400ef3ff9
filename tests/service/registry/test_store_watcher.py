"""The store is followed while it is served: what came whole is served, what went is let go, what is broken is not."""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.artifacts import card as cards
from models.artifacts.export import export
from service.embedding.pipeline import Encoder
from service.embedding.requests import EmbedRequest, Text
from service.errors import NotFound
from service.observability.metrics import Metrics
from service.registry.registry import open_catalog
from service.registry.store_watcher import Watch
from service.settings import Settings
from tests.golden_cases import write_tiny_bert


def write(store: Path, name: str, seed: int = 0) -> None:
    """A sentence encoder whose weights the seed decides, exported to the store or over what is there."""
    export(write_tiny_bert(store.parent / f"checkpoint-{seed}", pooling="mean", seed=seed), store / name)


class Service:
    """An encoder and the watch of its store."""

    def __init__(self, store: Path, **changes: Any) -> None:
        settings = Settings(store=store, device="cpu", **changes)
        self.encoder = Encoder(open_catalog(settings, Metrics()), settings)
        self.catalog = self.encoder.catalog
        self.watch = Watch(self.catalog, store, settings.models)

    async def look(self, times: int = 2) -> None:
        for _ in range(times):
            await self.watch.look()

    async def vector(self, name: str | None = "a") -> bytes:
        (output,) = (await self.encoder.embed(EmbedRequest([Text("hello world")], name))).outputs
        return output.rows.tobytes()

    def loads(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The names of the folders that are opened from now on."""
        found: list[str] = []
        opens = self.catalog._opens

        def opened(folder: Path) -> Any:
            found.append(folder.name)
            return opens(folder)

        monkeypatch.setattr(self.catalog, "_opens", opened)
        return found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write(tmp_path / "store", "a")
    return tmp_path / "store"


@pytest.fixture
def other(tmp_path: Path, store: Path) -> Path:
    """A version of other weights, outside of the store."""
    write(tmp_path / "versions", "other", seed=1)
    return tmp_path / "versions/other"


def exchange(version: Path, target: Path) -> None:
    """By renames, with a moment in which nothing is there."""
    fresh = target.with_name(".fresh")
    shutil.copytree(version, fresh)
    shutil.rmtree(target)
    fresh.rename(target)


# ---- what came, was exchanged, went


async def test_a_store_that_is_still_opens_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(store)
    loads, served = service.loads(monkeypatch), service.catalog.models["a"]
    await service.look(4)
    assert loads == []
    assert service.catalog.models["a"] is served


async def test_a_new_folder_is_served_once_it_has_come_to_rest(store: Path) -> None:
    service = Service(store)
    await service.look()
    write(store, "late", seed=1)
    await service.look(1)
    assert list(service.catalog.models) == ["a"]
    await service.look(1)
    assert await service.vector("late") != await service.vector("a")


async def test_an_exchanged_folder_is_served_in_the_place_of_the_old_one(store: Path, other: Path) -> None:
    service = Service(store)
    before = await service.vector()
    await service.look()
    exchange(other, store / "a")
    await service.look()
    assert await service.vector() == await Service(other.parent).vector("other") != before
    assert service.catalog.states() == [("a", True, "")]


async def test_a_folder_exchanged_before_the_first_look_is_found(store: Path, other: Path) -> None:
    service = Service(store)
    before = await service.vector()
    exchange(other, store / "a")
    await service.look()
    assert await service.vector() != before


async def test_a_removed_folder_is_unloaded_after_two_looks(store: Path) -> None:
    write(store, "b")
    service = Service(store)
    await service.look()
    shutil.rmtree(store / "b")
    await service.look(1)
    assert list(service.catalog.models) == ["a", "b"]  # it may be on its way to be exchanged
    await service.look(1)
    assert list(service.catalog.models) == ["a"]
    write(store, "b")
    await service.look()
    assert list(service.catalog.models) == ["a", "b"]


async def test_a_folder_that_is_only_touched_or_copied_is_not_opened_again(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(store)
    loads = service.loads(monkeypatch)
    await service.look()
    os.utime(store / "a" / cards.FILE_NAME, (1, 1))
    await service.look()
    shutil.copytree(store / "a", tmp_path / "copy")
    exchange(tmp_path / "copy", store / "a")
    await service.look()
    assert loads == []


async def test_a_link_that_leads_nowhere_unloads_nothing(store: Path) -> None:
    service = Service(store)
    await service.look()
    (store / "a/notes").symlink_to("nowhere")
    await service.look(4)
    assert list(service.catalog.models) == ["a"]


# ---- what is not served


@pytest.mark.parametrize("last", [cards.FILE_NAME, "weights.safetensors"])
async def test_a_folder_is_not_opened_while_it_is_copied(
    last: str, store: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(store)
    loads = service.loads(monkeypatch)
    await service.look()
    names = sorted((path.name for path in other.iterdir()), key=lambda name: name == last)
    (store / "b").mkdir()
    for name in names[:-1]:
        shutil.copyfile(other / name, store / "b" / name)
        await service.look(1)
    data = (other / last).read_bytes()
    for end in (len(data) // 3, len(data) // 2, len(data)):
        (store / "b" / last).write_bytes(data[:end])
        await service.look(1)
    assert loads == []
    await service.look(1)
    assert loads == ["b"]
    assert service.catalog.states()[1] == ("b", True, "")


def cut(folder: Path) -> None:
    os.truncate(folder / "weights.safetensors", 100)


def mix(folder: Path) -> None:
    """Weights of another export, of the same size."""
    path = folder / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")


def take(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def spoil(folder: Path) -> None:
    (folder / cards.FILE_NAME).write_text("{}")


BROKEN: list[tuple[Callable[[Path], None], str]] = [
    (cut, "weights.safetensors has 100 bytes where its card promises"),
    (mix, "weights.safetensors is not the file its card was written for"),
    (take, "tokenizer.json is missing"),
    (spoil, "is not a card this version reads"),
]


@pytest.mark.parametrize(("harm", "said"), BROKEN, ids=lambda each: getattr(each, "__name__", ""))
async def test_a_broken_version_leaves_the_old_one_serving_and_is_told_once(
    harm: Callable[[Path], None], said: str, store: Path, other: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(store)
    before = await service.vector()
    await service.look()
    exchange(other, store / "a")
    harm(store / "a")
    with caplog.at_level(logging.WARNING):
        await service.look(6)
    assert [said in each.message for each in caplog.records] == [True]
    assert await service.vector() == before
    (state,) = service.catalog.states()
    assert state.ready
    assert said in state.reason
    exchange(other, store / "a")
    await service.look()
    assert await service.vector() != before
    assert service.catalog.states() == [("a", True, "")]


async def test_the_old_version_put_back_clears_the_reason_and_opens_nothing(
    store: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(store)
    shutil.copytree(store / "a", tmp_path / "old")
    exchange(other, store / "a")
    cut(store / "a")
    await service.look()
    assert service.catalog.states()[0].reason
    loads = service.loads(monkeypatch)
    exchange(tmp_path / "old", store / "a")
    await service.look()
    assert (loads, service.catalog.states()) == ([], [("a", True, "")])


async def test_a_store_that_is_lost_unloads_nothing_and_is_told_once(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(store)
    await service.look()
    for lost, said in ((store, "cannot be read"), (store / "a", "holds no model")):
        aside = store.parent / "aside"
        lost.rename(aside)
        with caplog.at_level(logging.WARNING):
            await service.look(4)
        assert [said in each.message for each in caplog.records] == [True]
        assert list(service.catalog.models) == ["a"]
        aside.rename(lost)
        await service.look()
        caplog.clear()
    await service.vector()


# ---- which of them


async def test_of_a_fixed_set_of_models_no_other_is_loaded(store: Path) -> None:
    service = Service(store, models=("a",))
    await service.look()
    write(store, "b")
    await service.look()
    assert list(service.catalog.models) == ["a"]


async def test_the_default_stays_what_it_was_whatever_comes(store: Path) -> None:
    service = Service(store)
    await service.look()
    write(store, "b", seed=1)
    await service.look()
    assert await service.vector(None) == await service.vector("a") != await service.vector("b")


async def test_what_was_unloaded_on_request_stays_so_until_its_folder_changes(store: Path) -> None:
    write(store, "b")
    service = Service(store)
    await service.catalog.unload("b")
    await service.look(4)
    with pytest.raises(NotFound):
        await service.vector("b")
    assert service.catalog.states()[1] == ("b", False, "unloaded")
    write(store, "b", seed=1)
    await service.look()
    await service.vector("b")
