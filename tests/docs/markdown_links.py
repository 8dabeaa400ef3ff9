"""Links of Markdown files: what each points to, and what of that does not exist."""

import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from urllib.parse import unquote

_FENCED = re.compile(r"^([ \t]*)(`{3,}|~{3,}).*?^[ \t]*\2`*[ \t]*$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_INLINE = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'][^)]*[\"'])?\s*\)")
_DEFINED = re.compile(r"^[ ]{0,3}\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
_ATTRIBUTE = re.compile(r"<(?:a|img|source)\b[^>]*?\b(?:href|src)=\"([^\"]+)\"")
_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t]*#*[ \t]*$", re.MULTILINE)
_OWN_ANCHOR = re.compile(r"[ \t]*\{[^}]*#([\w.:-]+)[^}]*\}$")
_ID = re.compile(r"\bid=\"([^\"]+)\"")
_MARKUP = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|[*~]|(?<!\w)_|_(?!\w)|<[^>]+>")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


def links(text: str) -> Iterator[str]:
    """Yield the targets of a text's links and images; what stands in code is none."""
    text = _COMMENT.sub("", _FENCED.sub("", text))
    # a link's text may be code, and is dropped with it
    text = _CODE.sub("code", text)
    for pattern in (_INLINE, _DEFINED, _ATTRIBUTE):
        yield from pattern.findall(text)


def anchors(text: str) -> set[str]:
    """Return the anchors of a text, as GitHub and as mkdocs make them of headings."""
    text = _FENCED.sub("", text)
    found = set(_ID.findall(text))
    seen: dict[str, int] = {}
    for heading in _HEADING.findall(text):
        if own := _OWN_ANCHOR.search(heading):
            found.add(own[1])
            continue
        title = _MARKUP.sub(lambda match: match[1] or "", heading).replace("`", "")
        for slug, joint in ((_of_github(title), "-"), (_of_mkdocs(title), "_")):
            number = seen[slug + joint] = seen.get(slug + joint, -1) + 1
            found.add(f"{slug}{joint}{number}" if number else slug)
    return found


def _of_github(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def _of_mkdocs(title: str) -> str:
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def broken(paths: Collection[Path], root: Path, made: Mapping[Path, str]) -> list[str]:
    """Return a line for each link of these files whose target does not exist.

    Args:
        made: pages that exist only in the built site, with their text.
    """

    @cache
    def anchors_of(path: Path) -> set[str]:
        return anchors(made[path] if path in made else path.read_text(encoding="utf-8"))

    wrong = []
    for path in paths:
        for target in links(path.read_text(encoding="utf-8")):
            if _SCHEME.match(target):
                continue
            place, _, anchor = target.partition("#")
            to = (path.parent / unquote(place)).resolve() if place else path
            name = f"{path.relative_to(root)}: {target}"
            if not (to.exists() or to in made):
                wrong.append(f"{name}: there is no such file")
            elif not to.is_relative_to(root):
                wrong.append(f"{name}: outside the repository")
            elif anchor and to.suffix == ".md" and anchor not in anchors_of(to):
                wrong.append(f"{name}: the page has no such anchor")
    return wrong
