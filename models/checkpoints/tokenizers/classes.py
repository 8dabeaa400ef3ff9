"""A row for each tokenizer_class of transformers that is built from its vocabulary files.

Source: the slow tokenizers of transformers 4.57 and convert_slow_tokenizer.py.
"""

import json
import sys
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from models.checkpoints.checkpoint import read_object
from models.checkpoints.tokenizers import building
from models.checkpoints.tokenizers.building import Merges
from models.checkpoints.tokenizers.files import TokenizerFiles
from models.checkpoints.tokenizers.sentencepiece import CONTROL, NORMAL, SentencePieces, read_pieces
from models.errors import BadCheckpoint

WORDS, PAIRS, MERGES = "vocab.txt", "vocab.json", "merges.txt"
PIECES = ("sentencepiece.bpe.model", "sentencepiece.model", "spiece.model", "spm.model", "tokenizer.model")
VOCABULARIES = (WORDS, PAIRS, MERGES, *PIECES)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_BRACKETS = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_ANGLES = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
_ALBERT = _BRACKETS | {"bos": "[CLS]", "eos": "[SEP]", "unk": "<unk>", "pad": "<pad>"}
Template = tuple[tuple[str, ...], tuple[str, ...]]
BERT: Template = ("cls", "$A", "sep"), ("cls", "$A", "sep", "$B:1", "sep:1")
ROBERTA: Template = ("cls", "$A", "sep"), ("cls", "$A", "sep", "sep", "$B", "sep")
_T5: Template = ("$A", "eos"), ("$A", "eos", "$B", "eos")
_BEGINS: Template = ("bos", "$A"), ("bos", "$A", "bos:1", "$B:1")


@dataclass(frozen=True, slots=True)
class TokenizerClass:
    """How a class reads its vocabulary files.

    Attributes:
        build: makes the tokenizer of the files, without special tokens around texts.
        tokens: the special tokens by role, where the files name no others.
        template: what one text and two become; None: nothing is put around them.
        model_types: whose checkpoints have this class, where their files name none.
        lowercase: do_lower_case where the files leave it out.
        pieces: makes the class's vocabulary of a SentencePiece model's; None: they are the same.
        mask_takes_blank: the blank before a mask token belongs to it.
    """

    build: Callable[["TokenizerClass", TokenizerFiles], Any]
    tokens: Mapping[str, str] = field(default_factory=dict)
    template: Template | None = None
    model_types: tuple[str, ...] = ()
    lowercase: bool = False
    pieces: Callable[[SentencePieces, TokenizerFiles, Mapping[str, str]], SentencePieces] | None = None
    mask_takes_blank: bool = False


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
        tokenizer = row.build(row, files)
        _add_tokens(tokenizer, row, files, tokens)
        if row.template:
            building.add_template(tokenizer, *row.template, tokens)
    except BadCheckpoint:
        raise
    except Exception as error:  # the library raises bare Exception
        raise BadCheckpoint(f"{files.folder}: {' and '.join(present)} make no {name}: {error}") from error
    return tokenizer, f"{' and '.join(present)} as {name}"


def _add_tokens(tokenizer: Any, row: TokenizerClass, files: TokenizerFiles, tokens: Mapping[str, str]) -> None:
    """Add the tokens of the files, which get the ids that the files say, and the special ones."""
    from tokenizers import AddedToken

    for number, text, flags in files.added:
        tokenizer.add_tokens([AddedToken(text, **{"normalized": not flags.get("special")} | flags)])
        if number is not None and tokenizer.token_to_id(text) != number:
            raise BadCheckpoint(
                f"{files.folder}: the added token {text!r} is to be {number}, and the vocabulary makes it "
                f"{tokenizer.token_to_id(text)}: the files do not belong together"
            )
    known = {text for _, text, _ in files.added}
    for role, text in tokens.items():
        if text not in known:
            takes_blank = role == "mask" and row.mask_takes_blank
            tokenizer.add_special_tokens([AddedToken(text, lstrip=takes_blank, normalized=False)])


def _words(row: TokenizerClass, files: TokenizerFiles) -> Any:
    if files.flag("do_basic_tokenize") is False:
        raise BadCheckpoint(f"{files.folder / 'tokenizer_config.json'}: do_basic_tokenize false is not computed")
    lines = _text(files.folder, WORDS).split("\n")
    ids = {line: number for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines)}
    return building.word_pieces(
        ids,
        files.special.get("unk", row.tokens["unk"]),
        lowercase=bool(files.flag("do_lower_case", True)),
        strip_accents=files.flag("strip_accents"),
        chinese=bool(files.flag("tokenize_chinese_chars", True)),
    )


def _pairs(row: TokenizerClass, files: TokenizerFiles) -> Any:
    prefix = bool(files.flag("add_prefix_space", False))
    return building.bytes_in_pairs(*_vocabulary(files.folder), prefix=prefix)


def _trimmed_pairs(row: TokenizerClass, files: TokenizerFiles) -> Any:
    """Return the tokenizer of `_pairs`; blanks are not among the characters of tokens (RobertaTokenizer)."""
    from tokenizers import processors

    tokenizer = _pairs(row, files)
    prefix = bool(files.flag("add_prefix_space", False))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True, add_prefix_space=prefix)
    return tokenizer


