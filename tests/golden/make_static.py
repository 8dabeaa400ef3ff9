"""Writes static.json and static/: tiny static embedding models of two libraries, and the vectors these give for texts.

    python tests/golden/make_static.py tests/golden

It needs model2vec and sentence-transformers (torch with it). static/NAME is what the library itself saved, less its
README. static.json holds the versions and one entry per model: whose it is, and for each text its vector by the
library's own encode(), with default arguments. transformer_in_a_folder is no static model: a one-layer BERT whose files
lie in 0_Transformer, as sentence-transformers 1 left them. Imports nothing of this project: it is its judge.
"""

import json
import platform
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model2vec import StaticModel
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, StaticEmbedding, Transformer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

COMMAND = "python tests/golden/make_static.py tests/golden"
PACKAGES = ("model2vec", "sentence-transformers", "tokenizers", "numpy", "torch")
WIDTH = 8
WORDS = (
    "the",
    "river",
    "stone",
    "market",
    "engine",
    "winter",
    "violin",
    "har",
    "##bour",
    "##s",
    "a",
    "I",
    "5",
    ".",
    "!",
)
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
TEXTS = (
    "the river",
    "The stones, the market!",
    "a",
    "",
    "   ",
    "xyzzy",
    "xyzzy the xyzzy river",
    "the the the the the the the the the the",
    "harbours 5.",
    "winter violin engine market stone river the a . !",
    "[CLS] the [SEP] [UNK] river [PAD]",
    "naïve café 河 🍕",
    " leading and trailing the ",
    "the market " * 60,
)


def wordpiece() -> Tokenizer:
    """As BERT's, its specials and post-processor included; the file pads, and nobody asked for that."""
    tokenizer = Tokenizer(
        models.WordPiece({word: number for number, word in enumerate((*SPECIALS, *WORDS))}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.enable_padding(length=16)
    return tokenizer


def wordlevel() -> Tokenizer:
    """Whole words, several of them multiword as added tokens."""
    vocabulary = {word: number for number, word in enumerate(("<unk>", "<pad>", "the", "river", "stone", "market"))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_tokens([AddedToken("the market", single_word=True), AddedToken("winter violin", single_word=True)])
    return tokenizer


def unigram() -> Tokenizer:
    pieces = [("<s>", 0.0), ("<unk>", 0.0), *[(piece, -2.0 - number / 8) for number, piece in enumerate(
        ("▁the", "▁river", "▁", "stone", "s", "▁market", "t", "h", "e", "▁a", "."))]]  # fmt: skip
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=1))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def byte_pairs() -> Tokenizer:
    """Every byte has an id, so there is no unknown token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate([*letters, "th", "the", "Ġthe"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("t", "h"), ("th", "e"), ("Ġ", "the")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer


def table(rows: int, seed: int) -> Any:
    return np.random.default_rng(seed).normal(0, 1, (rows, WIDTH)).astype(np.float32)


def model2vec(tokenizer: Tokenizer, seed: int, dtype: Any = np.float32, **settings: Any) -> Any:
    return StaticModel(table(tokenizer.get_vocab_size(), seed).astype(dtype), tokenizer, **settings)


def quantised_vocabulary() -> Any:
    """Seven rows that the ids share, each id with a weight of its own, as model2vec's vocabulary quantisation saves."""
    tokenizer, random = wordpiece(), np.random.default_rng(5)
    count = tokenizer.get_vocab_size()
    mapping, weights = random.integers(0, 7, count), random.uniform(0.1, 2, count)
    return StaticModel(table(7, 6), tokenizer, weights=weights, token_mapping=mapping, normalize=True)


def int8() -> Any:
    tokenizer = wordpiece()
    rows = np.random.default_rng(8).integers(-127, 128, (tokenizer.get_vocab_size(), WIDTH)).astype(np.int8)
    return StaticModel(rows, tokenizer, normalize=True)


def weighted() -> Any:
    tokenizer = wordpiece()
    weights = np.random.default_rng(10).uniform(0.1, 2, tokenizer.get_vocab_size()).astype(np.float32)
    return model2vec(tokenizer, 11, weights=weights)


def static(tokenizer: Tokenizer, seed: int, *others: Any, prompts: dict[str, str] | None = None) -> Any:
    embedding = StaticEmbedding(tokenizer, table(tokenizer.get_vocab_size(), seed))
    default = next(iter(prompts), None) if prompts else None
    return SentenceTransformer(modules=[embedding, *others], prompts=prompts, default_prompt_name=default, device="cpu")


def in_a_folder(embedding: Any) -> Any:
    embedding[0].save_in_root = False
    return embedding


def truncating() -> Tokenizer:
    tokenizer = wordpiece()
    tokenizer.enable_truncation(6)
    return tokenizer


def transformer(scratch: Path) -> Any:
    torch.manual_seed(12)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=len(SPECIALS) + len(WORDS), max_position_embeddings=80, **sizes)
    BertModel(config).save_pretrained(scratch)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=wordpiece(), model_max_length=64, **names).save_pretrained(scratch)
    first = Transformer(str(scratch))
    return in_a_folder(SentenceTransformer(modules=[first, Pooling(16, "mean"), Normalize()], device="cpu"))


