"""The command `inlay`, which pyproject.toml installs."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words == ["health"]:  # a container runs it every few seconds: spare it the 0.1 s that typer takes to import
        from service.cli.health import check

        return check()
    from service.cli.application import run

    return run(words)
