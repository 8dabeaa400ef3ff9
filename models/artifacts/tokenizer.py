"""Copies a checkpoint's tokenizer.json into the exported folder."""

import json
from collections.abc import Sequence
from pathlib import Path

from models.checkpoints import sentence_transformers
from models.checkpoints.checkpoint import read_object
from models.checkpoints.provenance import Setting
from models.checkpoints.sentence_transformers import SentenceFiles
from models.errors import BadCheckpoint

FILE_NAME = "tokenizer.json"


def copy(checkpoint: Path, folder: Path, lowercase: bool) -> bool:
    """Copy tokenizer.json if there is one, after checking that it loads.

    Args:
        checkpoint: the folder it lies in.
        folder: folder to write to.
        lowercase: put a Lowercase normalizer first unless there is one, as sentence-transformers does for
            `do_lower_case`.

    Returns:
        Whether there was one.

    Raises:
        BadCheckpoint: the tokenizers library does not read it.
    """
    path = checkpoint / FILE_NAME
    if not path.is_file():
        return False
    content = path.read_bytes()
    if lowercase:
        content = _lowercased(path)
    _check(content, path)
    (folder / FILE_NAME).write_bytes(content)
    (folder / FILE_NAME).chmod(0o644)
    return True


def copy_bare(path: Path, folder: Path) -> None:
    """Copy a tokenizer without its post-processor: static embeddings are looked up without special tokens."""
    content = json.dumps(read_object(path) | {"post_processor": None}, ensure_ascii=False)
    (folder / FILE_NAME).write_text(content, encoding="utf-8")
    (folder / FILE_NAME).chmod(0o644)


def add_markers(folder: Path, markers: Sequence[str]) -> None:
    """Make an exported tokenizer read entries of its vocabulary as one token wherever a text names them."""
    from tokenizers import AddedToken, Tokenizer

    exported = Tokenizer.from_file(str(folder / FILE_NAME))
    exported.add_special_tokens([AddedToken(marker, normalized=False, special=True) for marker in markers])
    exported.save(str(folder / FILE_NAME))


def longest_input(positions: int | None, sentence: SentenceFiles, folder: Path) -> int | None:
    """Return the longest input in tokens: what the positions allow, or less if the model's files say so; None: any."""
    stated = sentence.max_tokens or sentence_transformers.tokenizer_max_tokens(folder)
    limits = [limit for limit in (positions, stated) if limit is not None]
    return min(limits) if limits else None


def provenance(folder: Path, sentence: SentenceFiles, positions: int | None, longest: int | None) -> list[Setting]:
    """Return where the letter case and the longest input of a text were read.

    Args:
        folder: the folder of the tokenizer.
        sentence: what the files of sentence-transformers, or the family, say.
        positions: as many tokens as the model has positions for; None: any number.
        longest: the longest input in tokens that is exported; None: any.
    """
    stated = {
        "the files of sentence-transformers": sentence.max_tokens,
        "tokenizer_config.json": sentence_transformers.tokenizer_max_tokens(folder),
        "config.json": positions,
    }
    origin = next((origin for origin, tokens in stated.items() if tokens == longest), "the files of several vectors")
    setting = Setting("longest input", f"{longest} tokens" if longest else "any", origin if longest else "no file")
    settings = [setting]
    if sentence.lowercase:
        settings.append(Setting("letter case", "lowercased", "do_lower_case of sentence-transformers, or the family"))
    return settings


def _check(content: bytes, path: Path) -> None:
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_str(content.decode("utf-8"))
    except Exception as error:  # the library raises bare Exception
        raise BadCheckpoint(f"{path} is not a tokenizer the tokenizers library reads: {error}") from error


def _lowercased(path: Path) -> bytes:
    data = read_object(path)
    normalizer = data.get("normalizer")
    steps = [normalizer] if normalizer else []
    if normalizer and normalizer.get("type") == "Sequence":
        steps = list(normalizer["normalizers"])
    if not any(step.get("type") == "Lowercase" or step.get("lowercase") for step in steps):
        data["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *steps]}
    return json.dumps(data, ensure_ascii=False).encode()
