"""The code blocks of a Markdown page, and what the comment before a block says about running it.

    <!-- run: clients -->              in .venv/clients; JavaScript in .venv/js, where there is npm
    <!-- run: hub -->                  with a stand-in for the Hugging Face hub
    <!-- run: server -->               starts a server, which later blocks of the page talk to
    <!-- run: error -->                has to fail: what it shows is an error
    <!-- run: syntax, needs REASON --> is only parsed

Several words may be joined by commas. A block without a comment runs. All JavaScript needs clients.
"""

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import yaml

JAVASCRIPT = "javascript"
RUNNABLE = ("bash", "python", JAVASCRIPT)
PARSED = ("json", "yaml", "toml")
SHOWN = ("text",)
MODES = ("clients", "hub", "server", "error", "syntax")
ALONE = "syntax"
_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<mark>`{3,}|~{3,})[ \t]*(?P<language>[\w+-]*)[^`]*")
_DIRECTIVE = re.compile(r"\s*<!--\s*run:\s*(?P<words>.*?)\s*-->\s*")
_REASON = re.compile(r"\w+ \S.*")


class BadBlock(ValueError):
    """A block that cannot be classified; the message names the page and the line."""


@dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
        line: of its opening fence, from 1.
        modes: words of MODES; empty: it is simply run.
    """

    page: str
    line: int
    language: str
    text: str
    modes: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.page}, line {self.line} ({self.language})"

    @property
    def runs(self) -> bool:
        """Whether the block is run, by bash, Python or Node."""
        return self.language in RUNNABLE and ALONE not in self.modes


def read(path: Path, name: str) -> list[Block]:
    """Return the blocks of a page."""
    return list(blocks(path.read_text(encoding="utf-8"), name))


def blocks(text: str, page: str) -> Iterator[Block]:
    """Yield the blocks of a page's text.

    Raises:
        BadBlock: a block has no language that is known, or a comment that is not; or it does not end.
    """
    lines = text.splitlines()
    number = 0
    waiting: tuple[int, str] | None = None
    while number < len(lines):
        line = lines[number]
        if directive := _DIRECTIVE.fullmatch(line):
            waiting = number, directive["words"]
        elif fence := _FENCE.fullmatch(line):
            end = _end(lines, number, fence["mark"], page)
            modes = _modes(waiting[1], f"{page}, line {number + 1}") if waiting else frozenset()
            yield _block(page, number + 1, fence["language"], lines[number + 1 : end], modes)
            number, waiting = end, None
        elif waiting:
            raise BadBlock(
                f"{page}, line {waiting[0] + 1}: `run: {waiting[1]}` has to stand on the line before a block"
            )
        number += 1
    if waiting:
        raise BadBlock(f"{page}, line {waiting[0] + 1}: `run: {waiting[1]}` has to stand on the line before a block")


def _end(lines: list[str], start: int, mark: str, page: str) -> int:
    """Return the line that closes a fence."""
    for number in range(start + 1, len(lines)):
        line = lines[number].strip()
        if len(line) >= len(mark) and not line.strip(mark[0]):
            return number
    raise BadBlock(f"{page}, line {start + 1}: the block does not end")


def _block(page: str, line: int, language: str, lines: list[str], modes: frozenset[str]) -> Block:
    block = Block(page, line, language, dedent("\n".join(lines)) + "\n", modes)
    if language not in (*RUNNABLE, *PARSED, *SHOWN):
        allowed = ", ".join((*RUNNABLE, *PARSED, *SHOWN))
        raise BadBlock(f"{page}, line {line}: a block of {language or 'no language'}; allowed: {allowed}")
    if modes and language not in RUNNABLE:
        raise BadBlock(f"{block}: only blocks of {', '.join(RUNNABLE)} are run")
    if language == JAVASCRIPT and "clients" not in modes:
        raise BadBlock(f"{block}: a block of {JAVASCRIPT} runs with clients")
    if "server" in modes and language != "bash":
        raise BadBlock(f"{block}: a server is started by bash")
    return block


def _modes(words: str, where: str) -> frozenset[str]:
    """Return the modes that a comment names."""
    first, *rest = [word.strip() for word in words.split(",", 1)]
    if first == ALONE:
        if not rest or not _REASON.fullmatch(rest[0]):
            raise BadBlock(f"{where}: `run: syntax` states a reason: `run: syntax, needs Docker`")
        return frozenset({ALONE})
    modes = frozenset(word.strip() for word in words.split(","))
    if unknown := sorted(modes - set(MODES)) or sorted(modes & {ALONE}):
        raise BadBlock(f"{where}: `run: {unknown[0]}` is not known here; allowed: {', '.join(MODES)}")
    return modes


def check_syntax(block: Block) -> None:
    """Raise where a block cannot be parsed as its language."""
    match block.language:
        case "bash":
            done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
            if done.returncode:
                raise BadBlock(f"{block}: {done.stderr.strip()}")
        case "python":
            compile(block.text, str(block), "exec")
        case "json":
            json.loads(block.text)
        case "yaml":
            list(yaml.safe_load_all(block.text))
        case "toml":
            tomllib.loads(block.text)
