"""Workers that move models together: all of them, in one order, and none is forgotten."""

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from service.errors import BadRequest, InlayError, Unavailable
from service.process.worker_control import Crew

Moves = dict[str, Callable[[str], Awaitable[None]]]
Joins = Callable[..., Crew]


@pytest.fixture
def joins(tmp_path: Path) -> Iterator[Joins]:
    """A worker of that name joins; all leave at the end."""
    with ExitStack() as stack:

        def join(*arguments: Any) -> Crew:
            return stack.enter_context(closing(Crew(tmp_path, *arguments)))

        yield join


def noting(done: list[str], fault: str = "") -> Moves:
    async def move(verb: str, name: str) -> None:
        done.append(f"{verb} {name}")
        if fault:
            raise BadRequest(fault)

    return {verb: lambda name, verb=verb: move(verb, name) for verb in ("load", "unload")}  # type: ignore[misc]


def lists(number: int) -> list[list[str]]:
    return [[] for _ in range(number)]


class Ticks:
    """A second for each time it is asked."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


async def together(
    asked: Awaitable[None], crews: list[tuple[Crew, dict[str, Callable[[str], Awaitable[None]]]]]
) -> None:
    """Await what was asked while every worker looks."""
    following = [asyncio.create_task(crew.run(fulfil)) for crew, fulfil in crews]
    try:
        await asked
    finally:
        for each in following:
            each.cancel()


async def test_all_workers_do_what_one_is_asked_for(joins: Joins) -> None:
    crews, done = [joins(worker) for worker in "xyz"], lists(3)
    pairs = [(crew, noting(own)) for crew, own in zip(crews, done, strict=True)]
    await together(crews[1].ask("load", "a"), pairs)
    await together(crews[2].ask("unload", "a"), pairs)
    assert done == [["load a", "unload a"]] * 3


async def test_what_many_ask_for_at_once_is_done_in_one_order_by_all(joins: Joins) -> None:
    crews, done = [joins(worker) for worker in "xy"], lists(2)
    pairs = [(crew, noting(own)) for crew, own in zip(crews, done, strict=True)]
    asked = asyncio.gather(*[crew.ask("load", f"{crew.worker}{each}") for each in range(20) for crew in crews])
    await together(asked, pairs)
    assert done[0] == done[1]
    assert len(set(done[0])) == 40


async def test_who_failed_is_named_and_why(joins: Joins) -> None:
    good, bad = joins("good"), joins("bad")
    with pytest.raises(BadRequest, match="load of a failed in 1 of 2 workers, which now differ: worker bad: no room"):
        await together(good.ask("load", "a"), [(good, noting([])), (bad, noting([], "no room"))])


async def test_what_all_refuse_alike_is_said_once(joins: Joins) -> None:
    crews = [joins(worker) for worker in "xy"]
    with pytest.raises(BadRequest, match=r"^cut short$"):
        await together(crews[0].ask("load", "a"), [(crew, noting([], "cut short")) for crew in crews])
    assert crews[0].agreed() == {}


async def test_a_worker_that_ended_is_not_waited_for(joins: Joins) -> None:
    alive, dead = joins("alive"), joins("dead")
    dead.close()
    await together(alive.ask("load", "a"), [(alive, noting([]))])


async def test_a_worker_that_does_not_answer_is_named(joins: Joins) -> None:
    alive, _ = joins("alive", Ticks()), joins("still")
    with pytest.raises(Unavailable, match="load of a: no word from worker still within 2 s"):
        await together(alive.ask("load", "a", seconds=2), [(alive, noting([]))])


async def test_who_joins_later_begins_with_what_was_agreed_and_does_only_what_is_new(joins: Joins) -> None:
    first = joins("first")
    for verb, name in (("load", "a"), ("unload", "b"), ("unload", "a"), ("load", "c")):
        await together(first.ask(verb, name), [(first, noting([]))])  # type: ignore[arg-type]
    with pytest.raises(BadRequest):
        await together(first.ask("load", "a"), [(first, noting([], "broken"))])
    late, (done,) = joins("late"), lists(1)
    assert late.agreed() == first.agreed() == {"b": "unload", "a": "unload", "c": "load"}
    late.look(noting(done))
    assert done == []
    await together(first.ask("load", "b"), [(first, noting([])), (late, noting(done))])
    assert done == ["load b"]


async def test_who_joins_during_a_load_is_not_waited_for_since_it_reads_the_store_afterwards(joins: Joins) -> None:
    first = joins("first", Ticks())
    asked = asyncio.create_task(first.ask("load", "a", seconds=1000))
    await asyncio.sleep(0)
    joins("late")
    await together(asked, [(first, noting([]))])


async def test_a_line_cut_short_by_a_full_disk_spoils_no_other(joins: Joins, tmp_path: Path) -> None:
    first, (done,) = joins("first"), lists(1)
    with (tmp_path / "motions").open("ab") as journal:
        journal.write(b'\n{"wish": ["fir')
    await together(first.ask("load", "a"), [(first, noting(done))])
    assert done == ["load a"]


def test_every_worker_has_the_default_model_of_the_first(joins: Joins) -> None:
    first, second = joins("first"), joins("second")
    assert not first.moved_on
    assert (first.default("a"), second.default("b")) == ("a", "a")
    assert second.moved_on


def test_no_default_is_no_default_for_all(joins: Joins) -> None:
    assert (joins("first").default(None), joins("second").default("b")) == (None, None)


# ---- a system that refuses for a while


class Refusing:
    """In the place of a call of the system's: fails as with too many open files, `times` times, for a matching path."""

    def __init__(self, call: Callable[..., Any], part: str, times: int) -> None:
        self.call = call
        self.part = part
        self.times = times

    def __call__(self, path: Any, *arguments: Any, **named: Any) -> Any:
        if self.part in str(path) and self.times:
            self.times -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return self.call(path, *arguments, **named)


