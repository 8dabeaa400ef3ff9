"""Console output and exit codes of commands: progress bars, errors in one line, and stops that clean up.

Exit codes: 0 done; 1 it cannot be done, and stderr says why in one line; 2 wrong usage; 130 stopped.
"""

import logging
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import wraps
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec

import typer

from models.errors import ModelError
from service.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from models.checkpoints.hub import Progress
    from service.settings import Settings

CANNOT, MISUSED, STOPPED = 1, 2, 130
REPORT_SECONDS = 10.0
Parameters = ParamSpec("Parameters")
log = logging.getLogger(__name__)


class Failed(typer.Exit):
    """Ends a command; `reporting` prints its message."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(code)
        self.message = message


def print_failure(message: str, options: Mapping[str, Any]) -> None:
    """Print one line to stderr."""
    print(f"inlay: {message}", file=sys.stderr)


def reporting(
    command: Callable[Parameters, None], tell: Callable[[str, Mapping[str, Any]], None] = print_failure
) -> Callable[Parameters, None]:
    """Return a command that prints an error as one line with exit code 1, and ends quietly if its pipe is closed.

    Args:
        tell: called with the line and with the command's options.
    """

    @wraps(command)
    def run(*values: Parameters.args, **options: Parameters.kwargs) -> None:
        try:
            command(*values, **options)
            return
        except Failed as failed:
            message, code = failed.message, failed.exit_code
        except (ModelError, StartError) as error:
            message, code = str(error), CANNOT
        except KeyboardInterrupt:
            message, code = "stopped; nothing was left behind", STOPPED
        except BrokenPipeError:  # `inlay list | head`
            sys.stdout = None  # so that Python does not flush into the pipe at exit
            return
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            message, code = f"{place}{error.strerror or error}", CANNOT
        tell(message, options)
        raise typer.Exit(code)

    return run


def fail(message: str, code: int = CANNOT) -> NoReturn:
    """End the command with one line on stderr."""
    raise Failed(message, code)


def say(settings: "Settings", line: str) -> None:
    """Print a line of `inlay serve`, or log it if the log is JSON, so that every line is a JSON object."""
    if settings.log_format == "json":
        log.info("%s", line)
    else:
        print(line if line.startswith("try: ") else f"inlay: {line}", flush=True)


def nearest(word: str, allowed: "Iterable[str]") -> str:
    """Return a "did you mean" question with the allowed word most like `word`; empty if none is similar."""
    similar = get_close_matches(word, list(allowed), 1, 0.8)
    return f" (did you mean {similar[0]}?)" if similar else ""


@contextmanager
def progress_bars(shown: bool = True) -> Iterator["Progress"]:
    """Show the progress of work on stderr: a line that changes on a terminal, else one every REPORT_SECONDS.

    SIGTERM stops the block as Ctrl-C does, so that it cleans up after itself.

    Args:
        shown: False: none, because every line of stderr has to be JSON.
    """
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    line = _ProgressLine(sys.stderr.isatty())
    try:
        yield line if shown else lambda what, done, total: None
    finally:
        line.end()
        signal.signal(signal.SIGTERM, previous)


class _ProgressLine:
    """Prints what is being done, how much of it is done, and how long the rest takes.

    Args:
        terminal: a line is printed over the one before.
    """

    def __init__(self, terminal: bool) -> None:
        self._seconds, self._end = (0.2, "\r") if terminal else (REPORT_SECONDS, "\n")
        self._began: dict[str, tuple[float, int]] = {}
        self._printed, self._width = monotonic(), 0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = monotonic()
        began, first = self._began.setdefault(what, (now, done))
        if now - self._printed >= self._seconds:
            self._printed = now
            whole = f": {done:,} of {total:,}" if total else f": {done:,}" if done else ""
            left = f", {(total - done) * (now - began) / (done - first):.0f} s left" if total and done > first else ""
            line = f"{what}{whole}{left}"
            print(line.ljust(self._width), end=self._end, file=sys.stderr, flush=True)
            self._width = len(line) if self._end == "\r" else 0

    def end(self) -> None:
        """Leave the last line on a terminal."""
        if self._width:
            print(file=sys.stderr)
