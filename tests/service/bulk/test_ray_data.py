"""What computes parts for a driver on the same machine ends with it, also if the driver is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from select import select

ACTOR = """
import sys
from pathlib import Path
from service.bulk.ray_data import end_with

end_with(int(sys.argv[1]))
print("ready", flush=True)
for number in range(10**9):
    Path(sys.argv[2], str(number % 8)).write_text(str(number))
"""
DRIVER = """
import os, subprocess, sys

actor = subprocess.Popen(
    [sys.executable, "-c", sys.argv[1], str(os.getpid()), sys.argv[2]], stdout=subprocess.PIPE, start_new_session=True
)
assert actor.stdout.readline() == b"ready\\n"
print(actor.pid, flush=True)
actor.wait()
"""


def test_a_killed_drivers_actor_writes_nothing_more(tmp_path: Path) -> None:
    """The actor is in a session of its own and no child that the system would end, as Ray's are."""
    command = [sys.executable, "-c", DRIVER, ACTOR, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        actor = int(driver.stdout.readline())
        handle = os.pidfd_open(actor)
        try:
            driver.kill()
            assert select([handle], [], [], 60)[0] == [handle]
        finally:
            if not select([handle], [], [], 0)[0]:
                os.kill(actor, signal.SIGKILL)
            os.close(handle)
