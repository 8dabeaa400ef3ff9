"""`Repository`: a model repository of the Hugging Face hub over HTTP, its files whole or by ranges of bytes.

huggingface_hub honours HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE, and finds a stored login. Its own headers are not
sent: making them asks the hub for a list of agents and tells it what runs here.

Source: huggingface_hub 2.4; RFC 9110 (14: range requests).
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from models import VERSION
from models.errors import BadCheckpoint

ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w][\w./-]*))?", re.ASCII)
SMALL_FILE_LIMIT = 1 << 28  # the largest tokenizer.json have some 40 MB
TIMEOUT_S = 30
RETRIES = 3  # of a response that says the server is busy
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REMEDY = "download it with `hf download` and give its folder"

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the units done so far (bytes, files or rows), and the units in all (0: unknown)."""


def no_progress(stage: str, done: int, total: int) -> None:
    """Ignore the report."""


def counter(progress: Progress, stage: str, total: int, done: int = 0) -> Callable[[int], None]:
    """Return a function that adds to `done` what it is called with, and reports the sum."""

    def count(more: int) -> None:
        nonlocal done
        done += more
        progress(stage, done, total)

    return count


@dataclass(slots=True)
class Repository:
    """One model's files at one commit. Every response is checked against the request and earlier responses.

    Attributes:
        id: org/name.
        revision: the requested revision, then the commit of the list of files, so that all are of one commit.
        endpoint: address of the hub; None: what huggingface_hub is set to.
        progress: receives the bytes of large files.
        listed: the files, sorted; None: not asked for yet.
        versions: ETag and size of each file read in parts.
    """

    id: str
    revision: str = "main"
    endpoint: str | None = None
    progress: Progress = no_progress
    listed: list[str] | None = None
    versions: dict[str, tuple[str | None, int]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The repository's name in messages and cards."""
        return f"{self.id}@{self.revision}"

    @property
    def pinned(self) -> bool:
        """Whether `revision` is a commit."""
        return _COMMIT.fullmatch(self.revision) is not None

    def read(self, name: str) -> bytes | None:
        """Return a small file whole; None if there is none; BadCheckpoint if it cannot be fetched."""
        return self._whole(name, self._url(name)) if self.has(name) else None

    def has(self, name: str) -> bool:
        """Return whether there is such a file; BadCheckpoint if the hub does not answer."""
        return name in self.files()

    def files(self) -> list[str]:
        """Return the paths of all files, sorted; BadCheckpoint if the hub does not list them."""
        if self.listed is not None:
            return self.listed
        url = f"{self._address}/api/models/{self.id}/revision/{quote(self.revision, safe='')}"
        content = self._whole("the list of its files", url)
        try:
            listing = json.loads(content)
            self.listed = sorted(str(entry["rfilename"]) for entry in listing["siblings"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadCheckpoint(
                f"{self.label}: {self._address} does not list its files ({type(error).__name__})"
            ) from error
        if _COMMIT.fullmatch(commit := str(listing.get("sha"))):
            self.revision = commit
        return self.listed

    def copy(self, name: str, path: Path) -> bool:
        """Write a file whole to disk; return False if there is none; BadCheckpoint if it cannot be fetched."""
        if not self.has(name):
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._response(name, self._url(name)) as response, path.open("wb") as file:
            for chunk in self._body(name, response, 1 << 40):
                file.write(chunk)
                self.progress(f"fetching {name}", file.tell(), int(response.headers.get("content-length") or 0))
        return True

    def part(self, name: str, begin: int, end: int) -> Iterator[bytes]:
        """Yield bytes `begin` to `end` (not included) of a file; BadCheckpoint unless they all arrive."""
        with self._response(name, self._url(name), {"Range": f"bytes={begin}-{end - 1}"}) as response:
            self._check_part(name, response, begin, end)
            yield from self._body(name, response, end - begin, exactly=True)

    def size(self, name: str) -> int:
        """Return the bytes of a file of which a part has been read."""
        return self.versions[name][1]

    def _check_part(self, name: str, response: Any, begin: int, end: int) -> None:
        if response.status_code != 206:
            raise BadCheckpoint(
                f"{self.label}: the server answered a request for bytes {begin} to {end - 1} of {name} with all of it "
                f"(status {response.status_code}); it does not serve parts: {_REMEDY}"
            )
        content_range = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
        if not content_range or (int(content_range[1]), int(content_range[2])) != (begin, end - 1):
            raise BadCheckpoint(
                f"{self.label}: the server answered a request for bytes {begin} to {end - 1} of {name} with "
                f"{response.headers.get('content-range')!r}; {_REMEDY}"
            )
        version = (response.headers.get("etag"), int(content_range[3]))
        if (known := self.versions.setdefault(name, version)) != version:
            raise BadCheckpoint(
                f"{self.label}: {name} changed while it was read (ETag and size {known}, then {version}); try again"
            )

    def _body(self, name: str, response: Any, most: int, exactly: bool = False) -> Iterator[bytes]:
        if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
            raise BadCheckpoint(f"{self.label}: {name} came encoded as {encoding}, which was not asked for; {_REMEDY}")
        received = 0
        for chunk in response.iter_bytes():
            received += len(chunk)
            if received > most:
                raise BadCheckpoint(f"{self.label}: {name} came with more than the {most} bytes that were due")
            yield chunk
        if exactly and received != most:
            raise BadCheckpoint(f"{self.label}: of {name} {received} bytes came instead of {most}; try again")

    def _whole(self, name: str, url: str) -> bytes:
        with self._response(name, url) as response:
            return b"".join(self._body(name, response, SMALL_FILE_LIMIT))

    @contextmanager
    def _response(self, name: str, url: str, headers: Mapping[str, str] | None = None) -> Iterator[Any]:
        """Send a GET and yield the response, its body not yet read.

        Args:
            name: name of the file, or of the response in messages.
            url: address of the file.
            headers: sent besides those of every request.
        """
        from httpx2 import HTTPError
        from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled
        from huggingface_hub.utils import hf_raise_for_status

        try:
            with self._request(url, headers or {}) as response:
                hf_raise_for_status(response)
                yield response
        except OfflineModeIsEnabled as error:
            raise BadCheckpoint(
                f"{self.label} is on the hub, but HF_HUB_OFFLINE is set: unset it, or give a folder"
            ) from error
        except (HTTPError, HFValidationError, UnicodeError) as error:
            raise BadCheckpoint(self._describe_error(name, error)) from error

    @property
    def _address(self) -> str:
        """The hub's address."""
        from huggingface_hub import constants

        return self.endpoint or constants.ENDPOINT

    def _url(self, name: str) -> str:
        from huggingface_hub import hf_hub_url

        return str(hf_hub_url(self.id, name, revision=self.revision, endpoint=self.endpoint))

    def _request(self, url: str, headers: Mapping[str, str]) -> AbstractContextManager[Any]:
        from huggingface_hub import constants, get_token
        from huggingface_hub.utils import http_stream_backoff

        sent_headers = {"User-Agent": f"inlay/{VERSION}", "Accept-Encoding": "identity", **headers}
        if not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN and (token := get_token()):
            sent_headers["Authorization"] = f"Bearer {token}"
        # no retry on exceptions: the library's generator cannot start again under a reader of its body
        response: AbstractContextManager[Any] = http_stream_backoff(
            "GET", url, headers=sent_headers, timeout=TIMEOUT_S, max_retries=RETRIES, retry_on_exceptions=()
        )
        return response

    def _describe_error(self, name: str, error: Exception) -> str:
        """Return one line for any exception of the library."""
        where = self._address
        code = str(getattr(getattr(error, "response", None), "headers", {}).get("x-error-code", ""))
        status = getattr(getattr(error, "response", None), "status_code", None)
        if code == "GatedRepo":
            return f"{self.label} is gated: accept its terms on {where} and log in with `hf auth login` or HF_TOKEN"
        if code == "RevisionNotFound":
            return f"{self.id} has no revision {self.revision!r}; give a branch, a tag or a commit after @"
        if code == "RepoNotFound" or status in (401, 403, 404):
            return (
                f"{self.label} was refused by {where} with status {status}: there is no such model, or it is private "
                "or gated and needs `hf auth login` or HF_TOKEN; nor is there a folder of that name here"
            )
        reason = str(error).strip().splitlines()
        what = f"status {status}" if status else f"{type(error).__name__}{f': {reason[0]}' if reason else ''}"
        return f"{self.label}: {name} did not come from {where} ({what}); {self.id} is no folder here either: try again"


def parse_hub_id(what: str) -> tuple[str, str] | None:
    """Return (id, revision) of `org/name` or `org/name@revision`; None for any other text."""
    match = ID.fullmatch(what)
    return (match[1], match[2] or "main") if match and ".." not in what else None
