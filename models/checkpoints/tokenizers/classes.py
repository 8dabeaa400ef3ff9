"""Builds the tokenizer of a tokenizer_class of transformers from its vocabulary files: classes.json has a row for each.

Source: the slow tokenizers of transformers 4.57 and convert_slow_tokenizer.py.
"""

import json
import sys
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from models.checkpoints.json_files import read_object
from models.checkpoints.tokenizers import building
from models.checkpoints.tokenizers.files import CONFIG, TokenizerFiles
from models.checkpoints.tokenizers.sentencepiece import CONTROL, NORMAL, SentencePieces, read_pieces
from models.errors import BadCheckpoint
from models.recipes.typed_json import from_json

WORDS, PAIRS, MERGES = "vocab.txt", "vocab.json", "merges.txt"
PIECES = ("sentencepiece.bpe.model", "sentencepiece.model", "spiece.model", "spm.model", "tokenizer.model")
VOCABULARIES = (WORDS, PAIRS, MERGES, *PIECES)
_CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


@dataclass(frozen=True, slots=True)
class TokenizerClass:
    """How a class reads its vocabulary files.

    Attributes:
        reads: the kind of its vocabulary and of what is done before it; cleaned pieces are ALBERT's.
        tokens: the special tokens by role, where the files name no others.
        single, pair: what one text and two become: roles, $A and $B, with :1 for segment 1; None: they stay alone.
        model_types: whose checkpoints have this class, where their files name none.
        lowercase: do_lower_case before SentencePiece, where the files leave it out; None: it is not read.
        vocabulary: how its vocabulary differs from that of the SentencePiece model; None: it does not.
        trims: blanks are not among the characters of a token.
        mask_takes_blank: the blank before a mask token belongs to it.
    """

    reads: Literal["words", "pairs", "qwen2", "clip", "pieces", "cleaned pieces"]
    tokens: dict[str, str] = field(default_factory=dict)
    single: str | None = None
    pair: str = ""
    model_types: tuple[str, ...] = ()
    lowercase: bool | None = None
    vocabulary: Literal["fairseq", "camembert", "extra ids", "no number with a comma", "tab"] | None = None
    trims: bool = False
    mask_takes_blank: bool = False


def _table() -> dict[str, TokenizerClass]:
    rows: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    for row in rows.values():
        row |= {"model_types": [], **rows.get(row.pop("like", ""), {}), **row}
    return {name: from_json(TokenizerClass, row) for name, row in rows.items()}


CLASSES = _table()


def build(files: TokenizerFiles) -> tuple[Any, str] | None:
    """Return the tokenizer of a folder's vocabulary files, and the names of these; None: there are none.

    Raises:
        BadCheckpoint: the class is not known, or its files cannot be read.
    """
    present = [name for name in VOCABULARIES if (files.folder / name).is_file()]
    if not present:
        return None
    name = class_of(files)
    if name not in CLASSES:
        raise BadCheckpoint(
            f"{files.folder} has {', '.join(present)} and no tokenizer.json, and tokenizer_class is {name!r}; built "
            f"are {', '.join(CLASSES)}. Write tokenizer.json with transformers, "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER), or move the vocabulary away to export a "
            "model that takes token ids"
        )
    row, tokens = CLASSES[name], special_tokens(files)
    try:
        tokenizer = _READERS[row.reads](row, files, tokens)
        _add_tokens(tokenizer, row, files, tokens)
        if row.single:
            building.add_template(tokenizer, row.single, row.pair, tokens)
    except BadCheckpoint:
        raise
    except Exception as error:  # the library raises bare Exception
        raise BadCheckpoint(f"{files.folder}: {' and '.join(present)} make no {name}: {error}") from error
    return tokenizer, f"{' and '.join(present)} as {name}"


def class_of(files: TokenizerFiles) -> str | None:
    """Return the class that the files name, or that the model_type has; None: it is not known."""
    of_type = (name for name, row in CLASSES.items() if files.model_type in row.model_types)
    return files.class_name or next(of_type, None)


def row_of(files: TokenizerFiles) -> TokenizerClass | None:
    """Return the row of a checkpoint's class; None: there is none."""
    return CLASSES.get(class_of(files) or "")


