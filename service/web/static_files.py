"""The static files of the web page, read once at start."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

FOLDER = Path(__file__).parent / "static"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file of the page.

    Attributes:
        body: its bytes.
        media_type: by its suffix.
        etag: quoted, a hash of the bytes.
    """

    body: bytes
    media_type: str
    etag: str


def read_static_files(folder: Path = FOLDER) -> dict[str, StaticFile]:
    """Return the files of a folder by their path in it, such as `views/try.js`; licences and notes are left out."""
    return {
        path.relative_to(folder).as_posix(): _read(path)
        for path in sorted(folder.rglob("*"))
        if path.suffix in MEDIA_TYPES
    }


def _read(path: Path) -> StaticFile:
    body = path.read_bytes()
    return StaticFile(body, MEDIA_TYPES[path.suffix], f'"{sha256(body).hexdigest()[:32]}"')
