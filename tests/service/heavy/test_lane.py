"""The heavy lane does work in a process of its own, and its limits end nothing else."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.errors import BodyTooLarge, InlayError, OutOfRange, Overloaded, Unavailable
from service.heavy import lane as lane_module
from service.heavy.lane import HeavyLane
from service.request_context import CURRENT_CALL, RequestContext
from tests.service.heavy import tasks

MEMORY_BYTES = 256 * 2**20


@pytest.fixture
def lane() -> Iterator[HeavyLane]:
    opened = HeavyLane(1, MEMORY_BYTES, 60.0)
    yield opened
    opened.close()


def in_lane(lane: HeavyLane, function: Callable[..., Any], *arguments: Any) -> Any:
    return asyncio.run(lane.run(function, *arguments))


def test_one_process_beside_this_one_does_every_task(lane: HeavyLane) -> None:
    first, second = [in_lane(lane, tasks.process_number) for _ in range(2)]
    assert first == second != os.getpid()


def test_threads_do_the_work_without_processes() -> None:
    assert in_lane(HeavyLane(0, MEMORY_BYTES, 60.0), tasks.process_number) == os.getpid()


def test_arrays_and_texts_come_back_as_they_went(lane: HeavyLane) -> None:
    rows = np.arange(2**20, dtype=np.float32).reshape(-1, 4)
    doubled = in_lane(lane, tasks.doubled, rows)
    assert doubled.flags.writeable
    np.testing.assert_array_equal(doubled, rows * 2)
    nested = [{"a": (b"\x00" * 2**20, "é" * 2**16)}, None, rows[:3], rows[:0]]
    np.testing.assert_equal(in_lane(lane, tasks.echoed, nested), nested)


def test_errors_of_callers_come_back_as_themselves(lane: HeavyLane) -> None:
    with pytest.raises(OutOfRange) as caught:
        in_lane(lane, tasks.refused, 7)
    error = caught.value
    assert error.message == "inputs[3] is 7; it is below 5: send less"
    assert (error.index, error.code) == (3, "out_of_range")


def test_faults_show_where_they_happened(lane: HeavyLane) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        in_lane(lane, tasks.faulty)
    assert "in faulty" in caught.value.__notes__[0]
    with pytest.raises(EOFError, match="a file's end"):
        in_lane(lane, tasks.without_end)
    with pytest.raises(RuntimeError, match="cannot be sent"):
        in_lane(lane, tasks.unsendable)


@pytest.mark.parametrize(
    ("function", "arguments", "error", "words"),
    [
        (tasks.greedy, (b"12345", 2**30), BodyTooLarge, r"request of \d+ bytes takes more memory"),
        (tasks.greedy_result, (2**29,), BodyTooLarge, "INLAY_HEAVY_MEMORY_BYTES"),
        (tasks.die, (signal.SIGKILL,), Unavailable, "exit code -9.*try again"),
        (tasks.die, (signal.SIGSEGV,), Unavailable, "exit code -11"),
    ],
)
def test_another_process_follows_one_that_ended(
    lane: HeavyLane, function: Callable[..., Any], arguments: tuple[Any, ...], error: type[InlayError], words: str
) -> None:
    first = in_lane(lane, tasks.process_number)
    with pytest.raises(error, match=words):
        in_lane(lane, function, *arguments)
    assert in_lane(lane, tasks.process_number) != first
    assert lane.ended == 1


def test_a_task_that_takes_too_long_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    lane = HeavyLane(1, MEMORY_BYTES, 0.5)
    with pytest.raises(Unavailable, match=r"this request of \d+ bytes takes more than 0\.5 s"):
        in_lane(lane, tasks.endless, b"12345")
    assert f"exit code {-signal.SIGXCPU}) in endless of" in caplog.text
    lane.close()


def test_a_process_that_ended_when_idle_is_no_error(lane: HeavyLane) -> None:
    first = in_lane(lane, tasks.process_number)
    for _ in range(2):  # it ends after the second answer, since this stays allocated
        in_lane(lane, tasks.kept, MEMORY_BYTES * 3 // 4)
    assert in_lane(lane, tasks.process_number) != first
    assert lane.ended == 0


def test_callers_take_turns(lane: HeavyLane, tmp_path: Path) -> None:
    gate, log = tmp_path / "gate", tmp_path / "log"

    async def caller(name: str, task: str) -> None:
        context = RequestContext()
        context.caller = name
        CURRENT_CALL.set(context)
        await lane.run(tasks.wait_for, gate, task, log)

    async def all_callers() -> None:
        begun = [asyncio.create_task(caller("a", f"a{number}")) for number in range(4)]
        begun.append(asyncio.create_task(caller("b", "b0")))
        await asyncio.sleep(0)
        left = asyncio.create_task(caller("a", "left"))
        await asyncio.sleep(0)
        left.cancel()
        gate.touch()
        await asyncio.gather(*begun)

    asyncio.run(all_callers())
    order = log.read_text().split()
    assert sorted(order) == ["a0", "a1", "a2", "a3", "b0"]
    assert order.index("b0") <= 2  # the first may have begun before b's came


def test_no_callers_can_fill_the_lane(lane: HeavyLane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "MAX_WAITING", 2)
    gate, log = tmp_path / "gate", tmp_path / "log"

    async def flood() -> list[object]:
        begun = []
        for caller in "aaaabbbbccccddddeeeef":
            context = RequestContext()
            context.caller = caller
            CURRENT_CALL.set(context)
            begun.append(asyncio.create_task(lane.run(tasks.wait_for, gate, caller, log)))
        await asyncio.sleep(0)
        gate.touch()
        return await asyncio.gather(*begun, return_exceptions=True)

    *floods, last = asyncio.run(flood())
    assert sum(isinstance(answer, Overloaded) for answer in floods) >= 5
    assert last is None


def test_the_process_ends_with_its_parent() -> None:
    program = (
        "import asyncio, os\n"
        "from service.heavy.lane import HeavyLane\n"
        "from tests.service.heavy import tasks\n"
        "lane = HeavyLane(1, 2**28, 60.0)\n"
        "async def end():\n"
        "    await lane.run(tasks.process_number)\n"
        "    asyncio.create_task(lane.run(tasks.endless, b''))\n"
        "    await asyncio.sleep(0.1)\n"
        "    os._exit(0)\n"
        "asyncio.run(end())\n"
    )
    subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True, timeout=60)  # until both ended
