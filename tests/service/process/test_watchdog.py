"""The watchdog ends a process whose event loop hangs, and leaves a busy one alone."""

import asyncio
import subprocess
import sys
import threading

from service.process.watchdog import EXIT_CODE, Watchdog


async def test_running_loop_is_left_alone():
    ended = threading.Event()
    watchdog = Watchdog(0.2, lambda still: ended.set())
    watchdog.start()
    await asyncio.to_thread(ended.wait, 0.5)
    watchdog.stop()
    assert not ended.is_set()


async def test_hanging_loop_is_noticed():
    ended = threading.Event()
    watchdog = Watchdog(0.1, lambda still: ended.set())
    watchdog.start()
    assert ended.wait(10)  # on the loop itself: it stands still meanwhile
    watchdog.stop()


def test_process_ends_and_logs_every_stack():
    code = (
        "import asyncio, threading\nfrom service.process.watchdog import Watchdog\n"
        "async def main():\n    Watchdog(0.1).start()\n    threading.Event().wait(50)\nasyncio.run(main())"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == EXIT_CODE
    assert "threading.py" in ended.stderr
    assert "stood still" in ended.stderr


def test_process_ends_when_no_thread_can_start():
    code = (
        "import asyncio, threading\nfrom service.process.watchdog import Watchdog\n"
        "def full(self): raise RuntimeError('no thread left')\n"
        "async def main():\n    Watchdog(0.1).start()\n    threading.Thread.start = full\n"
        "    threading.Event().wait(50)\nasyncio.run(main())"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == EXIT_CODE


async def test_paused_process_is_given_time_to_go_on(monkeypatch):
    now = iter([0.0, 0.0, 0.0, 100.0, 100.0, 100.01, 100.02, 100.02, *[100.05] * 1000])
    ended, looked = threading.Event(), threading.Event()

    class Waits:
        turns = 0

        def wait(self, seconds: float) -> bool:
            self.turns += 1
            if self.turns > 3:
                looked.set()
            return self.turns > 3

        def is_set(self) -> bool:
            return True

    monkeypatch.setattr("service.process.watchdog.monotonic", lambda: next(now))
    watchdog = Watchdog(1.0, lambda still: ended.set(), Waits())
    watchdog.start()
    assert await asyncio.to_thread(looked.wait, 10)
    assert not ended.is_set()
