"""The command `inlay`, which pyproject.toml installs."""

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = str(Path(__file__).parents[2])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    if sys.path[:1] != [ROOT]:
        sys.path.insert(0, ROOT)  # before proto-plus, which comes with Ray and calls its package `proto` too
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words == ["health"]:  # a container runs it every few seconds: spare it the 0.1 s that typer takes to import
        from service.cli.health import check

        return check()
    from service.cli.application import run

    return run(words)
