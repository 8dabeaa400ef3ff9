"""Keys without a protocol: how they are written, compared, limited, and read again."""

import logging
import os
import pickle
from hashlib import sha256
from pathlib import Path

import pytest
from pydantic import SecretStr

from service.errors import Overloaded, StartError, Unauthorized
from service.request_context import RequestContext
from service.security import api_keys
from service.security.api_keys import (
    MIN_CHARACTERS,
    Key,
    Keys,
    open_keys,
    warn_of_short_keys,
)
from service.settings import Settings

SECRET = "correct-horse-battery"


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def write(path: Path, text: str, mtime: int) -> None:
    """A file as an editor leaves it; the time is set because two writes may fall into one tick of the file system."""
    path.write_text(text)
    os.utime(path, (mtime, mtime))


def acquire(keys: Keys, shown: bytes | None) -> Key:
    return keys.acquire(shown, RequestContext())


def refused(keys: Keys, key: str) -> bool:
    try:
        acquire(keys, key.encode())
    except Unauthorized:
        return True
    return False


# ---- how they are written


@pytest.mark.parametrize(
    ("line", "name", "key"),
    [
        ("abc", "key-1", "abc"),
        ("mine:abc", "mine", "abc"),
        ("a.b_c-1:x/y+z~==", "a.b_c-1", "x/y+z~=="),
        ("mine:abc  concurrent=8   rate=0.5", "mine", "abc"),
    ],
)
def test_entry_is_a_key_with_optional_name_and_limits(line: str, name: str, key: str) -> None:
    assert acquire(Keys([line]), key.encode()).name == name


@pytest.mark.parametrize(
    "line",
    [
        "",
        "  ",
        "ab c",
        f"{SECRET} fast",
        f"{SECRET} rate=0",
        f"{SECRET} rate=-1",
        f"{SECRET} rate=nan",
        f"{SECRET} concurrent=0",
        f"{SECRET} concurrent=1.5",
        f"n:{SECRET}:x",
        f"={SECRET}",
        f"{SECRET}é",
        f'"{SECRET}"',
        f"n ame:{SECRET}",
    ],
)
def test_invalid_keys_are_reported_without_showing_them(line: str) -> None:
    with pytest.raises(StartError) as error:
        Keys(["fine", line])
    assert "entry 2" in str(error.value)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize("lines", [["a:x", "b:x"], ["a:x", "a:y"]])
def test_keys_and_names_must_be_distinct(lines: list[str]) -> None:
    with pytest.raises(StartError, match=r"twice|same name"):
        Keys(lines)


def test_only_digests_are_kept() -> None:
    assert SECRET.encode() not in pickle.dumps(Keys([SECRET]))


def test_settings_never_show_a_key() -> None:
    settings = Settings(api_keys=f"{SECRET},other:{SECRET}2")  # type: ignore[arg-type]
    for shown in (repr(settings), str(settings), settings.model_dump_json(), str(settings.model_dump())):
        assert SECRET not in shown
    assert settings.api_keys == (SecretStr(SECRET), SecretStr(f"other:{SECRET}2"))


def test_no_keys_without_settings() -> None:
    assert open_keys(Settings()) is None


