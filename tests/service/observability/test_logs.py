"""Log lines say which request they belong to, and nothing a caller sent."""

import ast
import asyncio
import io
import json
import logging
import logging.config
import struct
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from models.errors import ModelError
from service.errors import StartError
from service.observability import logs
from service.request_context import CURRENT_CALL, NO_CALL, RequestContext

ROOT = Path(__file__).parents[3]
SECRET = "correct horse battery staple"


class Written:
    """A logger whose lines are kept."""

    def __init__(self, format: str, inputs: bool) -> None:
        self._stream = io.StringIO()
        configured = logs.config(format, "debug", inputs)
        configurator: Any = logging.config.DictConfigurator(configured)
        formatter = configurator.configure_formatter(configurator.config["formatters"]["line"])
        self._handler = logging.StreamHandler(self._stream)
        self._handler.setFormatter(formatter)
        self.logger = logging.Logger("test", logging.DEBUG)
        self.logger.addHandler(self._handler)

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture(params=["text", "json"])
def written(request: pytest.FixtureRequest) -> Written:
    return Written(request.param, inputs=False)


@pytest.fixture
def as_json() -> Written:
    return Written("json", inputs=False)


@pytest.fixture(autouse=True)
def unnumbered() -> Iterator[None]:
    """Other tests may have left a call behind."""
    token = CURRENT_CALL.set(NO_CALL)
    yield
    CURRENT_CALL.reset(token)


@pytest.fixture
def numbered(unnumbered: None) -> str:
    call = RequestContext()
    call.request_id = b"abc-123"
    CURRENT_CALL.set(call)
    return "abc-123"


def fail(cause: BaseException | None = None) -> None:
    try:
        raise ValueError(f"cannot read {SECRET!r}") from cause
    except ValueError as error:
        error.add_note(f"it was {SECRET}")
        raise


def test_json_line_has_time_level_logger_message_request(as_json: Written, numbered: str) -> None:
    call = CURRENT_CALL.get()
    call.trace_id, call.key_name = "4bf92f3577b34da6a3ce929d0e0e4736", "search"
    as_json.logger.warning("%d of %s", 3, "these")
    (line,) = as_json.objects
    assert datetime.fromisoformat(line.pop("time")).tzinfo is not None
    assert line == {
        "level": "warning",
        "logger": "test",
        "message": "3 of these",
        "request_id": numbered,
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "key": "search",
    }


def test_line_outside_a_request_names_none(as_json: Written) -> None:
    as_json.logger.info("started")
    assert "request_id" not in as_json.objects[0]


def test_access_line_has_its_own_fields(as_json: Written) -> None:
    fields = {"protocol": "http", "method": "POST /embed", "status": 200, "seconds": 0.0021}
    as_json.logger.info("answered", extra=fields)
    assert as_json.objects[0].items() >= fields.items()


def test_text_line_ends_with_fields_of_the_request(numbered: str) -> None:
    written = Written("text", inputs=False)
    written.logger.info("answered", extra={"status": 200})
    assert written.text.endswith(f"INFO test answered status=200 request_id={numbered}\n")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\x0b", "\x1b[2K", "\x85", "\u2028", "\x00"])
def test_control_characters_begin_no_new_line(end: str) -> None:
    written = Written("text", inputs=False)
    written.logger.info("answered", extra={"method": f"GET /a{end}2026-01-01 CRITICAL the service has a fault"})
    assert len(written.text.splitlines()) == 1
    assert written.text.removesuffix("\n").isprintable()


def test_printable_characters_are_written_unchanged() -> None:
    written = Written("text", inputs=False)
    written.logger.info("answered", extra={"method": "GET /modèles/字 \\n"})
    assert written.text.endswith("method=GET /modèles/字 \\n\n")


def test_traceback_shows_places_and_types_without_messages(written: Written) -> None:
    try:
        fail(KeyError(SECRET))
    except ValueError:
        written.logger.exception("a request met a fault")
    assert SECRET not in written.text
    assert "in fail" in written.text
    assert "ValueError: (message withheld" in written.text
    assert "KeyError: (message withheld" in written.text


def test_circular_causes_are_formatted(written: Written) -> None:
    error, cause = ValueError(SECRET), TypeError(SECRET)
    error.__cause__, cause.__cause__ = cause, error
    written.logger.error("a request met a fault", exc_info=error)
    assert SECRET not in written.text
    assert "TypeError" in written.text


def test_messages_in_exception_groups_are_withheld(written: Written) -> None:
    try:
        raise ExceptionGroup("several", [ValueError(SECRET), TypeError(SECRET)])
    except ExceptionGroup:
        written.logger.exception("a request met a fault")
    assert SECRET not in written.text
    assert "TypeError" in written.text


def test_message_of_exception_argument_is_withheld(written: Written) -> None:
    written.logger.error("a run failed: %s: %s", "ValueError", ValueError(SECRET))
    assert SECRET not in written.text
    assert "a run failed: ValueError: (message withheld" in written.text


@pytest.mark.parametrize("error", [StartError("no such port"), ModelError("no such port"), OSError("no such port")])
def test_messages_of_operator_errors_are_written(error: Exception, written: Written) -> None:
    written.logger.error("%s", error)
    try:
        raise error
    except type(error):
        written.logger.exception("not loaded")
    assert written.text.count("no such port") == 2


def test_values_in_asyncio_messages_are_cut(written: Written) -> None:
    async def lose() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(int, SECRET)
        future = loop.create_future()
        future.set_exception(ValueError(SECRET))
        del future
        await asyncio.sleep(0)

    logger = logging.getLogger("asyncio")
    handler = written.logger.handlers[0]
    logger.addHandler(handler)
    try:
        asyncio.run(lose())
    finally:
        logger.removeHandler(handler)
    assert "Exception in callback" in written.text
    assert "never retrieved" in written.text
    assert SECRET not in written.text


def test_log_inputs_writes_every_message() -> None:
    written = Written("json", inputs=True)
    try:
        fail()
    except ValueError as error:
        written.logger.exception("a fault: %s", error)
    (line,) = written.objects
    assert SECRET in line["message"]
    assert SECRET in line["exception"]


def test_record_is_left_unchanged_for_other_handlers() -> None:
    record = logging.LogRecord("asyncio", logging.ERROR, __file__, 1, "a %s", (ValueError(SECRET),), None)
    logs.TextFormatter().format(record)
    assert record.getMessage() == f"a {SECRET}"


@pytest.mark.parametrize("path", sorted((ROOT / "service").rglob("*.py")), ids=lambda path: path.stem)
def test_log_messages_are_constants(path: Path) -> None:
    calls = [
        node
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in ("log", "logger", "access")
    ]
    assert [node.lineno for node in calls if not isinstance(node.args[0], ast.Constant)] == []


def test_a_picture_of_many_faults_writes_no_log_lines() -> None:
    tags = b"".join([struct.pack("<HHII", tag, 7, 2**20, 8) for tag in range(1, 1000)])  # each past the file's end
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 999) + tags + bytes(4)
    program = f"""
import io
from PIL import Image
from service.embedding.image_decoding import open_picture
from service.observability import logs
logs.start_logging("text", "info", False)
file = io.BytesIO()
Image.new("RGB", (8, 8)).save(file, "png", exif={exif!r})
print(open_picture(file.getvalue(), 0, 100).size)
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("(8, 8)\n", "")
