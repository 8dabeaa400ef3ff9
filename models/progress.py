"""The progress callback that long operations (export, fetch, hash, create) report to."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the units done so far (bytes, files or rows), and the units in all (0: unknown)."""


def no_progress(stage: str, done: int, total: int) -> None:
    """Ignore the report."""
