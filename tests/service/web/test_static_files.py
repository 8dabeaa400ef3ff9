"""The files of the web page: vendored ones unchanged, none from another origin, small enough for a first paint."""

import re
from hashlib import sha256
from pathlib import Path

import pytest

from service.http.static_files import read_static_files
from service.web.routes import FOLDER

PAGE_BYTES = 400_000
WORKERS = [f"views/search/{name}_worker.js" for name in ("map", "layout")] + [
    "views/search/nearest.js",
    "vendor/umap.js",
]
OWN = sorted(
    path for path in FOLDER.rglob("*") if path.suffix in (".html", ".js", ".css") and "vendor" not in path.parts
)
VENDORED = re.findall(
    r"^\| `(?P<file>[\w.-]+)` \|.*\| `(?P<hash>[0-9a-f]{64})` \|$",
    (FOLDER / "vendor/README.md").read_text(),
    re.MULTILINE,
)


def test_vendored_files_have_the_hashes_of_their_table() -> None:
    files = {path.name: path for path in (FOLDER / "vendor").iterdir() if path.suffix in (".js", ".css")}
    assert {name: sha256(path.read_bytes()).hexdigest() for name, path in files.items()} == dict(VENDORED)


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.relative_to(FOLDER).as_posix())
def test_own_files_name_no_other_origin(path: Path) -> None:
    addresses = re.findall(r"https?://[^\s\"'`<>)]+", path.read_text())
    assert [each for each in addresses if not each.startswith("http://www.w3.org/")] == []


@pytest.mark.parametrize("path", [path for path in OWN if path.suffix == ".js"], ids=lambda path: path.stem)
def test_imports_of_modules_exist(path: Path) -> None:
    named = re.findall(r"""(?:from|import)\s*\(?\s*["'](\.[^"']+)["']""", path.read_text())
    assert [each for each in named if not (path.parent / each).resolve().is_file()] == []


def test_first_view_is_small() -> None:
    """All that a browser loads for the first view: the page, its styles, the frame, that view and its workers."""
    files = read_static_files(FOLDER)
    loaded, waiting = set[str](), ["index.html", "icon.svg", "style.css", "theme.js", "app.js", "views/search.js"]
    waiting += ["views/search/search.css", *WORKERS]
    while waiting:
        name = waiting.pop()
        if name in loaded:
            continue
        loaded.add(name)
        text = files[name].body.decode()
        imports = re.findall(r"""from\s*["'](\.[^"']+)["']""", text)
        waiting += [
            (FOLDER / name).parent.joinpath(each).resolve().relative_to(FOLDER.resolve()).as_posix() for each in imports
        ]
    assert "vendor/htm-preact.js" in loaded
    assert sum(len(files[name].body) for name in loaded) < PAGE_BYTES