def refuse(patch: pytest.MonkeyPatch, owner: Any, name: str, part: str, times: int) -> Refusing:
    refusing = Refusing(getattr(owner, name), part, times)
    patch.setattr(owner, name, lambda *given, **named: refusing(*given, **named))
    return refusing


async def test_a_worker_that_cannot_read_for_a_while_goes_on_where_it_was_and_says_so_once(
    joins: Joins, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    crews, done = [joins(worker) for worker in "xy"], lists(2)
    pairs = [(crew, noting(own)) for crew, own in zip(crews, done, strict=True)]
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        refusing = refuse(patch, Path, "open", "motions", times=4)
        await together(crews[0].ask("load", "a"), pairs)
    assert refusing.times == 0
    assert done == [["load a"], ["load a"]]
    assert 1 <= len(caplog.records) <= 2  # a line a worker that met it
    assert "cannot be read now" in caplog.text


async def test_what_was_done_is_told_though_writing_fails_at_first(
    joins: Joins, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    crew, (done,) = joins("x"), lists(1)
    asked = asyncio.create_task(crew.ask("load", "a"))
    await asyncio.sleep(0)  # it is written
    with monkeypatch.context() as patch:
        refusing = refuse(patch, os, "open", "motions", times=3)
        await together(asked, [(crew, noting(done))])
    assert (refusing.times, done) == (0, ["load a"])
    assert [each.levelno for each in caplog.records] == [logging.ERROR]
    assert "cannot be written now" in caplog.text


async def test_a_line_that_a_full_disk_cut_short_is_written_again(
    joins: Joins, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew, (done,), write, left = joins("x"), lists(1), os.write, [10, 30, 0]

    def cut(descriptor: int, data: bytes) -> int:
        return write(descriptor, data[: (left and left.pop()) or len(data)])

    asked = asyncio.create_task(crew.ask("load", "a"))
    await asyncio.sleep(0)
    with monkeypatch.context() as patch:
        left.pop()
        patch.setattr(os, "write", cut)
        await together(asked, [(crew, noting(done))])
    assert (left, done) == ([], ["load a"])
    assert crew.agreed() == {"a": "load"}


async def test_a_wish_that_cannot_be_written_is_refused_with_its_reason(
    joins: Joins, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = joins("x")
    with monkeypatch.context() as patch:
        refuse(patch, os, "open", "motions", times=1)
        with pytest.raises(Unavailable, match=r"load of a .* Too many open files: ask again") as refusal:
            await crew.ask("load", "a")
    assert isinstance(refusal.value, InlayError)
    assert "motions" not in str(refusal.value)


@pytest.mark.parametrize(("owner", "name", "part"), [(os, "scandir", "/"), (Path, "open", "worker-y")])
async def test_an_answer_waits_while_nobody_can_tell_who_lives(
    owner: Any, name: str, part: str, joins: Joins, monkeypatch: pytest.MonkeyPatch
) -> None:
    crews, done = [joins(worker) for worker in "xy"], lists(2)
    with monkeypatch.context() as patch:
        refusing = refuse(patch, owner, name, part, times=2)
        await together(crews[0].ask("load", "a"), [(crew, noting(own)) for crew, own in zip(crews, done, strict=True)])
    assert refusing.times == 0
    assert done == [["load a"], ["load a"]]
