"""Runs the scripts of docs/examples as their pages say: by Python, with arguments, from a folder."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs/examples"
SECONDS = 120


def run(script: str, *arguments: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run a script of docs/examples by this Python; return what it printed and its exit status."""
    return subprocess.run(
        [sys.executable, EXAMPLES / script, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"NO_PROXY": "localhost,127.0.0.1", "no_proxy": "localhost,127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
