"""A hub of one folder on loopback: answers GET with Range as huggingface.co does, and counts the bytes it sends.

Each misbehaviour is a row of FAULTS: what the handler does instead, for files whose name ends with `fault_on`.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_LISTING = re.compile(r"/api/models/([\w.-]+/[\w.-]+)/revision/([\w.%-]+)")
_PATH = re.compile(r"/([\w.-]+/[\w.-]+)/resolve/([\w.%-]+)/(.+)")
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_PIECE = 1 << 16


@dataclass
class Hub:
    """The folder that is served, and the requests received.

    redirect_to  an endpoint that files matching `fault_on` are fetched from, as the hub sends clients to its CDN
    lists        whether it lists its files
    unknown_paths  requested paths that are no files of a repository
    requests     (file, Range) in order
    others       folders of further repositories, by name
    """

    folder: Path
    repository: str = "org/name"
    revisions: tuple[str, ...] = ("main", COMMIT)
    fault: str = ""
    fault_on: str = ".safetensors"
    redirect_to: str = ""
    endpoint: str = ""
    lists: bool = True
    sent: int = 0
    unknown_paths: list[str] = field(default_factory=list)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    others: dict[str, Path] = field(default_factory=dict)

    def folder_of(self, repository: str) -> Path | None:
        """The folder of a repository; None: there is no such one."""
        return self.folder if repository == self.repository else self.others.get(repository)


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[Hub]:
    """A hub on a free port until the block ends."""
    hub = Hub(folder, **options)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        hub = self.hub
        if hub.lists and (listing := _LISTING.fullmatch(self.path)) and (listed := hub.folder_of(listing[1])):
            return self._list(listed) if unquote(listing[2]) in hub.revisions else self._refuse(404, "RevisionNotFound")
        match = _PATH.fullmatch(self.path)
        if not match:
            hub.unknown_paths.append(self.path)
        folder = hub.folder_of(match[1]) if match else None
        if not match or folder is None:
            return self._refuse(401, "RepoNotFound")
        if unquote(match[2]) not in hub.revisions:
            return self._refuse(404, "RevisionNotFound")
        name, range_header = match[3], self.headers.get("Range")
        hub.requests.append((name, range_header))
        hub.headers.append({key.lower(): value for key, value in self.headers.items()})
        fault = hub.fault if name.endswith(hub.fault_on) else ""
        if fault in _STATUS:
            return self._refuse(*_STATUS[fault])
        if hub.redirect_to and name.endswith(hub.fault_on):
            return self._redirect(hub.redirect_to + self.path)
        path = folder / name
        if not path.is_file():
            return self._refuse(404, "EntryNotFound")
        return self._send(path, range_header, fault)

    def _list(self, folder: Path) -> None:
        files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        content = json.dumps({"sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _redirect(self, place: str) -> None:
        self.send_response(302)
        self.send_header("Location", place)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Linked-Etag", '"linked"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, path: Path, range_header: str | None, fault: str) -> None:
        size = path.stat().st_size
        begin, end, parts = 0, size, False
        if range_header and fault != "ignores Range" and (match := _RANGE.fullmatch(range_header)):
            begin, end, parts = int(match[1]), min(int(match[2]) + 1, size), True
        if fault == "another range" and parts:
            begin, end = begin + 1, end + 1
        self.send_response(206 if parts else 200)
        number = len(self.hub.requests)
        self.send_header("ETag", f'"{number}"' if fault == "changed" else '"one"')
        self.send_header("X-Repo-Commit", COMMIT)
        if parts:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size + (number if fault == 'grows' else 0)}")
        if fault == "encoded":
            self.send_header("Content-Encoding", "gzip")
        if fault == "too short":  # says so honestly, unlike one that hangs up
            end -= 1
        if fault == "too long":
            end += 3
        if fault == "no range said" and parts:
            self.send_header("Content-Range", "bytes */*")
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        self._body(path, begin, end - 1 if fault == "hangs up" else end)
        if fault in ("hangs up", "ignores Range"):
            self.close_connection = True

    def _body(self, path: Path, begin: int, end: int) -> None:
        with path.open("rb") as file:
            file.seek(begin)
            while begin < end:
                piece = file.read(min(_PIECE, end - begin)).ljust(1, b"\0")
                try:
                    self.wfile.write(piece)
                except OSError:  # the client has seen enough
                    self.close_connection = True
                    return
                self.hub.sent += len(piece)
                begin += len(piece)


_STATUS = {
    "gated": (403, "GatedRepo"),
    "forbidden": (403, ""),
    "unauthorised": (401, ""),
    "gone": (410, ""),
    "no such file": (404, ""),
}
