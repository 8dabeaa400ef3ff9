"""Console output and exit codes of commands: progress bars, one line for an error, no half-written file after a stop.

Exit codes: 0 done; 1 it cannot be done, and stderr says why in one line; 2 wrong usage; 130 stopped.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import wraps
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, ParamSpec

import typer

from models.errors import ModelError
from service.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from models.progress import Progress

CANNOT, MISUSED, STOPPED = 1, 2, 130
Parameters = ParamSpec("Parameters")


def reporting(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Return a command that prints an error as one line with exit code 1, and ends quietly if its pipe is closed."""

    @wraps(command)
    def run(*values: Parameters.args, **options: Parameters.kwargs) -> None:
        try:
            command(*values, **options)
        except (ModelError, StartError) as error:
            fail(str(error))
        except KeyboardInterrupt:
            fail("stopped; nothing was left behind", STOPPED)
        except BrokenPipeError:  # `inlay list | head`
            sys.stdout = None  # so that Python does not flush into the pipe at exit
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            fail(f"{place}{error.strerror or error}")

    return run


def fail(message: str, code: int = CANNOT) -> NoReturn:
    """Print one line to stderr and end the command."""
    print(f"inlay: {message}", file=sys.stderr)
    raise typer.Exit(code)


def nearest(word: str, allowed: "Iterable[str]") -> str:
    """Return a "did you mean" question with the allowed word most like `word`; empty where none is similar."""
    similar = get_close_matches(word, list(allowed), 1, 0.8)
    return f" (did you mean {similar[0]}?)" if similar else ""


@contextmanager
def stoppable() -> Iterator[None]:
    """Make SIGTERM stop the block as Ctrl-C does, so that it cleans up after itself."""
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def progress_bars() -> Iterator["Progress"]:
    """Show a bar on stderr for each kind of work; where stderr is not a terminal, only the finished bars."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<28}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    bars = Progress(*columns, console=Console(stderr=True))
    tasks: dict[str, TaskID] = {}

    def show(what: str, done: int, total: int) -> None:
        if what not in tasks:
            bars.start()
            tasks[what] = bars.add_task(what, total=total or None)
        bars.update(tasks[what], completed=done, total=total or None)

    with stoppable():
        try:
            yield show
        finally:
            if tasks:
                bars.stop()