def _qwen2(row: TokenizerClass, files: TokenizerFiles) -> Any:
    from tokenizers import normalizers

    tokenizer = building.bytes_in_pairs(*_vocabulary(files.folder), QWEN2, bool(files.flag("add_prefix_space", False)))
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _clip(row: TokenizerClass, files: TokenizerFiles) -> Any:
    """Return CLIP's tokenizer, of lower case, whose tokens end in </w> where words do."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    vocabulary, merges = _vocabulary(files.folder)
    unknown = files.special.get("unk", row.tokens["unk"])
    bpe = models.BPE(vocabulary, list(merges), unk_token=unknown, end_of_word_suffix="</w>")
    tokenizer = Tokenizer(bpe)
    steps = [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    tokenizer.normalizer = normalizers.Sequence(steps)
    words = pre_tokenizers.Split(Regex(_CLIP), "removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pieces(row: TokenizerClass, files: TokenizerFiles) -> Any:
    return building.sentence_pieces(_piece_model(row, files))


def _cleaned_pieces(row: TokenizerClass, files: TokenizerFiles) -> Any:
    """Return a tokenizer with the rules for quotes, accents and letter case that ALBERT has before SentencePiece."""
    from tokenizers import Regex, normalizers

    before: list[Any] = [normalizers.Replace(quotes, '"') for quotes in ("``", "''")]
    if files.flag("remove_space", True):
        before.insert(0, normalizers.Replace(Regex(r"\s+"), " "))
    if not files.flag("keep_accents", False):
        # not StripAccents, which takes the vowels of Devanagari and Thai too: SentencePiece saw texts with them
        marks = "".join(filter(unicodedata.combining, map(chr, range(sys.maxunicode))))
        before += [normalizers.NFKD(), normalizers.Replace(Regex(f"[{marks}]"), "")]
    if files.flag("do_lower_case", row.lowercase):
        before.append(normalizers.Lowercase())
    return building.sentence_pieces(_piece_model(row, files), before)


def _deberta(row: TokenizerClass, files: TokenizerFiles) -> Any:
    from tokenizers import normalizers

    if files.flag("split_by_punct"):
        raise BadCheckpoint(f"{files.folder / 'tokenizer_config.json'}: split_by_punct true is not computed")
    before = [normalizers.Lowercase()] if files.flag("do_lower_case", False) else []
    return building.sentence_pieces(_piece_model(row, files), before)


def _piece_model(row: TokenizerClass, files: TokenizerFiles) -> SentencePieces:
    path = next((files.folder / name for name in PIECES if (files.folder / name).is_file()), None)
    if path is None:
        raise BadCheckpoint(f"{files.folder} holds no SentencePiece model, one of {', '.join(PIECES)}")
    model = read_pieces(path)
    return row.pieces(model, files, {**row.tokens, **files.special}) if row.pieces else model


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
        raise BadCheckpoint(f"{files.folder / 'tokenizer_config.json'}: extra_ids is {str(count)[:40]!r}")
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


def _vocabulary(folder: Path) -> tuple[dict[str, int], Merges]:
    """Return vocab.json and the pairs of merges.txt."""
    for name in (PAIRS, MERGES):
        if not (folder / name).is_file():
            raise BadCheckpoint(f"{folder} holds no {name}: a vocabulary of pairs is {PAIRS} and {MERGES}")
    lines = [line for line in _text(folder, MERGES).split("\n") if line.strip() and not line.startswith("#version")]
    pairs = [tuple(line.split(" ")) for line in lines]
    if wrong := next((line for line, pair in zip(lines, pairs, strict=True) if len(pair) != 2), None):
        raise BadCheckpoint(f"{folder / MERGES}: {wrong[:60]!r} is no pair")
    return read_object(folder / PAIRS), [(left, right) for left, right in pairs]


def _text(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadCheckpoint(f"{folder / name} cannot be read: {error}") from error


_BERT = TokenizerClass(_words, _BRACKETS, BERT)
_ROBERTA = TokenizerClass(_trimmed_pairs, _ANGLES, ROBERTA, mask_takes_blank=True)
_CLEANED = TokenizerClass(_cleaned_pieces, _ALBERT, BERT, mask_takes_blank=True)
CLASSES: dict[str, TokenizerClass] = {
    "BertTokenizer": replace(
        _BERT, model_types=("bert", "nomic_bert", "megatron-bert", "ernie", "layoutlm", "convbert", "mobilebert")
    ),
    "DistilBertTokenizer": replace(_BERT, model_types=("distilbert",)),
    "ElectraTokenizer": replace(_BERT, model_types=("electra",)),
    **dict.fromkeys(
        (
            "ConvBertTokenizer",
            "DPRContextEncoderTokenizer",
            "DPRQuestionEncoderTokenizer",
            "DPRReaderTokenizer",
            "LayoutLMTokenizer",
            "LxmertTokenizer",
            "MobileBertTokenizer",
            "SqueezeBertTokenizer",
        ),
        _BERT,
    ),
    "FunnelTokenizer": TokenizerClass(
        _words,
        _ANGLES | {"sep": "<sep>", "cls": "<cls>"},
        (("cls:2", "$A", "sep"), ("cls:2", "$A", "sep", "$B:1", "sep:1")),
        ("funnel",),
    ),
    "MPNetTokenizer": TokenizerClass(
        _words,
        _ANGLES | {"unk": "[UNK]"},
        (BERT[0], ("cls", "$A", "sep", "sep", "$B:1", "sep:1")),
        ("mpnet",),
        mask_takes_blank=True,
    ),
    "RobertaTokenizer": replace(_ROBERTA, model_types=("roberta", "data2vec-text", "roberta-prelayernorm")),
    "BartTokenizer": replace(_ROBERTA, model_types=("bart",)),
    **dict.fromkeys(
        ("LEDTokenizer", "LongformerTokenizer", "MvpTokenizer"), replace(_ROBERTA, model_types=("longformer",))
    ),
    "DebertaTokenizer": TokenizerClass(
        _pairs, _BRACKETS | {"bos": "[CLS]", "eos": "[SEP]"}, BERT, ("deberta",), mask_takes_blank=True
    ),
    **dict.fromkeys(
        ("GPT2Tokenizer", "CodeGenTokenizer"),
        TokenizerClass(_pairs, {"bos": "<|endoftext|>", "eos": "<|endoftext|>"}, None, ("gpt2", "opt", "codegen")),
    ),
    "Qwen2Tokenizer": TokenizerClass(
        _qwen2, {"eos": "<|endoftext|>", "pad": "<|endoftext|>"}, None, ("qwen2", "qwen3")
    ),
    "CLIPTokenizer": TokenizerClass(
        _clip,
        dict.fromkeys(("eos", "unk", "pad"), "<|endoftext|>") | {"bos": "<|startoftext|>"},
        (("bos", "$A", "eos"), ("bos", "$A", "eos", "eos", "$B", "eos")),
        ("clip", "clip_text_model"),
    ),
    "XLMRobertaTokenizer": TokenizerClass(
        _pieces, _ANGLES, ROBERTA, ("xlm-roberta", "xlm-roberta-xl", "xmod"), pieces=_fairseq, mask_takes_blank=True
    ),
    "CamembertTokenizer": TokenizerClass(
        _pieces, _ANGLES, ROBERTA, ("camembert",), pieces=_camembert, mask_takes_blank=True
    ),
    "T5Tokenizer": TokenizerClass(
        _pieces, {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}, _T5, ("t5", "mt5", "umt5"), pieces=_extra_ids
    ),
    "AlbertTokenizer": replace(_CLEANED, model_types=("albert",), lowercase=True, pieces=_without_number_commas),
    "RemBertTokenizer": TokenizerClass(_pieces, _ALBERT, BERT, ("rembert",), mask_takes_blank=True),
    "BigBirdTokenizer": TokenizerClass(
        _pieces,
        _ANGLES | {"sep": "[SEP]", "cls": "[CLS]", "mask": "[MASK]"},
        BERT,
        ("big_bird",),
        mask_takes_blank=True,
    ),
    "XLNetTokenizer": TokenizerClass(
        _cleaned_pieces,
        _ANGLES | {"sep": "<sep>", "cls": "<cls>"},
        (("$A", "sep", "cls:2"), ("$A", "sep", "$B:1", "sep:1", "cls:2")),
        ("xlnet",),
        pieces=_without_number_commas,
        mask_takes_blank=True,
    ),
    "DebertaV2Tokenizer": TokenizerClass(_deberta, _BRACKETS | {"bos": "[CLS]", "eos": "[SEP]"}, BERT, ("deberta-v2",)),
    "LlamaTokenizer": TokenizerClass(
        _pieces, {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}, _BEGINS, ("llama", "mistral")
    ),
    "GemmaTokenizer": TokenizerClass(
        _pieces,
        {"bos": "<bos>", "eos": "<eos>", "unk": "<unk>", "pad": "<pad>"},
        _BEGINS,
        ("gemma", "gemma2", "gemma3_text", "gemma3"),
        pieces=_tab,
    ),
}


def as_json(tokenizer: Any) -> dict[str, Any]:
    """Return what a tokenizer's tokenizer.json holds."""
    data: dict[str, Any] = json.loads(tokenizer.to_str())
    return data


def is_bert(files: TokenizerFiles) -> bool:
    """Return whether the class of a checkpoint's tokenizer reads the switches of BERT's normalizer."""
    name = class_of(files)
    return name in CLASSES and CLASSES[name].build is _words


def class_of(files: TokenizerFiles) -> str | None:
    """Return the class that the files name, or that the model_type has; None: it is not known."""
    of_type = (name for name, row in CLASSES.items() if files.model_type in row.model_types)
    return files.class_name or next(of_type, None)


def special_tokens(files: TokenizerFiles) -> dict[str, str]:
    """Return the special tokens by role: those that the files name, else the class's."""
    name = class_of(files)
    return {**(CLASSES[name].tokens if name in CLASSES else {}), **files.special}
