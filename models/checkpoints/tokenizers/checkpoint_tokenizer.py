"""`CheckpointTokenizer`: the tokenizer.json of a checkpoint, or one built, with what tokenizer_config.json says of it.

A switch that tokenizer_config.json leaves out is as tokenizer.json has it, and so is one that the tokenizer's class
ignores: paraphrase-multilingual-MiniLM-L12-v2 says do_lower_case of a class that keeps the case of letters.

Source: transformers 4.57, BertTokenizerFast, LlamaTokenizerFast.update_post_processor, PreTrainedTokenizerFast; the
    slow classes for lowercase beside SentencePiece. transformers 5.23 drops add_bos_token and add_eos_token where there
    is a tokenizer.json.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from models.checkpoints.json_files import read_object
from models.checkpoints.provenance import Setting
from models.checkpoints.tokenizers import building, classes
from models.checkpoints.tokenizers.files import ADDED, CONFIG, MAP, TOKENIZER, TokenizerFiles, read_files
from models.errors import BadCheckpoint

_NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
_BY_SWITCHES = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer", "GPTNeoXTokenizer")
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CheckpointTokenizer:
    """A tokenizer as it is exported.

    Attributes:
        content: its tokenizer.json; the bytes of the checkpoint's own where nothing was changed.
        library: the tokenizer of the tokenizers library, which neither cuts nor fills.
        settings: where it was read, and what is put around texts; what the files beside it changed.
    """

    content: bytes
    library: Any
    settings: tuple[Setting, ...] = ()


def read_tokenizer(folder: Path, lowercase: bool = False) -> CheckpointTokenizer | None:
    """Return the tokenizer of a checkpoint's folder; None: it has neither tokenizer.json nor a vocabulary.

    Args:
        folder: the folder of the tokenizer's files.
        lowercase: letters are made lower first, as sentence-transformers does for do_lower_case of its own file.

    Raises:
        BadCheckpoint: it cannot be read or built, or a file beside it says what cannot be obeyed.
    """
    names = (TOKENIZER, CONFIG, MAP, ADDED, "config.json", *classes.VOCABULARIES)
    present = [folder / name for name in names if (folder / name).is_file()]
    stamp = tuple((path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in present)
    return _read(folder, lowercase, stamp)


@lru_cache(maxsize=2)
def _read(folder: Path, lowercase: bool, stamp: tuple[tuple[str, int, int], ...]) -> CheckpointTokenizer | None:
    files, path = read_files(folder), folder / TOKENIZER
    if path.is_file():
        content, source = path.read_bytes(), Setting("tokenizer", TOKENIZER, TOKENIZER)
        data = read_object(path)
    elif built := classes.build(files):
        tokenizer, origin = built
        data, content = json.loads(tokenizer.to_str()), tokenizer.to_str().encode()
        source = Setting("tokenizer", "built", origin)
    else:
        return None
    library = _loaded(content, path)
    changes = [*_letters(data, files), *_prefix(data, files)]
    if lowercase and _lowercase(data, True):
        changes.append(Setting("letter case", "lowercased", "do_lower_case of sentence-transformers, or the family"))
    if changes:
        content = json.dumps(data, ensure_ascii=False).encode()
        library = _loaded(content, path)
    ends, switches = _ends(files, library)
    if switches:
        steps = _steps(data.get("post_processor"), "processors")
        data["post_processor"] = next((step for step in steps if step.get("type") == "ByteLevel"), None)
        library = _loaded(json.dumps(data, ensure_ascii=False).encode(), path)
        building.put_ends(library, ends)
        data["post_processor"] = json.loads(library.to_str())["post_processor"]
        content = json.dumps(data, ensure_ascii=False).encode()
    around = Setting("special tokens", " ".join(library.encode("").tokens) or "none", switches or source.origin)
    if switches and source.value == TOKENIZER:
        around = replace(around, disagrees=f"{TOKENIZER} has others")
    return CheckpointTokenizer(content, library, (source, *changes, around))


def _loaded(content: bytes, path: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        library = Tokenizer.from_str(content.decode("utf-8"))
    except Exception as error:  # the library raises bare Exception
        raise BadCheckpoint(f"{path} is not a tokenizer the tokenizers library reads: {error}") from error
    library.no_padding()
    library.no_truncation()
    return library


def _steps(step: Json | None, inner: str) -> list[Json]:
    """Return the steps of a part of tokenizer.json: those of a Sequence, or the part itself."""
    if not step:
        return []
    return list(step[inner]) if step.get("type") == "Sequence" else [step]


def _letters(data: Json, files: TokenizerFiles) -> list[Setting]:
    """Obey the switches of letters: those of BERT's normalizer, and do_lower_case beside SentencePiece."""
    lower, row = files.flag("do_lower_case"), classes.row_of(files)
    if row and row.lowercase is not None and lower is not None:
        return [_said("do_lower_case", lower, not lower)] if _lowercase(data, lower) else []
    changes = []
    for step in _steps(data.get("normalizer"), "normalizers"):
        if step.get("type") == "BertNormalizer" and row and row.reads == "words":
            for name, key in _NORMALIZER.items():
                value = files.flag(name)
                if name in files.config and step.get(key) != value:
                    changes.append(_said(name, value, step.get(key)))
                    step[key] = value
    return changes


