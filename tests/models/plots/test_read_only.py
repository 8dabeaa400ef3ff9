"""Pictures where the file system is read-only, as in a container without a temporary folder."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SCRIPT = """
import errno, os, sys
from models.errors import NoWritableFolder
from models.plots import Subject, draw
from models.positions import alibi

writable = tuple(sys.argv[1:])

def refuse(event, arguments):
    writes = event == "os.mkdir" or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    if writes and not str(arguments[0]).startswith((*writable, "/dev/null")):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

sys.addaudithook(refuse)
try:
    print(draw(None, [Subject(alibi.tabulate(4, query_length=8))], format="png")[:4])
except NoWritableFolder as error:
    print(error)
"""


def drawn(*writable: str) -> str:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"}
    command = [sys.executable, "-c", SCRIPT, *writable]
    ended = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout.strip()


def test_machine_without_a_writable_folder_is_told() -> None:
    assert "mount one at /tmp, or name one with MPLCONFIGDIR" in drawn("/nowhere/")
