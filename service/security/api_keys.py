"""API keys from the settings and from a file, and the limits of each key.

SHA-256 digests are kept, no key. A key is looked up by its digest, so the time to refuse one does not tell how near a
guess was: keys that are near have digests that are far apart. Limits are those of one process.
"""

import logging
import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

from service.errors import KeyLimited, StartError, Unauthorized
from service.request_context import RequestContext
from service.security.file_changes import FileChanges
from service.settings import Settings

NEWEST_WEIGHT = 0.1  # weight of a request's time in the mean of a key's requests
FIRST_SECONDS = 0.1  # seconds assumed for that mean until a request was timed
MIN_CHARACTERS = 16  # guesses are not slowed down; shorter keys are warned of, not refused: people try things with them
_ENTRY = re.compile(r"(?:([A-Za-z0-9_.-]{1,64}):)?([A-Za-z0-9._~+/-]+=*)((?:\s+\S+)*)")  # b64token (RFC 6750)
_LIMIT = re.compile(r"(concurrent|rate)=(\d+(?:\.\d+)?)")
_PRIORITIES = {"priority=bulk": True, "priority=interactive": False}
SHAPE = (
    "[NAME:]KEY [concurrent=N] [rate=PER_SECOND] [priority=bulk], the key of letters, digits and -._~+/ with = at its "
    "end alone"
)
OTHER = "other"  # what metrics call the keys behind those that they show
HEADER = "the header authorization: Bearer KEY"
log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Key:
    """One key, with what its callers have used of its limits.

    Attributes:
        name: its name in logs.
        digest: the SHA-256 of the key.
        short: whether it has fewer than MIN_CHARACTERS.
        concurrent: requests at a time; None: any number.
        rate: requests a second; None: any number.
        bulk: its requests give way to others.
        active: number of its requests in flight, counted without a limit too: the file may set one meanwhile.
    """

    name: str
    digest: bytes
    short: bool
    concurrent: int | None
    rate: float | None
    bulk: bool = False
    active: int = 0
    _seconds: float = FIRST_SECONDS
    _ready: float = 0.0  # requests that may come at `_since`
    _since: float = -math.inf

    def configure(self, new: "Key") -> None:
        """Take the name, the limits and the priority of the same key in a file that was read again."""
        self.name, self.concurrent, self.rate, self.bulk = new.name, new.concurrent, new.rate, new.bulk

    def acquire(self, now: float) -> None:
        """Admit a request; raise KeyLimited, with the seconds until there is room."""
        concurrent, rate = self.concurrent, self.rate
        if concurrent is not None and self.active >= concurrent:
            raise KeyLimited(
                f"{self.active} requests of this key are being served",
                self._seconds / self.active,
                allowed=f"it may have {concurrent} at a time",
                remedy="wait for one to end",
            )
        if rate is not None:
            burst = max(1.0, math.floor(rate))  # as many at once as in a second
            self._ready = min(burst, self._ready + (now - self._since) * rate)
            self._since = now
            if self._ready < 1:
                raise KeyLimited(
                    "this key asks too often",
                    (1 - self._ready) / rate,
                    allowed=f"it may ask {rate:g} times a second",
                    remedy="slow down",
                )
            self._ready -= 1
        self.active += 1

    def release(self, seconds: float) -> None:
        """End a request that took `seconds`."""
        self.active -= 1
        self._seconds += NEWEST_WEIGHT * (seconds - self._seconds)