def special_tokens(files: TokenizerFiles) -> dict[str, str]:
    """Return the special tokens by role: those that the files name, else the class's."""
    row = row_of(files)
    return {**(row.tokens if row else {}), **files.special}


def _add_tokens(tokenizer: Any, row: TokenizerClass, files: TokenizerFiles, tokens: Mapping[str, str]) -> None:
    """Add the tokens of the files, which get the ids that the files say, and the special ones."""
    from tokenizers import AddedToken

    for number, text, flags in files.added:
        tokenizer.add_tokens([AddedToken(text, **{"normalized": not flags.get("special")} | flags)])
        if tokenizer.token_to_id(text) != number:
            raise BadCheckpoint(
                f"{files.folder}: the added token {text!r} is to be {number}, and the vocabulary makes it "
                f"{tokenizer.token_to_id(text)}: the files do not belong together"
            )
    known = {text for _, text, _ in files.added}
    for role, text in tokens.items():
        if text not in known:
            takes_blank = role == "mask" and row.mask_takes_blank
            tokenizer.add_special_tokens([AddedToken(text, lstrip=takes_blank, normalized=False)])


def _words(row: TokenizerClass, files: TokenizerFiles, tokens: Mapping[str, str]) -> Any:
    if files.flag("do_basic_tokenize") is False:
        raise BadCheckpoint(f"{files.folder / CONFIG}: do_basic_tokenize false is not computed")
    lines = _text(files.folder, WORDS).split("\n")
    ids = {line: number for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines)}
    return building.word_pieces(
        ids,
        tokens["unk"],
        lowercase=bool(files.flag("do_lower_case", True)),
        strip_accents=files.flag("strip_accents"),
        chinese=bool(files.flag("tokenize_chinese_chars", True)),
    )


def _pairs(row: TokenizerClass, files: TokenizerFiles, tokens: Mapping[str, str]) -> Any:
    from tokenizers import normalizers

    ids, merges = _vocabulary(files.folder)
    pattern = building.QWEN2 if row.reads == "qwen2" else building.GPT2
    prefix = bool(files.flag("add_prefix_space", False))
    tokenizer = building.bytes_in_pairs(ids, merges, pattern, prefix, trims=row.trims)
    if row.reads == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _clip(row: TokenizerClass, files: TokenizerFiles, tokens: Mapping[str, str]) -> Any:
    """Return CLIP's tokenizer, of lower case, whose tokens end in </w> where words do."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    ids, merges = _vocabulary(files.folder)
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token=tokens["unk"], end_of_word_suffix="</w>"))
    steps = [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    tokenizer.normalizer = normalizers.Sequence(steps)
    words = pre_tokenizers.Split(Regex(_CLIP), "removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pieces(row: TokenizerClass, files: TokenizerFiles, tokens: Mapping[str, str]) -> Any:
    """Return a SentencePiece tokenizer; cleaned, with ALBERT's rules for quotes, accents and letter case before it."""
    from tokenizers import Regex, normalizers

    if files.flag("split_by_punct"):
        raise BadCheckpoint(f"{files.folder / CONFIG}: split_by_punct true is not computed")
    before: list[Any] = []
    if row.reads == "cleaned pieces":
        blanks = Regex(r"\s+") if files.flag("remove_space", True) else " "
        before = [normalizers.Replace(*each) for each in ((blanks, " "), ("``", '"'), ("''", '"'))]
        if not files.flag("keep_accents", False):
            # not StripAccents, which takes the vowels of Devanagari and Thai too: SentencePiece saw texts with them
            marks = "".join(filter(unicodedata.combining, map(chr, range(sys.maxunicode))))
            before += [normalizers.NFKD(), normalizers.Replace(Regex(f"[{marks}]"), "")]
    if row.lowercase is not None and files.flag("do_lower_case", row.lowercase):
        before.append(normalizers.Lowercase())
    path = next((files.folder / name for name in PIECES if (files.folder / name).is_file()), None)
    if path is None:
        raise BadCheckpoint(f"{files.folder} holds no SentencePiece model: download one of {', '.join(PIECES)}")
    model = read_pieces(path)
    if row.vocabulary:
        model = _VOCABULARIES[row.vocabulary](model, files, tokens)
    return building.sentence_pieces(model, before)


