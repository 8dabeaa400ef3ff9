"""A loop that stands still ends its process; one that only works does not."""

import asyncio
import subprocess
import sys
import threading

from service.pulse import EXIT_CODE, Pulse


async def test_a_loop_that_turns_is_left_alone():
    ended = threading.Event()
    pulse = Pulse(0.2, lambda still: ended.set())
    pulse.start()
    await asyncio.to_thread(ended.wait, 0.5)
    pulse.stop()
    assert not ended.is_set()


async def test_a_loop_that_stands_still_is_noticed_from_outside():
    ended = threading.Event()
    pulse = Pulse(0.1, lambda still: ended.set())
    pulse.start()
    assert ended.wait(10)  # on the loop itself: it stands still meanwhile
    pulse.stop()


def test_the_process_ends_and_says_where_it_stood():
    code = (
        "import asyncio, threading\nfrom service.pulse import Pulse\n"
        "async def main():\n    Pulse(0.1).start()\n    threading.Event().wait(20)\nasyncio.run(main())"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=15, check=False)
    assert ended.returncode == EXIT_CODE
    assert "threading.py" in ended.stderr
    assert "stood still" in ended.stderr
