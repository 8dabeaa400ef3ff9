"""Files of web pages, read once, and the responses that carry them."""

from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from service.http.response import Headers, Response
from service.http.routes import Request

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}


class StaticFile(NamedTuple):
    """One file of a page.

    Args:
        body: the file's bytes.
        media_type: the media type of its suffix.
        etag: quoted, a hash of the bytes.
    """

    body: bytes
    media_type: str
    etag: str

    @classmethod
    def of(cls, body: bytes, suffix: str) -> "StaticFile":
        """Return a file of some bytes."""
        return cls(body, MEDIA_TYPES[suffix], f'"{sha256(body).hexdigest()[:32]}"')


def read_static_files(folder: Path) -> dict[str, StaticFile]:
    """Return the files of a folder by relative path, such as `views/try.js`, without licences and notes."""
    return {
        path.relative_to(folder).as_posix(): StaticFile.of(path.read_bytes(), path.suffix)
        for path in sorted(folder.rglob("*"))
        if path.suffix in MEDIA_TYPES
    }


async def file_response(file: StaticFile, request: Request, *, headers: Headers) -> Response:
    """Return a file, or 304 if the browser has it."""
    headers = ((b"etag", file.etag.encode()), *headers)
    if request.holds(file.etag):
        return Response((), headers, 304)
    return Response((file.body,), (*headers, (b"content-type", file.media_type.encode())))