def _fairseq(model: SentencePieces, files: TokenizerFiles, tokens: Mapping[str, str]) -> SentencePieces:
    """Return the vocabulary with fairseq's first four tokens in place of SentencePiece's three, and a mask token."""
    first = [(tokens[role], 0.0, CONTROL) for role in ("bos", "pad", "eos", "unk")]
    return replace(model, pieces=(*first, *model.pieces[3:], (tokens["mask"], 0.0, CONTROL)), unknown_id=3)


def _camembert(model: SentencePieces, files: TokenizerFiles, tokens: Mapping[str, str]) -> SentencePieces:
    """Return the vocabulary behind four tokens, of which two are not used, and the unknown one as it never is."""
    first = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0), ("<unk>NOTUSED", -100.0)]
    before = [(text, score, NORMAL) for text, score in first]
    return replace(model, pieces=(*before, *model.pieces[1:], ("<mask>", 0.0, CONTROL)), unknown_id=3)


def _extra_ids(model: SentencePieces, files: TokenizerFiles, tokens: Mapping[str, str]) -> SentencePieces:
    """Return the vocabulary with the tokens of T5's gaps behind it, the last first."""
    count = files.config.get("extra_ids", 100)
    if not isinstance(count, int) or not 0 <= count <= 10_000:
        raise BadCheckpoint(f"{files.folder / CONFIG}: extra_ids is {str(count)[:40]!r}")
    extra = [(f"<extra_id_{number}>", 0.0, CONTROL) for number in reversed(range(count))]
    return replace(model, pieces=(*model.pieces, *extra))


def _without_number_commas(model: SentencePieces, files: TokenizerFiles, tokens: Mapping[str, str]) -> SentencePieces:
    """Return the vocabulary in which a piece of a digit and a comma is taken last: the classes take it apart."""
    pieces = [
        (text, score - 100 if text[-1:] == "," and text[-2:-1].isdigit() else score, kind)
        for text, score, kind in model.pieces
    ]
    return replace(model, pieces=tuple(pieces))


def _tab(model: SentencePieces, files: TokenizerFiles, tokens: Mapping[str, str]) -> SentencePieces:
    """Return the vocabulary with a tab in place of its byte, which old files of Gemma lack."""
    if any(text == "\t" for text, _, _ in model.pieces):
        return model
    pieces = [("\t", 0.0, NORMAL) if text == "<0x09>" else (text, score, kind) for text, score, kind in model.pieces]
    return replace(model, pieces=tuple(pieces))


_READERS: dict[str, Callable[[TokenizerClass, TokenizerFiles, Mapping[str, str]], Any]] = {
    "words": _words,
    **dict.fromkeys(("pairs", "qwen2"), _pairs),
    "clip": _clip,
    **dict.fromkeys(("pieces", "cleaned pieces"), _pieces),
}
_VOCABULARIES: dict[str, Callable[[SentencePieces, TokenizerFiles, Mapping[str, str]], SentencePieces]] = {
    "fairseq": _fairseq,
    "camembert": _camembert,
    "extra ids": _extra_ids,
    "no number with a comma": _without_number_commas,
    "tab": _tab,
}


def _vocabulary(folder: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return vocab.json and the pairs of merges.txt."""
    for name in (PAIRS, MERGES):
        if not (folder / name).is_file():
            raise BadCheckpoint(
                f"{folder} holds no {name}: a vocabulary of pairs is {PAIRS} and {MERGES}; download it too"
            )
    lines = [line for line in _text(folder, MERGES).split("\n") if line.strip() and not line.startswith("#version")]
    if wrong := next((line for line in lines if line.count(" ") != 1), None):
        raise BadCheckpoint(f"{folder / MERGES}: {wrong[:60]!r} is no pair")
    return read_object(folder / PAIRS), [(left, right) for left, right in map(str.split, lines)]


def _text(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadCheckpoint(f"{folder / name} cannot be read: {error}") from error
