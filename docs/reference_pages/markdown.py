"""Pieces of Markdown: tables, folded blocks, headings with anchors."""

import json
import re
from collections.abc import Iterable, Sequence
from textwrap import indent
from typing import Any

CODE = re.compile(r"(`[^`]*`)")
SETTING = re.compile(r"(?<![`\w])(INLAY_[A-Z_]*[A-Z])(?!\w)")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; without rows an empty text."""
    lines = ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(header)} |", "|" + "---|" * len(header), *lines])


def cell(value: str) -> str:
    """Return a text as it may stand in a table's cell: on one line, its bars escaped."""
    return value.replace("\n\n", "<br>").replace("\n", " ").replace("|", "\\|").strip()


def code(value: str) -> str:
    """Return a text as code; in the delimiter that it does not hold."""
    return f"`` {value} ``" if "`" in value else f"`{value}`"


def plain(value: str) -> str:
    """Return a text of the code as Markdown shows it word for word: markup outside backticks is escaped."""
    parts = CODE.split(value)
    escaped = [part if part.startswith("`") else re.sub(r"([\\*_<>\[\]{}~^])", r"\\\1", part) for part in parts]
    return "".join(escaped)


def described(value: str) -> str:
    """Return a text of the code as Markdown, with the settings that it names as code."""
    return CODE.sub(lambda match: match[0], plain(SETTING.sub(r"`\1`", value)))


def heading(level: int, text: str, anchor: str = "") -> str:
    """Return a heading, with an anchor of its own if one is given."""
    return f"{'#' * level} {text}" + (f" {{ #{anchor} }}" if anchor else "")


def folded(title: str, text: str) -> str:
    """Return a block that is closed until the reader opens it."""
    quoted = title.replace('"', "'")
    return f'??? note "{quoted}"\n\n{indent(text, "    ")}'


def json_block(value: Any) -> str:
    """Return a value as a block of JSON."""
    return f"```json\n{json.dumps(value, indent=2, ensure_ascii=False)}\n```"


def page(title: str, *parts: str, wide: bool = False) -> str:
    """Return a page of its title and the parts that are not empty.

    Args:
        wide: tables take the place of the table of contents.
    """
    front = "---\nhide: [toc]\n---\n\n" if wide else ""
    return front + "\n\n".join([f"# {title}", *(part.strip("\n") for part in parts if part)]) + "\n"


def slug(text: str) -> str:
    """Return a text as part of an address."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