def test_only_the_digest_of_a_key_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the time tells how near the digest of a guess is, and not how near the guess is."""
    keys = Keys(["one", "two"])
    digests = {b"one": sha256(b"far off"), b"a guess": sha256(b"two")}
    monkeypatch.setattr(api_keys, "sha256", digests.__getitem__)
    assert refused(keys, "one")
    assert acquire(keys, b"a guess").name == "key-2"


# ---- keys that can be guessed


def test_short_keys_are_logged_by_name_and_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    short, long = "a" * (MIN_CHARACTERS - 1), "b" * MIN_CHARACTERS
    file = tmp_path / "keys"
    file.write_text(f"# ours\n\nbrief\nlong:c{long}\n")
    warn_of_short_keys(Settings(api_keys=f"mine:{short},{long}", api_keys_file=file))  # type: ignore[arg-type]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "can be guessed: mine, key-3;" in line
    assert [short in line, long in line, "brief" in line] == [False] * 3


@pytest.mark.parametrize("keys", ["", SECRET])
def test_no_warning_is_logged_for_long_keys(caplog: pytest.LogCaptureFixture, keys: str) -> None:
    warn_of_short_keys(Settings(api_keys=keys))  # type: ignore[arg-type]
    assert caplog.records == []


def test_file_read_again_is_checked_for_short_keys(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    write(file, SECRET, 1)
    keys = Keys([], file, clock=clock)
    write(file, f"{SECRET}\nnew:brief", 2)
    clock.now += 1.0
    assert not refused(keys, "brief")
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "keys of fewer than 16 characters can be guessed: new; `openssl rand -hex 32` makes one that cannot"
    ]


def test_warning_ignores_a_file_that_broke(tmp_path: Path) -> None:
    warn_of_short_keys(Settings(api_keys_file=tmp_path / "gone"))


# ---- limits


def test_limit_of_concurrent_requests(clock: Clock) -> None:
    keys = Keys(["a concurrent=2"], clock=clock)
    first, second = acquire(keys, b"a"), acquire(keys, b"a")
    assert first is second
    first.release(4.0)
    acquire(keys, b"a")
    with pytest.raises(Overloaded) as full:
        acquire(keys, b"a")
    assert full.value.retry_after == pytest.approx((0.1 + 0.1 * (4.0 - 0.1)) / 2)  # what one took, shared by two


def test_rate_limit_says_when_to_retry(clock: Clock) -> None:
    keys = Keys(["a rate=2"], clock=clock)
    acquire(keys, b"a"), acquire(keys, b"a")
    with pytest.raises(Overloaded) as fast:
        acquire(keys, b"a")
    assert fast.value.retry_after == pytest.approx(0.5)
    clock.now += 0.5 + 1e-9  # then it is true
    acquire(keys, b"a")
    with pytest.raises(Overloaded):
        acquire(keys, b"a")


def test_key_gets_its_rate_over_a_long_time(clock: Clock) -> None:
    keys, answered = Keys(["a rate=7.5"], clock=clock), 0
    for _ in range(100_000):
        clock.now += 0.001
        try:
            acquire(keys, b"a")
            answered += 1
        except Overloaded:
            pass
    assert 7.5 * 100 <= answered <= 7.5 * 100 + 7


def test_idle_key_saves_up_at_most_a_second(clock: Clock) -> None:
    keys = Keys(["a rate=3"], clock=clock)
    clock.now += 3600
    for _ in range(3):
        acquire(keys, b"a")
    with pytest.raises(Overloaded):
        acquire(keys, b"a")


def test_limits_of_an_entry_override_the_settings(clock: Clock) -> None:
    keys = Keys(["a", "b concurrent=3"], None, 1, None, clock)
    assert [acquire(keys, key).concurrent for key in (b"a", b"b")] == [1, 3]


def test_limits_of_keys_are_independent(clock: Clock) -> None:
    keys = Keys(["a", "b"], None, 1, None, clock)
    acquire(keys, b"a")
    acquire(keys, b"b")


# ---- the file


def test_file_has_a_key_a_line_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n\n  one:abc concurrent=2 # the first\r\ndef\n#ghi\n")
    keys = Keys(["xyz"], file)
    assert [acquire(keys, key).name for key in (b"abc", b"def", b"xyz")] == ["one", "key-4", "key-1"]
    assert refused(keys, "ghi")


def test_changed_file_is_read_again_after_a_second(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "keys"
    write(file, "old", 1)
    keys = Keys([], file, clock=clock)
    write(file, "new", 2)
    assert not refused(keys, "old")
    clock.now += 1.0
    assert refused(keys, "old")
    assert not refused(keys, "new")


def test_replaced_file_of_same_time_and_size_is_read_again(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "keys"
    write(file, "old", 1)
    keys = Keys([], file, clock=clock)
    write(tmp_path / "next", "new", 1)
    (tmp_path / "next").rename(file)
    clock.now += 1.0
    assert not refused(keys, "new")


@pytest.mark.parametrize("text", ["ok:abc\nnot a key", None])
def test_broken_file_keeps_the_keys_and_is_logged_once(
    tmp_path: Path, clock: Clock, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    write(file, "old", 1)
    keys = Keys([], file, clock=clock)
    if text is None:
        file.unlink()
    else:
        write(file, text, 2)
    for _ in range(5):
        clock.now += 2.0
        assert not refused(keys, "old")
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "abc" not in caplog.text


def test_empty_file_refuses_everyone(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "keys"
    write(file, "old", 1)
    keys = Keys([], file, clock=clock)
    write(file, "# all withdrawn\n", 2)
    clock.now += 1.0
    assert refused(keys, "old")
    with pytest.raises(Unauthorized):
        acquire(keys, None)


@pytest.mark.parametrize("text", ["", "# none\n", None, "é"])
def test_file_without_keys_is_refused_at_start(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(StartError, match=str(file)):
        Keys([], file)


def test_key_that_stays_keeps_its_counts(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "keys"
    write(file, "a concurrent=1", 1)
    keys = Keys([], file, clock=clock)
    first = acquire(keys, b"a")
    write(file, "named:a concurrent=1\nb", 2)
    clock.now += 1.0
    with pytest.raises(Overloaded):
        acquire(keys, b"a")
    first.release(0.1)
    assert acquire(keys, b"a").name == "named"
