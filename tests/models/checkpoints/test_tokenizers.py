"""Tokenizers of vocabulary files, and what tokenizer_config.json says over tokenizer.json, judged by transformers.

The ids in golden/tokenizers/ids.json are those of transformers 4.57.6 with sentencepiece 0.2.3: of its slow classes
where a vocabulary is SentencePiece's or GPT-2's, of its fast ones where it is WordPiece's, RoBERTa's or CLIP's.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

from models.artifacts.export import export
from models.checkpoints.tokenizers.checkpoint_tokenizer import read_tokenizer
from models.checkpoints.tokenizers.files import TOKENIZER
from models.checkpoints.tokenizers.gguf import build
from models.checkpoints.tokenizers.sentencepiece import read_pieces
from models.errors import BadCheckpoint
from tests.golden_cases import write_json, write_tiny_bert, write_tokenizer
from tests.texts_of_all_scripts import texts
from tests.tokenizer_files import CASES, Pieces, charsmap, golden_ids, pieces_of, vocabularies, write_case, write_pieces

TEXTS = 40
BOTH = {"add_bos_token": True, "add_eos_token": True}
PAIRS = (("a b", "c"), ("hello world.", "9, x"))
TAKES_COMMAS_APART = ("albert", "albert-cased", "xlnet")  # 10,000: by rules that no tokenizer.json has


def library(folder: Path) -> Any:
    tokenizer = read_tokenizer(folder)
    assert tokenizer is not None
    return tokenizer.library


def settings(folder: Path) -> dict[str, tuple[str, str, str | None]]:
    tokenizer = read_tokenizer(folder)
    assert tokenizer is not None
    return {each.name: (each.value, each.origin, each.disagrees) for each in tokenizer.settings}


@pytest.mark.parametrize("name", CASES)
def test_ids_equal_those_of_the_class(name: str, tmp_path: Path) -> None:
    tokenizer = library(write_case(tmp_path, CASES[name]))
    made = [tokenizer.encode(text).ids for text in texts(TEXTS)]
    made += [tokenizer.encode(*pair).ids for pair in PAIRS]
    apart = {
        index
        for index, text in enumerate((*texts(TEXTS), *map("".join, PAIRS)))
        if name in TAKES_COMMAS_APART and re.search(r"\d,", text)
    }
    judged = golden_ids(name)
    assert len(judged) == len(made)
    assert [index for index in range(len(made)) if made[index] != judged[index] and index not in apart] == []


def test_a_built_tokenizer_is_exported_and_said(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    write_tiny_bert(folder, pooling="mean")
    (folder / TOKENIZER).unlink()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    card = export(folder, tmp_path / "out")
    assert card.tokenizer == TOKENIZER
    assert Tokenizer.from_file(str(tmp_path / "out" / TOKENIZER)).encode("Hello mars").ids == [2, 5, 1, 3]
    said = {each.name: (each.value, each.origin) for each in card.provenance}
    assert said["tokenizer"] == ("built", "vocab.txt as BertTokenizer")
    assert said["special tokens"][0] == "[CLS] [SEP]"


@pytest.mark.parametrize("name", ["XLMTokenizer", "BertJapaneseTokenizer", None])
def test_unknown_class_is_refused_with_a_remedy(name: str | None, tmp_path: Path) -> None:
    write_case(tmp_path, CASES["roberta"]._replace(model_type="xlm", config={"tokenizer_class": name}))
    with pytest.raises(
        BadCheckpoint, match=f"merges.txt and no tokenizer.json, and tokenizer_class is {name!r}.*save_pre"
    ):
        read_tokenizer(tmp_path)


def _truncated(folder: Path) -> None:
    path = folder / "sentencepiece.bpe.model"
    path.write_bytes(path.read_bytes()[:500])


def _of_words(folder: Path) -> None:
    path = folder / "sentencepiece.bpe.model"
    path.write_bytes(path.read_bytes() + bytes([0x12, 0x02, 0x18, 0x03]))  # trainer_spec.model_type = WORD


def _of_nothing(folder: Path) -> None:
    (folder / "sentencepiece.bpe.model").write_bytes(b"\xff" * 20)


def _unordered(folder: Path) -> None:
    write_json(folder / "tokenizer_config.json", {"added_tokens_decoder": {"7": {"content": "<new>", "special": True}}})


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("xlm-roberta", _truncated, "is not a SentencePiece model: field 1 claims"),
        ("xlm-roberta", _of_words, "another kind than unigram and BPE"),
        (
            "xlm-roberta",
            lambda folder: (folder / "sentencepiece.bpe.model").write_bytes(b"\xff" * 20),
            "more than ten bytes",
        ),
        ("xlm-roberta", _unordered, "'<new>' is to be 7"),
        ("roberta", lambda folder: (folder / "merges.txt").unlink(), "holds no merges.txt"),
        ("roberta", lambda folder: (folder / "merges.txt").write_text("a b c\n"), "'a b c' is no pair"),
        ("roberta", lambda folder: (folder / "merges.txt").write_text("zz zzz\n"), "make no RobertaTokenizer"),
        ("bert", lambda folder: (folder / "vocab.txt").write_bytes(b"\xff\n"), "vocab.txt cannot be read"),
        (
            "bert",
            lambda folder: write_json(folder / "tokenizer_config.json", {"do_lower_case": "yes"}),
            "do_lower_case is 'yes'; it must be true or false",
        ),
    ],
)
def test_bad_files_are_refused(name: str, spoil: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    write_case(tmp_path, CASES[name])
    spoil(tmp_path)
    with pytest.raises(BadCheckpoint, match=re.escape(message)):
        read_tokenizer(tmp_path)


def test_model_file_holds_pieces_and_rules(tmp_path: Path) -> None:
    model = CASES["xlm-roberta"].files
    assert isinstance(model, Pieces)
    write_pieces(tmp_path / "x.model", model)
    read = read_pieces(tmp_path / "x.model")
    assert [(text, kind) for text, _, kind in read.pieces] == [(text, kind) for text, _, kind in pieces_of(model)]
    assert (read.charsmap, read.unigram, read.prefix, read.squeezes) == (charsmap(), True, True, True)


# ---- tokenizer_config.json over tokenizer.json


def write_config(folder: Path, config: dict[str, Any], name: str = "bert") -> Path:
    """Write the tokenizer.json of a case, and another tokenizer_config.json beside it."""
    content = read_tokenizer(write_case(folder / "made", CASES[name]))
    assert content is not None
    write_json(folder / "config.json", {"model_type": CASES[name].model_type})
    (folder / TOKENIZER).write_bytes(content.content)
    write_json(folder / "tokenizer_config.json", config)
    return folder


def test_add_eos_token_puts_the_token_behind_texts(tmp_path: Path) -> None:
    named = {"eos_token": "</s>", "bos_token": "<s>", "tokenizer_class": "LlamaTokenizerFast"}
    folder = write_config(tmp_path, {"add_eos_token": True, **named}, "llama")
    assert settings(folder)["special tokens"] == (
        "<s> </s>",
        "add_eos_token true of tokenizer_config.json",
        "tokenizer.json has others",
    )
    tokenizer, judged = library(folder), golden_ids("mistral")
    assert [tokenizer.encode(text).ids for text in texts(TEXTS)] == list(judged[:TEXTS])
    assert [tokenizer.encode(*pair).ids for pair in PAIRS] == list(judged[TEXTS:])


def test_add_eos_token_stands_beside_steps_of_bytes(tmp_path: Path) -> None:
    folder = write_config(tmp_path, {"add_eos_token": True, "eos_token": {"content": "<|im_end|>"}}, "qwen2")
    tokenizer = library(folder)
    assert [tokenizer.encode(text).ids for text in texts(TEXTS)] == [[*ids, 600] for ids in golden_ids("qwen2")[:TEXTS]]
    assert json.loads(tokenizer.to_str())["post_processor"]["processors"][0]["type"] == "ByteLevel"


@pytest.mark.parametrize(("name", "kept"), [("LlamaTokenizer", False), ("PreTrainedTokenizerFast", True)])
def test_add_bos_token_false_counts_for_its_classes(name: str, kept: bool, tmp_path: Path) -> None:
    config = {"add_bos_token": False, "bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": name}
    first = library(write_config(tmp_path, config, "llama")).encode("a").tokens[0]
    assert (first == "<s>") == kept


def test_add_eos_token_without_such_a_token_is_refused(tmp_path: Path) -> None:
    folder = write_config(tmp_path, {"add_eos_token": True, "eos_token": "<none>"}, "qwen2")
    with pytest.raises(BadCheckpoint, match="says add_eos_token, and '<none>' is no token of the vocabulary"):
        read_tokenizer(folder)


def test_add_eos_token_against_another_template_is_refused(tmp_path: Path) -> None:
    folder = write_config(tmp_path, {"add_eos_token": True, "eos_token": "[MASK]"}, "bert")
    with pytest.raises(
        BadCheckpoint, match=r"add_eos_token true, and the template of tokenizer.json puts \[CLS\], \[SEP\]"
    ):
        read_tokenizer(folder)


def test_bert_switches_change_the_normalizer(tmp_path: Path) -> None:
    cased = CASES["bert-accents"].config | {"tokenizer_class": "BertTokenizer"}
    folder = write_config(tmp_path, cased)
    tokenizer = library(folder)
    assert [tokenizer.encode(text).ids for text in texts(TEXTS)] == list(golden_ids("bert-accents")[:TEXTS])
    assert settings(folder)["do_lower_case"] == ("false", "tokenizer_config.json", "tokenizer.json says true")


def test_switches_that_a_class_ignores_change_nothing(tmp_path: Path) -> None:
    """paraphrase-multilingual-MiniLM-L12-v2 says do_lower_case of a tokenizer that keeps the case of letters."""
    folder = write_config(
        tmp_path,
        {"do_lower_case": True, "tokenizer_class": "PreTrainedTokenizerFast", "add_eos_token": False},
        "xlm-roberta",
    )
    tokenizer = read_tokenizer(folder)
    assert tokenizer is not None
    assert tokenizer.content == (folder / TOKENIZER).read_bytes()


def test_letter_case_of_sentencepiece_classes_is_obeyed(tmp_path: Path) -> None:
    folder = write_config(tmp_path, {"do_lower_case": False, "tokenizer_class": "AlbertTokenizer"}, "albert")
    assert library(folder).encode("The").tokens != library(tmp_path / "made").encode("The").tokens
    assert library(folder).encode("the").tokens == library(tmp_path / "made").encode("The").tokens


def test_add_prefix_space_is_obeyed(tmp_path: Path) -> None:
    folder = write_config(tmp_path, {"add_prefix_space": True}, "roberta")
    tokenizer = library(folder)
    assert [tokenizer.encode(text).ids for text in texts(TEXTS)] == list(golden_ids("roberta-prefix")[:TEXTS])


@pytest.mark.parametrize(
    ("config", "direction", "side"),
    [
        ({"truncation_side": "left"}, None, ("left", "tokenizer_config.json", None)),
        ({}, "Left", ("left", "tokenizer.json", None)),
        ({"truncation_side": "left"}, "Right", ("left", "tokenizer_config.json", "tokenizer.json says right")),
        ({}, None, ("right", "no file", None)),
    ],
)
def test_cut_side_is_read(config: dict[str, Any], direction: str | None, side: tuple[Any, ...], tmp_path: Path) -> None:
    folder = tmp_path / "x"
    write_tiny_bert(folder, pooling="mean")
    write_tokenizer(folder / TOKENIZER)
    data = json.loads((folder / TOKENIZER).read_text())
    if direction:
        data["truncation"]["direction"] = direction
    else:
        data["truncation"] = None
    write_json(folder / TOKENIZER, data)
    write_json(folder / "tokenizer_config.json", config)
    card = export(folder, tmp_path / "out")
    assert card.cut_side == side[0]
    (said,) = [each for each in card.provenance if each.name == "cut side"]
    assert (said.value, said.origin, said.disagrees) == side


# ---- GGUF


def gguf_header(name: str, tokenizer: Any, **more: Any) -> dict[str, Any]:
    """Return the metadata that llama.cpp's converter writes of a tokenizer."""
    data = json.loads(tokenizer.to_str())
    added = {entry["content"]: 3 if entry["special"] else 4 for entry in data["added_tokens"]}
    tokens = [tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size())]
    header = {"tokens": tokens, "token_type": [added.get(token, 1) for token in tokens]}
    return {f"tokenizer.ggml.{key}": value for key, value in {**header, "model": name, **more}.items()}


