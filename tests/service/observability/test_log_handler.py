"""The log handler never blocks, whether the reader of the log is gone, stuck or out of disk."""

import fcntl
import io
import json
import logging
import os
import sys
from collections.abc import Iterator

import pytest

from service.observability.logs import JsonFormatter, NonBlockingHandler

PIPE_BYTES = 16384


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, NonBlockingHandler]]:
    """The end that a collector reads, and a handler that writes to the other; room for four pages."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        yield reader, NonBlockingHandler()
    os.close(reader)


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("test", logging.INFO, "", 0, message, (), None)


def test_lines_arrive_as_they_are_written(pipe: tuple[int, NonBlockingHandler]) -> None:
    reader, lines = pipe
    lines.handle(record("one"))
    lines.handle(record("zwei \udc80 drei"))
    assert os.read(reader, PIPE_BYTES) == b"one\nzwei \\udc80 drei\n"


@pytest.mark.parametrize("size", [100, 100_000])
def test_full_pipe_drops_lines_and_counts_them(pipe: tuple[int, NonBlockingHandler], size: int) -> None:
    reader, lines = pipe
    for _ in range(1000):
        lines.handle(record("a" * size))
    assert lines.lost > 800
    os.read(reader, 1 << 20)
    lines.handle(record("after"))
    said = os.read(reader, 1 << 20).decode()
    assert said.endswith("log lines were dropped here: the reader of this log was too slow)\nafter\n")
    assert lines.lost == 0


def test_a_pipe_whose_reader_is_gone_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    monkeypatch.setattr(sys, "stderr", stream)
    lines = NonBlockingHandler()
    lines.handle(record("one"))
    assert lines.lost == 1
    stream.close()


def test_a_full_disk_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = open("/dev/full", "w")  # noqa: PTH123, SIM115
    monkeypatch.setattr(sys, "stderr", stream)
    lines = NonBlockingHandler()
    lines.handle(record("one"))
    assert lines.lost == 1
    stream.close()


def test_stream_in_memory_is_written_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    NonBlockingHandler().handle(record("one"))
    assert stream.getvalue() == "one\n"


def test_every_line_that_is_written_is_an_object(pipe: tuple[int, NonBlockingHandler]) -> None:
    """Also after lines were dropped, and after one that was cut."""
    reader, lines = pipe
    lines.setFormatter(JsonFormatter())
    for _ in range(10):
        lines.handle(record("a" * 5000))
    os.read(reader, 1 << 20)
    lines.handle(record("after"))
    dropped, after = os.read(reader, 1 << 20).decode().strip().split("\n")
    assert "log lines were dropped here" in json.loads(dropped)["message"]
    assert json.loads(after)["message"] == "after"
