"""A tokenizer of every kind that checkpoints have, trained on a few texts where none is at hand."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from models.artifacts.int8_encoder import EVALUATION, read_texts
from tests.minilm_golden import checkpoint

REPEATED = [
    "aaaa " * 5,
    "a" * 80,
    "!!!!!!!! ======== -------- " * 4,
    " " * 32,
    "今天天气很好，我们去公园散步。안녕 각!" * 3,
] * 30
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def _texts() -> Iterator[str]:
    yield from read_texts(EVALUATION)
    yield from REPEATED


def _bytes(pattern: str | None) -> Any:
    """Byte-level BPE: RoBERTa's own pre-tokenizer and processor, or those of Llama 3."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, level])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    if pattern is None:
        tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    else:
        template = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def _one_word() -> Any:
    """BPE as of Llama 2 and Gemma, which reads a text as one word."""
    from tokenizers import Tokenizer, models, normalizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = (word for text in _texts() for word in text.replace(" ", " ▁").split(" "))
    tokenizer.train_from_iterator(
        words, trainers.BpeTrainer(vocab_size=1500, special_tokens=special, show_progress=False)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def _unigram(split: bool) -> Any:
    """SentencePiece's Unigram as of XLM-R, with words or a text at a time."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.Unigram())
    blanks = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), blanks] if split else [normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=split)
    trainer = trainers.UnigramTrainer(
        vocab_size=800, special_tokens=["<s>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return tokenizer


def _words() -> Any:
    """BERT's WordPiece, which drops accents and control characters."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


KINDS: dict[str, Callable[[], Any]] = {
    "wordpiece": _words,
    "bytes": lambda: _bytes(None),
    "bytes_llama3": lambda: _bytes(LLAMA3),
    "bpe_one_word": _one_word,
    "unigram": lambda: _unigram(split=True),
    "unigram_one_word": lambda: _unigram(split=False),
}


@cache
def library_tokenizer(kind: str) -> Any:
    """The tokenizer of a kind, of the library itself, as it reads its file: scores are rounded there."""
    from tokenizers import Tokenizer

    return Tokenizer.from_str(KINDS[kind]().to_str())


def write(kind: str, folder: Path) -> Path:
    """The file of a kind."""
    path = folder / f"{kind}.json"
    library_tokenizer(kind).save(str(path))
    return path
