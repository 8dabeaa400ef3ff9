"""Log lines, as text or as JSON, with the request they belong to. Says nothing a caller sent unless told to.

What callers send gets into logs by way of exceptions: libraries quote the value they stumbled over. So the message of
an exception is left out, of a traceback too, unless the operator alone can have caused it; types and places stay.
"""

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from traceback import TracebackException
from types import TracebackType
from typing import Any

from models.errors import ModelError
from service.errors import StartError
from service.observability.request_context import KEY_NAME, REQUEST_ID, TRACE_ID

ACCESS = "inlay.access"
FIELDS = ("protocol", "method", "status", "seconds", "peer")  # of an access line, as `extra`
OPERATORS = (StartError, ModelError, OSError)  # what these say is of files, ports and settings
WITHHELD = "(message withheld: it may quote a caller; INLAY_LOG_INPUTS=true shows it)"
Info = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def config(format: str, level: str, inputs: bool) -> dict[str, Any]:
    """What logging.config.dictConfig reads; can be pickled, for workers.

    format       text or json
    inputs       whether messages of exceptions are written out
    """
    formatter = {"()": FORMATS[format], "inputs": inputs}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": formatter},
        "handlers": {"stderr": {"class": "service.observability.log_handler.NonBlockingHandler", "formatter": "line"}},
        "root": {"level": level.upper(), "handlers": ["stderr"]},
    }


class Line(logging.Formatter):
    """One line of text, and the traceback below it."""

    def __init__(self, inputs: bool = False) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._inputs = inputs

    def format(self, record: logging.LogRecord) -> str:
        """The record as it is written."""
        record = self._safe(record)
        line = super().format(record)
        known = "".join(f" {name}={_printable(value)}" for name, value in self._context(record).items())
        first, *more = line.split("\n", 1)
        return "\n".join([first + known, *more])

    def formatException(self, ei: Info) -> str:
        """The traceback: places and types; the messages only of what the operator causes."""
        if self._inputs or ei[1] is None:
            return super().formatException(ei)
        found = TracebackException.from_exception(ei[1])
        _withhold(found, ei[1])
        return "".join(found.format()).rstrip("\n")

    def _safe(self, record: logging.LogRecord) -> logging.LogRecord:
        """The record without callers' words: in arguments that are exceptions, and in what asyncio shows of values."""
        if self._inputs:
            return record
        args, message = record.args, record.msg
        if isinstance(args, tuple) and any(isinstance(each, BaseException) for each in args):
            args = tuple([_told(each) if isinstance(each, BaseException) else each for each in args])
        if record.name == "asyncio" and isinstance(message, str):
            message = message.split("\n")[0].split("(")[0].split("<")[0].rstrip()
        if args is record.args and message is record.msg:
            return record
        return logging.makeLogRecord({**record.__dict__, "args": args, "msg": message, "exc_text": None})

    def _context(self, record: logging.LogRecord) -> dict[str, Any]:
        own = {name: record.__dict__[name] for name in FIELDS if name in record.__dict__}
        request_id, trace_id = REQUEST_ID.get().decode("latin-1"), TRACE_ID.get()
        found = {"request_id": "" if request_id == "-" else request_id, "trace_id": trace_id, "key": KEY_NAME.get()}
        return own | {name: value for name, value in found.items() if value}


class Json(Line):
    """One JSON object a line: time, level, logger, message, what is known of the request, the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as it is written."""
        record = self._safe(record)
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "logger": record.name}
        line |= {"message": record.getMessage(), **self._context(record)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


FORMATS: Mapping[str, str] = {"text": "service.observability.logs.Line", "json": "service.observability.logs.Json"}


def _printable(value: object) -> str:
    """One line, whatever it is: a newline in it would begin a line that nobody logged."""
    return "".join([each if each.isprintable() else each.encode("unicode_escape").decode() for each in str(value)])


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, OPERATORS) else WITHHELD


def _withhold(found: TracebackException, error: BaseException) -> None:
    """Take the messages of an exception, its causes and its groups out of what is shown."""
    if not isinstance(error, OPERATORS):
        found._str = WITHHELD  # type: ignore[attr-defined]
        found.__notes__ = None
    linked = [(found.__cause__, error.__cause__), (found.__context__, error.__context__)]
    if isinstance(error, BaseExceptionGroup):
        linked += zip(found.exceptions or [], error.exceptions, strict=False)
    for shown, behind in linked:
        if shown is not None and behind is not None:
            _withhold(shown, behind)
