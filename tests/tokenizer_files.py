"""Vocabulary files of each tokenizer class, as checkpoints publish them, of the vocabularies in golden/tokenizers.

The vocabularies were learned by sentencepiece 0.2.3 and tokenizers 0.23.3 of texts_of_all_scripts.py; the rules
nmt_nfkc are SentencePiece's own.
"""

import gzip
import json
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

GOLDEN = Path(__file__).parent / "golden" / "tokenizers"
UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6
Control = tuple[str, int]
_USUAL: tuple[Control, ...] = (("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL))


class Pieces(NamedTuple):
    """A SentencePiece model.

    Args:
        file: its name in the checkpoint.
        first: the pieces before the learned ones.
        unigram: False: BPE.
        rules: nmt_nfkc, blanks squeezed; False: texts stay as they are.
        prefix: a blank is put before texts.
    """

    file: str
    first: tuple[Control, ...] = _USUAL
    unigram: bool = True
    rules: bool = True
    prefix: bool = True


class Case(NamedTuple):
    """A checkpoint's tokenizer.

    Args:
        model_type: that of config.json.
        files: a SentencePiece model, or the name of a vocabulary in vocabularies.json.
        config: tokenizer_config.json.
    """

    model_type: str
    files: Pieces | str
    config: dict[str, Any]


def _controls(*names: str) -> tuple[Control, ...]:
    return tuple((name, UNKNOWN if name in ("<unk>", "[UNK]") else CONTROL) for name in names)


_ADDED = {"special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
_ALBERT = Pieces("spiece.model", _controls("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"))
_LLAMA = Pieces("tokenizer.model", unigram=False, rules=False)
_GEMMA = (*_controls("<pad>", "<eos>", "<bos>", "<unk>", "<mask>"), ("\n\n", USER_DEFINED), ("<table>", USER_DEFINED))
CASES: dict[str, Case] = {
    "bert": Case("bert", "words", {"tokenizer_class": "BertTokenizer", "do_lower_case": True}),
    "bert-cased": Case("bert", "words", {"do_lower_case": False, "tokenize_chinese_chars": False}),
    "bert-accents": Case("bert", "words", {"do_lower_case": False, "strip_accents": True}),
    "distilbert": Case("distilbert", "words", {"tokenizer_class": "DistilBertTokenizer"}),
    "electra": Case("electra", "words", {}),
    "mpnet": Case("mpnet", "mpnet words", {"tokenizer_class": "MPNetTokenizer"}),
    "roberta": Case("roberta", "pairs", {"tokenizer_class": "RobertaTokenizer"}),
    "roberta-prefix": Case("roberta", "pairs", {"add_prefix_space": True}),
    "opt": Case(
        "opt",
        "pairs",
        {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "bos_token": "</s>", "eos_token": "</s>"},
    ),
    "gpt2": Case("gpt2", "pairs", {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}),
    "deberta": Case("deberta", "bracket pairs", {"tokenizer_class": "DebertaTokenizer"}),
    "qwen2": Case(
        "qwen2",
        "pairs",
        {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<pad>", "unk_token": "<unk>"}
        | {"added_tokens_decoder": {"600": {"content": "<|im_end|>", **_ADDED}}},
    ),
    "clip": Case("clip", "clip pairs", {"tokenizer_class": "CLIPTokenizer"}),
    "xlm-roberta": Case("xlm-roberta", Pieces("sentencepiece.bpe.model"), {"tokenizer_class": "XLMRobertaTokenizer"}),
    "camembert": Case("camembert", Pieces("sentencepiece.bpe.model"), {"tokenizer_class": "CamembertTokenizer"}),
    "t5": Case("t5", Pieces("spiece.model", _controls("<pad>", "</s>", "<unk>")), {"tokenizer_class": "T5Tokenizer"}),
    "mt5": Case("mt5", Pieces("spiece.model", _controls("<pad>", "</s>", "<unk>")), {"extra_ids": 0}),
    "albert": Case("albert", _ALBERT, {"tokenizer_class": "AlbertTokenizer"}),
    "albert-cased": Case("albert", _ALBERT, {"do_lower_case": False, "keep_accents": True}),
    "big_bird": Case(
        "big_bird",
        Pieces("spiece.model", _controls("<unk>", "</s>", "<s>", "<pad>", "[SEP]", "[MASK]", "[CLS]")),
        {"tokenizer_class": "BigBirdTokenizer"},
    ),
    "xlnet": Case(
        "xlnet", Pieces("spiece.model", _controls("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>")), {}
    ),
    "rembert": Case(
        "rembert",
        Pieces("sentencepiece.model", _controls("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"), rules=False),
        {"tokenizer_class": "RemBertTokenizer"},
    ),
    "deberta-v3": Case(
        "deberta-v2",
        Pieces("spm.model", _controls("[PAD]", "[CLS]", "[SEP]", "[UNK]")),
        {"tokenizer_class": "DebertaV2Tokenizer", "do_lower_case": False, "vocab_type": "spm"},
    ),
    "llama": Case("llama", _LLAMA, {"tokenizer_class": "LlamaTokenizer", "legacy": True, "add_bos_token": True}),
    "mistral": Case(
        "mistral",
        _LLAMA,
        {"tokenizer_class": "LlamaTokenizer", "legacy": True, "add_bos_token": True, "add_eos_token": True},
    ),
    "gemma": Case(
        "gemma",
        Pieces("tokenizer.model", _GEMMA, unigram=False, rules=False, prefix=False),
        {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "add_eos_token": True},
    ),
}


def write_case(folder: Path, case: Case) -> Path:
    """Write config.json and the files of a tokenizer; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": case.model_type}))
    (folder / "tokenizer_config.json").write_text(json.dumps(case.config))
    if isinstance(case.files, Pieces):
        write_pieces(folder / case.files.file, case.files)
    elif case.files.endswith("words"):
        (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in vocabularies()[case.files]), encoding="utf-8")
    else:
        held = vocabularies()[case.files]
        tokens = {token: number for number, token in enumerate(held["tokens"])}
        (folder / "vocab.json").write_text(json.dumps(tokens), encoding="utf-8")
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *held["merges"], ""]), encoding="utf-8")
    return folder


def write_pieces(path: Path, model: Pieces) -> None:
    """Write a SentencePiece model."""
    path.write_bytes(sentencepiece_model(pieces_of(model), model))


def pieces_of(model: Pieces) -> list[tuple[str, float, int]]:
    """Return text, score and kind of each piece."""
    held = vocabularies()["unigram" if model.unigram else "bpe"]
    learned = [(text, score, BYTE if text.startswith("<0x") else 1) for text, score in held]
    return [*((text, 0.0, kind) for text, kind in model.first), *learned]


def sentencepiece_model(pieces: Sequence[tuple[str, float, int]], model: Pieces) -> bytes:
    """Return the bytes of a .model, as the protocol buffers of sentencepiece_model.proto have them."""
    names = [name for name, _ in model.first]
    listed = [
        _field(1, _field(1, text.encode()) + _field(2, struct.pack("<f", score), 5) + _field(3, kind))
        for text, score, kind in pieces
    ]
    named = {
        40: ("<unk>", "[UNK]"),
        41: ("<s>", "[CLS]", "<bos>"),
        42: ("</s>", "[SEP]", "<eos>"),
        43: ("<pad>", "[PAD]"),
    }
    ids = {number: next((names.index(name) for name in texts if name in names), -1) for number, texts in named.items()}
    texts = {number + 5: names[place].encode() for number, place in ids.items() if place >= 0}
    trainer = _field(3, 1 if model.unigram else 2) + _field(35, int(not model.unigram))
    trainer += b"".join(_field(number, value) for number, value in {**ids, **texts}.items())
    normalizer = _field(2, charsmap()) if model.rules else b""
    name = _field(1, b"nmt_nfkc" if model.rules else b"identity")
    normalizer = name + normalizer + _field(3, int(model.prefix)) + _field(4, int(model.rules)) + _field(5, 1)
    return b"".join(listed) + _field(2, trainer) + _field(3, normalizer)


def _field(number: int, value: int | bytes, kind: int | None = None) -> bytes:
    """Return a field of a protocol buffer: a whole number, text, message or (kind 5) four bytes."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value & ((1 << 64) - 1))
    if kind is not None:
        return _varint(number << 3 | kind) + value
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


@cache
def vocabularies() -> dict[str, Any]:
    """Return the learned vocabularies, by name."""
    held: dict[str, Any] = json.loads((GOLDEN / "vocabularies.json").read_text(encoding="utf-8"))
    return held


@cache
def charsmap() -> bytes:
    """Return SentencePiece's precompiled rules nmt_nfkc."""
    return gzip.decompress((GOLDEN / "nmt_nfkc.gz").read_bytes())


def golden_ids(name: str) -> Sequence[Sequence[int]]:
    """Return the judge's ids of the first texts, and of two pairs, of a case."""
    held = json.loads((GOLDEN / "ids.json").read_text(encoding="utf-8"))
    ids: list[list[int]] = held[name]
    return ids
