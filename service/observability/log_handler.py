"""Log lines to a pipe that nobody may be reading. Never waits: what finds no room is lost, counted, and told of later.

A write to a full pipe waits for its reader; on the event loop that is a service that stands still for its log.
"""

import logging
import os
import select
from typing import TextIO


class NonBlockingHandler(logging.StreamHandler[TextIO]):
    """A StreamHandler that loses lines rather than wait."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 0
        self._poll: select.poll | None = None
        try:
            self._number = self.stream.fileno()
        except OSError:  # a stream in memory
            return
        self._poll = select.poll()
        self._poll.register(self._number, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, whole or in part, if there is room."""
        if self._poll is None:
            super().emit(record)
            return
        try:
            line = self.format(record)
            if self.lost:
                line = f"({self.lost} lines are missing here: nobody read them)\n{line}"
            data = (line + self.terminator).encode("utf-8", "backslashreplace")
            for start in range(0, len(data), select.PIPE_BUF):  # a pipe that can be written to has room for so much
                if not self._poll.poll(0):
                    self.lost += 1
                    return
                os.write(self._number, data[start : start + select.PIPE_BUF])
            self.lost = 0
        except RecursionError:
            raise
        except OSError:  # a full disk, a pipe whose reader is gone
            self.lost += 1
        except Exception:
            self.handleError(record)