def _lowercase(data: Json, lower: bool) -> bool:
    """Put a Lowercase before the normalizer, or take it out; return whether that changed anything."""
    steps = _steps(data.get("normalizer"), "normalizers")
    lowers = [step for step in steps if step.get("type") == "Lowercase" or step.get("lowercase")]
    if bool(lowers) == lower:
        return False
    steps = [{"type": "Lowercase"}, *steps] if lower else [step for step in steps if step not in lowers]
    data["normalizer"] = {"type": "Sequence", "normalizers": steps}
    return True


def _prefix(data: Json, files: TokenizerFiles) -> list[Setting]:
    """Obey add_prefix_space of tokenizers of bytes."""
    prefix, step = files.flag("add_prefix_space"), data.get("pre_tokenizer") or {}
    if prefix is None or step.get("type") != "ByteLevel" or step.get("add_prefix_space") == prefix:
        return []
    step["add_prefix_space"] = prefix
    return [_said("add_prefix_space", prefix, not prefix)]


def _ends(files: TokenizerFiles, library: Any) -> tuple[dict[str, str], str | None]:
    """Obey add_bos_token and add_eos_token.

    False counts for classes that have no template but by these switches.

    Returns:
        the tokens before and behind a text by role, and which switches change what tokenizer.json has; None: none does.
    """
    switches = {role: files.flag(f"add_{role}_token") for role in ("bos", "eos")}
    if not any(switches.values()) and files.class_name not in _BY_SWITCHES:
        return {}, None
    tokens, ends, changes = classes.special_tokens(files), dict[str, str](), list[str]()
    around = _around(library, tokens)
    for role, switch in switches.items():
        token = tokens.get(role, "")
        has = around[role] == [token]
        wanted = switch if switch or (switch is False and files.class_name in _BY_SWITCHES) else has
        if wanted and library.token_to_id(token) is None:
            raise BadCheckpoint(
                f"{files.folder / CONFIG} says add_{role}_token, and {token!r} is no token of the vocabulary"
            )
        if wanted:
            ends[role] = token
        if wanted != has:
            changes.append(f"add_{role}_token {json.dumps(wanted)}")
    if changes and (others := {*around["bos"], *around["eos"]} - {tokens.get("bos"), tokens.get("eos")}):
        raise BadCheckpoint(
            f"{files.folder / CONFIG} says {' and '.join(changes)}, and the template of tokenizer.json puts "
            f"{', '.join(sorted(others))} around texts: take the switch out, or write the template as it is meant"
        )
    return ends, f"{' and '.join(changes)} of {CONFIG}" if changes else None


def _around(library: Any, tokens: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the special tokens that stand before a text, and those behind it, in the place of bos and eos."""
    text = next((text for text in tokens.values() if library.token_to_id(text) is not None), None)
    if text is None:
        return {"bos": [], "eos": []}
    encoding = library.encode(text)
    of_text = [place for place, special in enumerate(encoding.special_tokens_mask) if not special]
    return {"bos": encoding.tokens[: of_text[0]], "eos": encoding.tokens[of_text[-1] + 1 :]}


def _said(name: str, value: bool | None, before: Any) -> Setting:
    return Setting(name, json.dumps(value), CONFIG, f"{TOKENIZER} says {json.dumps(before)}")
