"""Input files that fsspec opens: s3://, gs://, hf:// and others, where the packages for them are installed.

Each is copied here when it is read; the last copy is kept.
"""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path, PosixPath
from typing import Any

from service.errors import StartError

URL = re.compile(r"[a-z][a-z0-9+.-]+:/+[^/]")
PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface-hub"}
_copies: list[tuple[Path, "tempfile.TemporaryDirectory[str]"]] = []  # of the last input


class Remote(PosixPath):
    """The address of a file or folder elsewhere; only its name is used as a path."""

    def __str__(self) -> str:
        path = super().__str__()
        return path.replace(":/", ":///" if path.startswith("file:") else "://", 1)


def path_of(name: str | Path) -> Path:
    """Return a path, Remote if it is an address."""
    return Remote(name) if URL.match(str(name)) else Path(name)


def find(source: Remote) -> list[Path]:
    """Return the files that an address, also of a folder or with wildcards, names, in order."""
    with explained(source):
        files, path = filesystem(source)
        is_file, is_folder = files.isfile(path), files.isdir(path)
        names = [path] if is_file else files.find(path) if is_folder else files.glob(path)
        return [Remote(files.unstrip_protocol(name)) for name in sorted(names)]


def stamp(path: Remote) -> tuple[int, int]:
    """Return the size of a file, and a number that changes with it."""
    with explained(path):
        files, name = filesystem(path)
        return int(files.size(name)), int.from_bytes(sha256(str(files.ukey(name)).encode()).digest()[:6])


def here(path: Path) -> Path:
    """Return where a file can be read: itself, or a copy that lasts until the next is made."""
    if not isinstance(path, Remote):
        return path
    if not _copies or _copies[0][0] != path:
        folder = tempfile.TemporaryDirectory(prefix="inlay-input-")
        with explained(path):
            files, name = filesystem(path)
            files.get_file(name, f"{folder.name}/{path.name}")
        for _, before in _copies:
            before.cleanup()
        _copies[:] = [(path, folder)]
    return Path(_copies[0][1].name, path.name)


def filesystem(path: Remote) -> tuple[Any, str]:
    """Return the file system of an address, and its path there."""
    scheme = str(path).partition(":")[0]
    try:
        from fsspec.core import url_to_fs

        return url_to_fs(str(path))  # type: ignore[no-any-return]
    except (ImportError, ValueError) as error:
        package = PACKAGES.get(scheme)
        remedy = f": pip install {package}" if package else ""
        raise StartError(f"{path} cannot be opened: {error}{remedy}") from error


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of other people's file systems, which have types of their own, into StartError."""
    try:
        yield
    except FileExistsError as error:
        raise StartError(f"{path}: another run has just begun there: start again to go on with it") from error
    except StartError:
        raise
    except Exception as error:
        reason = str(error).split("\n")[0] or type(error).__name__
        raise StartError(f"{path} cannot be read or written: {reason}") from error
