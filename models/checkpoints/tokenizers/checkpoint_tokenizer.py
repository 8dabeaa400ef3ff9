"""`CheckpointTokenizer`: the tokenizer.json of a checkpoint, or one built, with what tokenizer_config.json says of it.

A switch that tokenizer_config.json leaves out is as tokenizer.json has it, and so is one that the tokenizer's class
ignores: paraphrase-multilingual-MiniLM-L12-v2 says do_lower_case of a class that keeps the case of letters.

Source: transformers 4.57, BertTokenizerFast, LlamaTokenizerFast.update_post_processor, PreTrainedTokenizerFast; the
    slow classes for lowercase beside SentencePiece. transformers 5.23 drops add_bos_token and add_eos_token where there
    is a tokenizer.json.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from models.checkpoints.checkpoint import read_object
from models.checkpoints.provenance import Setting
from models.checkpoints.tokenizers import classes
from models.checkpoints.tokenizers.files import ADDED, CONFIG, MAP, TOKENIZER, TokenizerFiles, read_files
from models.errors import BadCheckpoint

_NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
_LOWERCASED = ("AlbertTokenizer", "DebertaV2Tokenizer", "RemBertTokenizer", "XLNetTokenizer")
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
    return _read(
        folder, lowercase, tuple((path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in present)
    )


@lru_cache(maxsize=2)
def _read(folder: Path, lowercase: bool, stamp: tuple[tuple[str, int, int], ...]) -> CheckpointTokenizer | None:
    files, path = read_files(folder), folder / TOKENIZER
    if path.is_file():
        content, source = path.read_bytes(), Setting("tokenizer", TOKENIZER, TOKENIZER)
        data = read_object(path)
    elif built := classes.build(files):
        tokenizer, origin = built
        data, content = classes.as_json(tokenizer), tokenizer.to_str().encode()
        source = Setting("tokenizer", "built", origin)
    else:
        return None
    library = _loaded(content, path)
    changes = [*_letters(data, files), *_prefix(data, files)]
    if lowercase and _lowercase(data, True):
        changes.append(Setting("letter case", "lowercased", "do_lower_case of sentence-transformers, or the family"))
    switches = _ends(data, files, library)
    if changes or switches:
        content = json.dumps(data, ensure_ascii=False).encode()
        library = _loaded(content, path)
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


def _steps(data: Json, part: str, inner: str) -> list[Json]:
    """Return the steps of a part of tokenizer.json: those of a Sequence, or the part itself."""
    step = data.get(part)
    if not step:
        return []
    return list(step[inner]) if step.get("type") == "Sequence" else [step]


def _letters(data: Json, files: TokenizerFiles) -> list[Setting]:
    """Obey the switches of letters: those of BERT's normalizer, and do_lower_case beside SentencePiece."""
    lower = files.flag("do_lower_case")
    if files.class_name in _LOWERCASED and lower is not None:
        return [_said("do_lower_case", lower, not lower)] if _lowercase(data, lower) else []
    changes = []
    for step in _steps(data, "normalizer", "normalizers"):
        if step.get("type") == "BertNormalizer" and classes.is_bert(files):
            for name, key in _NORMALIZER.items():
                value = files.flag(name)
                if name in files.config and step.get(key) != value:
                    changes.append(_said(name, value, step.get(key)))
                    step[key] = value
    return changes


def _lowercase(data: Json, lower: bool) -> bool:
    """Put a Lowercase before the normalizer, or take it out; return whether that changed anything."""
    steps = _steps(data, "normalizer", "normalizers")
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


def _ends(data: Json, files: TokenizerFiles, library: Any) -> str | None:
    """Obey add_bos_token and add_eos_token; return what changed the special tokens, None: nothing did.

    False counts for classes that have no template but by these switches.
    """
    steps = _steps(data, "post_processor", "processors")
    template = next((step for step in steps if step.get("type") == "TemplateProcessing"), None)
    single: list[Json] = template["single"] if template else []
    named = [part["SpecialToken"]["id"] for part in single if "SpecialToken" in part]
    tokens = classes.special_tokens(files)
    changes: list[str] = []
    ends: list[str | None] = []
    for role, place in (("bos", 0), ("eos", -1)):
        token = tokens.get(role)
        has = token in named and single[place].get("SpecialToken", {}).get("id") == token
        switch = files.flag(f"add_{role}_token")
        wanted = switch if switch is not None and (switch or files.class_name in _BY_SWITCHES) else has
        if wanted and not has and _ends_already(steps, place, token):
            wanted = has
        if wanted and (token is None or library.token_to_id(token) is None):
            raise BadCheckpoint(
                f"{files.folder / CONFIG} says add_{role}_token, and {token!r} is no token of the vocabulary"
            )
        ends.append(token if wanted else None)
        if wanted != has:
            changes.append(f"add_{role}_token {json.dumps(wanted)}")
    if not changes:
        return None
    if set(named) - {tokens.get("bos"), tokens.get("eos")}:
        raise BadCheckpoint(
            f"{files.folder / CONFIG} says {' and '.join(changes)}, and the template of tokenizer.json puts "
            f"{', '.join(named)} around texts: take the switch out, or write the template as it is meant"
        )
    written = _template(ends[0], ends[1], library)
    data["post_processor"] = {
        "type": "Sequence",
        "processors": [*(step for step in steps if step is not template), written],
    }
    return f"{' and '.join(changes)} of {CONFIG}"


def _ends_already(steps: Sequence[Json], place: int, token: str | None) -> bool:
    """Return whether a fixed pair of tokens, as of BERT and RoBERTa, already puts `token` there."""
    key = "cls" if place == 0 else "sep"
    return any(step.get("type") in ("BertProcessing", "RobertaProcessing") and step[key][0] == token for step in steps)


def _template(begin: str | None, end: str | None, library: Any) -> Json:
    """Return the step that puts `begin` before every text and `end` behind it; the second text is segment 1."""

    def around(name: str, kind: int) -> list[Json]:
        tokens = [{"SpecialToken": {"id": token, "type_id": kind}} if token else None for token in (begin, end)]
        return [part for part in (tokens[0], {"Sequence": {"id": name, "type_id": kind}}, tokens[1]) if part]

    special = {
        token: {"id": token, "ids": [library.token_to_id(token)], "tokens": [token]} for token in (begin, end) if token
    }
    single = around("A", 0)
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *around("B", 1)],
        "special_tokens": special,
    }


def _said(name: str, value: bool | None, before: Any) -> Setting:
    return Setting(name, json.dumps(value), CONFIG, f"{TOKENIZER} says {json.dumps(before)}")