MODEL2VEC: dict[str, Callable[[], Any]] = {
    "model2vec": lambda: model2vec(wordpiece(), 1),
    "model2vec_unit": lambda: model2vec(wordpiece(), 2, normalize=True),
    "model2vec_words_of_4": lambda: model2vec(wordlevel(), 3, max_length=4),
    "model2vec_unigram_without_limit": lambda: model2vec(unigram(), 4, max_length=None),
    "model2vec_bytes": lambda: model2vec(byte_pairs(), 7, normalize=True, max_length=100),
    "model2vec_float16": lambda: model2vec(wordpiece(), 8, np.float16),
    "model2vec_float64": lambda: model2vec(wordpiece(), 9, np.float64),
    "model2vec_int8": int8,
    "model2vec_weights": weighted,
    "model2vec_mapping": quantised_vocabulary,
}
SENTENCE_TRANSFORMERS: dict[str, Callable[[], Any]] = {
    "static": lambda: static(wordpiece(), 21),
    "static_unit": lambda: static(wordpiece(), 22, Normalize()),
    "static_in_a_folder": lambda: in_a_folder(static(wordpiece(), 23, Normalize())),
    "static_cut_at_6": lambda: static(truncating(), 24),
    "static_prompt": lambda: static(unigram(), 25, Normalize(), prompts={"query": "the river ", "passage": "stone "}),
}


def entry(name: str, library: str, vectors: Any) -> dict[str, Any]:
    rows = [[float(value) for value in row] for row in vectors]
    return {"name": name, "library": library, "vectors": rows}


def made(out: Path) -> list[dict[str, Any]]:
    entries = []
    for name, make in MODEL2VEC.items():
        make().save_pretrained(out / name)
        entries.append(entry(name, "model2vec", StaticModel.from_pretrained(out / name).encode(TEXTS)))
    judges = SENTENCE_TRANSFORMERS | {"transformer_in_a_folder": lambda: transformer(out / "scratch")}
    for name, make in judges.items():
        make().save(str(out / name), create_model_card=False)
        vectors = SentenceTransformer(str(out / name), device="cpu").encode(list(TEXTS))
        entries.append(entry(name, "sentence-transformers", vectors))
    return entries


def main(out: Path) -> None:
    torch.set_num_threads(1)
    shutil.rmtree(out / "static", ignore_errors=True)
    entries = made(out / "static")
    shutil.rmtree(out / "static/scratch")
    for readme in out.glob("static/*/README.md"):
        readme.unlink()
    for path in out.glob("static/**/*.safetensors"):
        path.chmod(0o644)
    head = {
        "command": COMMAND,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "texts": TEXTS,
    }
    lines = ",\n".join(json.dumps(each) for each in entries)
    text = json.dumps(head, indent=1, ensure_ascii=False)[:-2]
    (out / "static.json").write_text(f'{text},\n "models": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden"))