def through_a_file(path: Path, metadata: dict[str, Any]) -> Any:
    """Write metadata with the gguf package, read it back, and return the tokenizer that it makes."""
    from models.checkpoints.gguf import read_gguf

    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}.get(type(value), writer.add_array)
        add(key, value)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return build(read_gguf(path).metadata)


@pytest.mark.parametrize(
    ("name", "model", "more"),
    [
        ("qwen2", "gpt2", {"pre": "qwen2", "add_bos_token": False, "eos_token_id": 600}),
        ("roberta", "gpt2", {"pre": "roberta-bpe", "bos_token_id": 0, "eos_token_id": 2, **BOTH}),
        ("gpt2", "gpt2", {"pre": "gpt-2"}),
        ("llama", "llama", {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}),
        (
            "gemma",
            "llama",
            {"bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3, "add_space_prefix": False, **BOTH},
        ),
        ("xlm-roberta", "t5", {"bos_token_id": 0, "eos_token_id": 2, "unknown_token_id": 3, **BOTH}),
        ("t5", "t5", {"eos_token_id": 1, "unknown_token_id": 2}),
    ],
)
def test_gguf_vocabulary_gives_the_ids_of_its_model(
    name: str, model: str, more: dict[str, Any], tmp_path: Path
) -> None:
    original = library(write_case(tmp_path / "made", CASES[name]))
    files = CASES[name].files
    if isinstance(files, Pieces):
        scores = {text: score for text, score, _ in pieces_of(files)}
        more = {**more, "scores": [scores.get(original.id_to_token(n), 0.0) for n in range(original.get_vocab_size())]}
        if files.rules:
            more |= {"precompiled_charsmap": list(charsmap()), "remove_extra_whitespaces": True}
    else:
        more = {**more, "merges": vocabularies()[files]["merges"]}
    made = through_a_file(tmp_path / "x.gguf", gguf_header(model, original, **more))
    assert [made.encode(text).ids for text in texts(TEXTS)] == [original.encode(text).ids for text in texts(TEXTS)]
    assert [made.encode(*pair).ids for pair in PAIRS] == [original.encode(*pair).ids for pair in PAIRS]


@pytest.mark.parametrize("change", [{"merges": ["a zz"]}, {"token_type": []}, {"precompiled_charsmap": ["?"]}])
def test_gguf_vocabulary_that_contradicts_itself_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    original = library(write_case(tmp_path, CASES["qwen2" if "merges" in change else "t5"]))
    more = {"pre": "qwen2", "scores": [0.0] * original.get_vocab_size(), "precompiled_charsmap": [1], **change}
    if "token_type" in change:
        more |= {"token_type": [None] * original.get_vocab_size(), "scores": ["x"] * original.get_vocab_size()}
    header = gguf_header("gpt2" if "merges" in change else "t5", original, **more)
    with pytest.raises(BadCheckpoint, match=r"makes no tokenizer: .*; put the model's tokenizer.json beside"):
        build(header)


@pytest.mark.parametrize("change", [{"pre": "unheard-of"}, {"merges": None}, {"tokens": ["a", "a"]}, {"model": "rwkv"}])
def test_gguf_vocabulary_of_unknown_rules_gives_none(change: dict[str, Any], tmp_path: Path) -> None:
    original = library(write_case(tmp_path, CASES["qwen2"]))
    header = gguf_header("gpt2", original, pre="qwen2", merges=vocabularies()["pairs"]["merges"])
    assert build(header) is not None
    assert build(header | {f"tokenizer.ggml.{key}": value for key, value in change.items()}) is None
