"""A repository of the Hugging Face hub over HTTP: files whole, or some bytes of them. Knows no checkpoint.

HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE are honoured by the library, which also finds a stored login. Its own headers
are not sent: making them asks the hub for a list of agents and tells it what runs here.

Source: huggingface_hub 2.4; RFC 9110 (14: range requests).
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models import VERSION
from models.errors import BadCheckpoint
from models.progress import Progress, no_progress

ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w][\w./-]*))?", re.ASCII)
SMALL_FILE_LIMIT = 1 << 28  # the largest tokenizer.json have some 40 MB
TIMEOUT_S = 30
RETRIES = 3  # of an answer that says the server is busy
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_NO_FILE = "EntryNotFound"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_WAY_OUT = "download it with `hf download` and give its folder"


@dataclass(slots=True)
class Repository:
    """One model's files at one commit. Every answer is held against what was asked and what came before.

    Attributes:
        revision: as asked, then the commit the first answer names, so that no two answers are of different commits.
        endpoint: None: what huggingface_hub is set to.
        received: bytes of bodies so far.
    """

    id: str
    revision: str = "main"
    endpoint: str | None = None
    progress: Progress = no_progress
    received: int = 0
    pinned: bool = False
    versions: dict[str, tuple[str | None, int]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What messages and cards call it."""
        return f"{self.id}@{self.revision}"

    def read(self, name: str) -> bytes | None:
        """A small file whole; None where there is none; raises BadCheckpoint."""
        with self._answer(name) as answer:
            return None if answer is None else b"".join(self._body(name, answer, SMALL_FILE_LIMIT))

    def has(self, name: str) -> bool:
        """Whether there is such a file; raises BadCheckpoint."""
        with self._answer(name, {"Range": "bytes=0-0"}) as answer:
            return answer is not None

    def copy(self, name: str, path: Path) -> bool:
        """A file whole, onto disk; False where there is none; raises BadCheckpoint."""
        with self._answer(name) as answer:
            if answer is None:
                return False
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for chunk in self._body(name, answer, 1 << 40):
                    file.write(chunk)
                    self.progress(f"fetching {name}", file.tell(), int(answer.headers.get("content-length") or 0))
        return True

    def part(self, name: str, begin: int, end: int) -> Iterator[bytes]:
        """Bytes begin to end (not included) of a file; raises BadCheckpoint unless they all come."""
        with self._answer(name, {"Range": f"bytes={begin}-{end - 1}"}) as answer:
            if answer is None:
                raise BadCheckpoint(f"{self.label} has no {name}, which it should; is it being changed?")
            self._check_part(name, answer, begin, end)
            yield from self._body(name, answer, end - begin, exactly=True)

    def size(self, name: str) -> int:
        """Bytes of a file of which a part has been read."""
        return self.versions[name][1]

    def _check_part(self, name: str, answer: Any, begin: int, end: int) -> None:
        if answer.status_code != 206:
            raise BadCheckpoint(
                f"{self.label}: the server answered a request for bytes {begin} to {end - 1} of {name} with all of it "
                f"(status {answer.status_code}); it does not serve parts: {_WAY_OUT}"
            )
        said = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
        if not said or (int(said[1]), int(said[2])) != (begin, end - 1):
            raise BadCheckpoint(
                f"{self.label}: the server answered a request for bytes {begin} to {end - 1} of {name} with "
                f"{answer.headers.get('content-range')!r}; {_WAY_OUT}"
            )
        version = (answer.headers.get("etag"), int(said[3]))
        if (known := self.versions.setdefault(name, version)) != version:
            raise BadCheckpoint(
                f"{self.label}: {name} changed while it was read (ETag and size {known}, then {version}); try again"
            )

    def _body(self, name: str, answer: Any, most: int, exactly: bool = False) -> Iterator[bytes]:
        if (encoding := answer.headers.get("content-encoding", "identity")) != "identity":
            raise BadCheckpoint(f"{self.label}: {name} came encoded as {encoding}, which was not asked for; {_WAY_OUT}")
        came = 0
        for chunk in answer.iter_bytes():
            came += len(chunk)
            self.received += len(chunk)
            if came > most:
                raise BadCheckpoint(f"{self.label}: {name} came with more than the {most} bytes that were due")
            yield chunk
        if exactly and came != most:
            raise BadCheckpoint(f"{self.label}: of {name} {came} bytes came instead of {most}; try again")

    @contextmanager
    def _answer(self, name: str, headers: Mapping[str, str] | None = None) -> Iterator[Any]:
        """The answer to a GET, its body not yet read; None where there is no such file."""
        from httpx2 import HTTPError
        from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled
        from huggingface_hub.utils import hf_raise_for_status

        try:
            with self._request(name, headers or {}) as answer:
                if answer.status_code == 404 and answer.headers.get("x-error-code", _NO_FILE) == _NO_FILE:
                    yield None
                    return
                hf_raise_for_status(answer)
                self._pin(answer)
                yield answer
        except OfflineModeIsEnabled as error:
            raise BadCheckpoint(
                f"{self.label} is on the hub, but HF_HUB_OFFLINE is set: unset it, or give a folder"
            ) from error
        except (HTTPError, HFValidationError, UnicodeError) as error:
            raise BadCheckpoint(self._explained(name, error)) from error

    def _request(self, name: str, headers: Mapping[str, str]) -> AbstractContextManager[Any]:
        from huggingface_hub import constants, get_token, hf_hub_url
        from huggingface_hub.utils import http_stream_backoff

        url = hf_hub_url(self.id, name, revision=self.revision, endpoint=self.endpoint)
        asked = {"User-Agent": f"inlay/{VERSION}", "Accept-Encoding": "identity", **headers}
        if not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN and (token := get_token()):
            asked["Authorization"] = f"Bearer {token}"
        # no retry on exceptions: the library's generator cannot start again under a reader of its body
        answer: AbstractContextManager[Any] = http_stream_backoff(
            "GET", url, headers=asked, timeout=TIMEOUT_S, max_retries=RETRIES, retry_on_exceptions=()
        )
        return answer

    def _pin(self, answer: Any) -> None:
        found = [each.headers.get("x-repo-commit", "") for each in (*answer.history, answer)]
        commit = next((each for each in found if _COMMIT.fullmatch(each)), None)
        if commit and not self.pinned:
            self.revision, self.pinned = commit, True

    def _explained(self, name: str, error: Exception) -> str:
        """One line for whatever the library raised; its own are many, and speak to programmers."""
        from huggingface_hub import constants

        where = self.endpoint or constants.ENDPOINT
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
        said = str(error).strip().splitlines()
        what = f"status {status}" if status else f"{type(error).__name__}{f': {said[0]}' if said else ''}"
        return f"{self.label}: {name} did not come from {where} ({what}); {self.id} is no folder here either: try again"


def parse_hub_id(what: str) -> tuple[str, str] | None:
    """(id, revision) of `org/name` or `org/name@revision`; None for what is neither."""
    found = ID.fullmatch(what)
    return (found[1], found[2] or "main") if found and ".." not in what else None
