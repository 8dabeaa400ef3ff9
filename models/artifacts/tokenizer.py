"""Writes a checkpoint's tokenizer into the exported folder, and says where it was read."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.checkpoints import sentence_transformers
from models.checkpoints.json_files import read_optional
from models.checkpoints.provenance import Setting
from models.checkpoints.sentence_transformers import SentenceFiles
from models.checkpoints.tokenizers.checkpoint_tokenizer import read_tokenizer
from models.checkpoints.tokenizers.files import CONFIG, TOKENIZER
from models.errors import BadCheckpoint

FILE_NAME = TOKENIZER


def copy(checkpoint: Path, folder: Path, lowercase: bool) -> bool:
    """Write tokenizer.json as the checkpoint's files have it, built of its vocabulary if there is none.

    Args:
        checkpoint: the folder it lies in.
        folder: folder to write to.
        lowercase: put a Lowercase normalizer first unless there is one, as sentence-transformers does for
            `do_lower_case`.

    Returns:
        Whether there was one.

    Raises:
        BadCheckpoint: the tokenizers library does not read it, or it cannot be built.
    """
    tokenizer = read_tokenizer(checkpoint, lowercase)
    if tokenizer is None:
        return False
    (folder / FILE_NAME).write_bytes(tokenizer.content)
    (folder / FILE_NAME).chmod(0o644)
    return True


def write_bare(tokenizer: Mapping[str, Any], folder: Path) -> None:
    """Write a tokenizer.json without its post-processor: static embeddings are looked up without special tokens."""
    content = json.dumps({**tokenizer, "post_processor": None}, ensure_ascii=False)
    (folder / FILE_NAME).write_text(content, encoding="utf-8")
    (folder / FILE_NAME).chmod(0o644)


def own_ending(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the EOS id behind every text if config.json says add_eos and the tokenizer puts none there (NV-Embed)."""
    end, tokenizer = config.get("eos_token_id"), read_tokenizer(folder) if config.get("add_eos") else None
    if tokenizer is None or type(end) is not int or tokenizer.library.encode("a").ids[-1:] == [end]:
        return ()
    return (end,)


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


def cut_side(folder: Path) -> Setting:
    """Return the side at which texts that are too long are cut, and the file that says so.

    Raises:
        BadCheckpoint: truncation_side is neither right nor left.
    """
    truncation = read_optional(folder / FILE_NAME).get("truncation") or {}
    said = {CONFIG: read_optional(folder / CONFIG).get("truncation_side"), FILE_NAME: truncation.get("direction")}
    origin, side = next(((name, str(value).lower()) for name, value in said.items() if value), ("no file", "right"))
    if side not in ("right", "left"):
        raise BadCheckpoint(f"{folder / origin} cuts texts at {side[:40]!r}; write right or left")
    return Setting("cut side", side, origin).against(FILE_NAME, said[FILE_NAME] and str(said[FILE_NAME]).lower())


def provenance(folder: Path, sentence: SentenceFiles, positions: int | None, longest: int | None) -> list[Setting]:
    """Return where the tokenizer, its letter case, the longest input and the side that is cut were read.

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
    tokenizer = read_tokenizer(folder, sentence.lowercase)
    return [*(tokenizer.settings if tokenizer else ()), setting, cut_side(folder)]
