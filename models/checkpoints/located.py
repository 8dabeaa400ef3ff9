"""`LocatedCheckpoint`: where the checkpoint that an operator named lies, and how to open it."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from models.checkpoints.checkpoint import Checkpoint
from models.checkpoints.hub import Repository
from models.checkpoints.json_files import line_of
from models.checkpoints.sentence_modules import Fetch, on_disk
from models.errors import BadCheckpoint, ModelError

CONFIG = "config.json"
# what messages say of a file of JSON, config.json where they name none, with the text by which the line is found
_SAID = re.compile(r"(?<![\w/.-])(?P<file>[^\s'\"():]*\.json)(?P<said>(?: says| names| sets| has \d+|:) (?P<key>\w+))")
_IN = re.compile(r"\b(?P<said>(?P<key>\w+) in )(?P<file>[\w.-]+\.json)")
_TYPE = re.compile(r"(?:^|(?<=\())(?P<said>(?P<key>model_type) (?='[^']*'(?:\)| is not known)))")
_CLASS = re.compile(r"(?<=is published as )(?P<said>(?P<key>\w*For\w+))")
_HELPS = re.compile(
    r"--\w|\b(add|again|anew|choose|computed|convert|download|export|give|known|leave|merge|must|name (?:it|one|the)"
    r"|only|put|save|take|try|write|once)\b"
)
_HELP = ": its files do not belong together, or are damaged; download them again, all from one place"


@dataclass(frozen=True, slots=True)
class LocatedCheckpoint:
    """Where a checkpoint is, and how to open it.

    Attributes:
        folder: holds config.json, tokenizer and sentence-transformers files, and safetensors where they are complete.
        name: name in cards: a folder's or a file's name, or org/name@commit.
        checkpoint: opens config and tensors; raises BadCheckpoint.
        repository: repository to fetch other files from; None: the checkpoint is on this machine.
        fetch_module: brings the weights of a sentence-transformers module, by its place in the checkpoint, to `folder`.
    """

    folder: Path
    name: str
    checkpoint: Callable[[], Checkpoint]
    repository: Repository | None = None
    fetch_module: Fetch = on_disk


def check_links(folder: Path) -> None:
    """Raise BadCheckpoint for a link in a checkpoint's folder that leads out of it.

    Links of a snapshot in the cache of huggingface_hub may lead to the folder blobs of the same repository.
    """
    root = folder.resolve()
    allowed = [root, *(place.with_name("blobs") for place in root.parents if place.name == "snapshots")]
    for place, folders, files in os.walk(root) if folder.is_dir() else ():
        for path in (Path(place, name) for name in (*folders, *files)):
            target = Path(os.path.realpath(path)) if path.is_symlink() else path
            if not any(target.is_relative_to(each) for each in allowed):
                raise BadCheckpoint(f"{path} is a link to {target}, out of the checkpoint: put a copy in its place")


@contextmanager
def lines_in_errors(folder: Path) -> Iterator[None]:
    """Complete the messages of ModelErrors: with the file and line of what they quote, and with what would help.

    Args:
        folder: the folder of config.json.
    """
    try:
        yield
    except ModelError as error:
        message = _completed(folder, str(error), isinstance(error, BadCheckpoint))
        if message == str(error):
            raise
        raise type(error)(message) from error


def _completed(folder: Path, message: str, of_files: bool) -> str:
    """Return a message with the places of what it says; `of_files`: it is about the checkpoint's files."""

    def place(found: re.Match[str]) -> str:
        named = Path(found.groupdict().get("file") or CONFIG)
        path = folder / named.name if len(named.parts) == 1 else named
        return line_of(path, found["key"]) if path.is_file() else str(named)

    message = _TYPE.sub(lambda found: f"{place(found)}: {found['said']}", message)
    message = _CLASS.sub(lambda found: f"{found['said']} ({place(found)})", message)
    message = _SAID.sub(lambda found: f"{place(found)}{found['said']}", message)
    message = _IN.sub(lambda found: f"{found['said']}{place(found)}", message)
    if not of_files or message.startswith("--"):
        return message
    named = message if folder.name in message or "/" in message else f"{folder}: {message}"
    return named if _HELPS.search(message) else named + _HELP


@contextmanager
def renamed_in_errors(paths: Sequence[Path], shown: Callable[[], str]) -> Iterator[None]:
    """Replace a temporary path in the messages of ModelErrors by a name that the operator knows.

    Args:
        paths: the temporary paths, inner ones first.
        shown: returns the name that replaces them; called for an error.
    """
    try:
        yield
    except ModelError as error:
        if not any(str(path) in str(error) for path in paths):
            raise
        message = str(error)
        for path in paths:
            message = message.replace(str(path), shown())
        raise type(error)(message) from error
