"""Writes log lines, as text or as JSON, with the request they belong to.

What callers send could reach logs through exceptions, whose messages quote the value that a library met. So the message
of an exception is left out, in tracebacks too, unless only the operator can have caused it; types and places are kept.
"""

import json
import logging
import logging.config
import os
import select
import sys
import threading
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from traceback import format_exception
from types import TracebackType
from typing import Any, TextIO

from models.errors import ModelError
from service.errors import StartError
from service.request_context import CURRENT_CALL

ACCESS = "inlay.access"
FIELDS = ("protocol", "method", "status", "seconds", "peer", "request_id", "trace_id", "key")
"""Fields of an access line, as `extra`; other lines have the last three from the call that their task serves."""
OPERATORS = (StartError, ModelError, OSError)  # their messages are about files, ports and settings
WITHHELD = "(message withheld: it may quote a caller; INLAY_LOG_INPUTS=true shows it)"
FORMATS: Mapping[str, str] = {
    "text": "service.observability.logs.TextFormatter",
    "json": "service.observability.logs.JsonFormatter",
}
log = logging.getLogger(__name__)
Info = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def config(format: str, level: str, inputs: bool) -> dict[str, Any]:
    """Return the configuration for logging.config.dictConfig; it can be pickled for workers.

    Args:
        format: text or json.
        level: the least severe level that is written.
        inputs: whether messages of exceptions are written.
    """
    handler = {"class": "service.observability.logs.NonBlockingHandler", "formatter": "line"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": FORMATS[format], "inputs": inputs}},
        "handlers": {"stderr": handler},
        "root": {"level": level.upper(), "handlers": ["stderr"]},
    }


def start_logging(format: str, level: str, inputs: bool) -> None:
    """Log as `config` says, also Python's warnings and uncaught exceptions, which would be printed as plain text.

    Not Pillow's warnings: a caller's picture can raise 65 535 of them, each a line of the log.
    """
    logging.config.dictConfig(config(format, level, inputs))
    logging.captureWarnings(True)
    warnings.filterwarnings("ignore", module="PIL")
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda ended: _log_uncaught(ended.exc_type, ended.exc_value, ended.exc_traceback)


def _log_uncaught(kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None) -> None:
    if error is not None and not isinstance(error, KeyboardInterrupt | SystemExit):
        log.critical("an exception was not caught", exc_info=(kind, error, traceback))


class TextFormatter(logging.Formatter):
    """Formats a record as one line of text, and its traceback below it."""

    def __init__(self, inputs: bool = False) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._inputs = inputs

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        record = self.without_inputs(record)
        known = "".join(f" {name}={_printable(value)}" for name, value in context_fields(record).items())
        first, *more = super().format(record).split("\n", 1)
        return "\n".join([first + known, *more])

    def formatException(self, ei: Info) -> str:
        """Return the traceback, with the messages of only those exceptions that the operator causes."""
        if self._inputs or ei[1] is None:
            return super().formatException(ei)
        return "".join(format_exception(_stand_in(ei[1], {}))).rstrip("\n")

    def without_inputs(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return the record without messages of exceptions, and without the values that asyncio shows."""
        if self._inputs:
            return record
        args, message = record.args, record.msg
        if isinstance(args, tuple) and any(isinstance(argument, BaseException) for argument in args):
            args = tuple([_message(argument) if isinstance(argument, BaseException) else argument for argument in args])
        if record.name == "asyncio" and isinstance(message, str):
            message = message.split("\n")[0].split("(")[0].split("<")[0].rstrip()
        if args is record.args and message is record.msg:
            return record
        return logging.makeLogRecord({**record.__dict__, "args": args, "msg": message, "exc_text": None})


class JsonFormatter(TextFormatter):
    """Formats a record as one JSON object: time, level, logger, message, the request, the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON text of a record."""
        record = self.without_inputs(record)
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "logger": record.name}
        line |= {"message": record.getMessage(), **context_fields(record)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class NonBlockingHandler(logging.StreamHandler[TextIO]):
    """Writes to stderr; while the reader of stderr is stuck, it drops lines, and later logs their number.

    A write to a full pipe waits for its reader, and on the event loop the whole service waits with it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lost = 0
        self._cut = False  # the last line that was written lacks its end
        self._poll: select.poll | None = None
        try:
            self._descriptor = self.stream.fileno()
        except OSError:  # a stream in memory
            return
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """Write as much of a record as there is room for."""
        if self._poll is None:
            super().emit(record)
            return
        try:
            lines = [*([""] if self._cut else []), *([self.format(_dropped(self.lost))] if self.lost else [])]
            data = self.terminator.join([*lines, self.format(record), ""]).encode("utf-8", "backslashreplace")
            for start in range(0, len(data), select.PIPE_BUF):  # a pipe that can be written to has room for so much
                if not self._poll.poll(0):
                    self.lost += 1
                    self._cut = self._cut or start > 0
                    return
                os.write(self._descriptor, data[start : start + select.PIPE_BUF])
            self.lost, self._cut = 0, False
        except RecursionError:
            raise
        except OSError:  # a full disk, a pipe whose reader is gone
            self.lost += 1
        except Exception:
            self.handleError(record)


def _dropped(lines: int) -> logging.LogRecord:
    message = "(%d log lines were dropped here: the reader of this log was too slow)"
    return logging.LogRecord(__name__, logging.WARNING, "", 0, message, (lines,), None)


def context_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return what a record says beside its message: FIELDS that it has, or those of the call that its task serves."""
    fields = {name: record.__dict__[name] for name in FIELDS if name in record.__dict__}
    return fields if "request_id" in fields else fields | CURRENT_CALL.get().log_fields()


def _printable(value: object) -> str:
    """Return a value in one line: a newline in it would begin a line that no logger wrote."""
    return "".join(
        [
            character if character.isprintable() else character.encode("unicode_escape").decode()
            for character in str(value)
        ]
    )


def _message(error: BaseException) -> str:
    return str(error) if isinstance(error, OPERATORS) else WITHHELD


def _stand_in(error: BaseException, made: dict[int, Exception]) -> Exception:
    """Return an exception with the same name, traceback, causes and groups, whose messages quote no caller.

    Args:
        error: the exception that is logged.
        made: the stand-ins so far, by the id of what they stand for: causes may form a circle.
    """
    if id(error) in made:
        return made[id(error)]
    kind = type(error)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    stand_in: Exception
    if isinstance(error, BaseExceptionGroup):
        inner = [_stand_in(inner_error, made) for inner_error in error.exceptions]
        stand_in = type(kind.__name__, (ExceptionGroup,), names)(_message(error), inner)
    else:
        stand_in = type(kind.__name__, (Exception,), names)(_message(error))
    made[id(error)] = stand_in.with_traceback(error.__traceback__)
    stand_in.__cause__ = _stand_in(error.__cause__, made) if error.__cause__ else None
    stand_in.__context__ = _stand_in(error.__context__, made) if error.__context__ else None
    stand_in.__suppress_context__ = error.__suppress_context__
    return stand_in