class Keys:
    """All keys of this service.

    Args:
        configured: the keys of the settings, which never change.
        file: more keys, read again when it changes; while it cannot be read, the keys stay as they were.
        concurrent: requests at a time of a key whose entry does not say; None: any number.
        rate: requests a second of a key whose entry does not say; None: any number.
        clock: returns seconds.

    Raises:
        StartError: a key cannot be read, or there is none.
    """

    def __init__(
        self,
        configured: Sequence[str],
        file: Path | None = None,
        concurrent: int | None = None,
        rate: float | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._limits = (concurrent, rate)
        self._file, self._clock = file, clock
        self._changes = FileChanges([file] if file else [], clock)
        self._fixed = self._parsed(enumerate(configured, 1), "api_keys, entry")
        self._keys: dict[bytes, Key] = {}
        self._replace(self._read())
        if not self._keys:
            raise StartError(f"{file} holds no key: write one a line, or unset INLAY_API_KEYS_FILE")

    def acquire(self, shown: bytes | None, context: RequestContext) -> Key:
        """Admit a request and return its key, whose `release` ends the request.

        Args:
            shown: the key that the caller sent; None: it sent none.
            context: context of the request, which gets the key's name even if the key's limits refuse it.

        Raises:
            Unauthorized: no key of the service is the one that was sent.
            KeyLimited: the key's callers have reached one of its limits.
        """
        if self._file and self._changes.since_last():
            self._read_again()
        if not shown:
            raise Unauthorized("this needs a key", remedy=f"send {HEADER}")
        key = self._keys.get(sha256(shown).digest())
        if key is None:
            raise Unauthorized("the key is not one of this server's", remedy=f"check {HEADER}")
        context.show_key(key.name)
        if key.bulk:
            context.make_bulk()
        key.acquire(self._clock())
        return key

    def label(self, most: int, name: str) -> str:
        """Return the name of a key if it is among the first `most`, else OTHER."""
        return name if name in [key.name for key in islice(self._keys.values(), most)] else OTHER

    def warn_of_short(self) -> None:
        """Log the names of keys that are short enough to guess."""
        if short := [key.name for key in self._keys.values() if key.short]:
            log.warning(
                "keys of fewer than %d characters can be guessed: %s; `openssl rand -hex 32` makes one that cannot",
                MIN_CHARACTERS,
                ", ".join(short),
            )

    def _read_again(self) -> None:
        try:
            keys = self._read()
        except StartError as error:
            log.error("the keys stay as they were: %s", error)
            return
        self._replace(keys)
        log.info("%d keys from %s", len(self._keys), self._file)
        self.warn_of_short()

    def _read(self) -> list[Key]:
        if self._file is None:
            return self._fixed
        try:
            lines = self._file.read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
            raise StartError(f"{self._file} cannot be read: {reason}") from None
        stripped = ((number, re.sub(r"(^|\s)#.*", "", line).strip()) for number, line in enumerate(lines, 1))
        keys = self._parsed(((number, line) for number, line in stripped if line), f"{self._file}, line")
        return _distinct([*self._fixed, *keys], self._file)

    def _replace(self, keys: Iterable[Key]) -> None:
        """Replace all keys by these; a key that stays keeps its counts."""
        before, self._keys = self._keys, {}
        for key in keys:
            kept = self._keys[key.digest] = before.get(key.digest, key)
            kept.configure(key)

    def _parsed(self, lines: Iterable[tuple[int, str]], where: str) -> list[Key]:
        return _distinct([_key(line, f"{where} {number}", number, *self._limits) for number, line in lines], where)


def open_keys(settings: Settings) -> Keys | None:
    """Return the keys that the settings name, None if no key is needed; raise StartError if one cannot be read."""
    if not settings.api_keys and settings.api_keys_file is None:
        return None
    configured = [each.get_secret_value() for each in settings.api_keys]
    limits = settings.key_max_concurrent_requests, settings.key_max_requests_per_second
    return Keys(configured, settings.api_keys_file, *limits)


def warn_of_short_keys(settings: Settings) -> None:
    """Log the names of keys that are short enough to guess, once for all workers."""
    with suppress(StartError):  # a file that broke since it was read: the keys themselves report it
        if keys := open_keys(settings):
            keys.warn_of_short()


def _key(line: str, where: str, number: int, concurrent: int | None, rate: float | None) -> Key:
    """Return the key that a line configures; errors do not show the line."""
    fields = _ENTRY.fullmatch(line)
    if not fields:
        raise StartError(f"{where} is not a key: {SHAPE}")
    limits: dict[str, Any] = {"concurrent": concurrent, "rate": rate}
    for word in fields[3].split():
        if word in _PRIORITIES:
            limits["bulk"] = _PRIORITIES[word]
            continue
        limit = _LIMIT.fullmatch(word)
        if not limit or float(limit[2]) <= 0 or (limit[1] == "concurrent" and not limit[2].isdigit()):
            raise StartError(f"{where} has an invalid limit: {SHAPE}")
        limits[limit[1]] = int(limit[2]) if limit[1] == "concurrent" else float(limit[2])
    digest = sha256(fields[2].encode()).digest()
    return Key(fields[1] or f"key-{number}", digest, len(fields[2]) < MIN_CHARACTERS, **limits)


def _distinct(keys: list[Key], where: object) -> list[Key]:
    if len({key.digest for key in keys}) < len(keys):
        raise StartError(f"{where}: the same key stands there twice")
    if len({key.name for key in keys}) < len(keys):
        raise StartError(f"{where}: two keys have the same name; name them apart: NAME:KEY")
    return keys
