"""Makes the files beside a model from a GGUF header: tokenizer.json and sentence-transformers' pooling files.

A tokenizer is made where the header holds a complete one (tokenizer.huggingface.json) or a WordPiece vocabulary. Other
vocabularies (BPE, SentencePiece) name their pre-tokenization but do not hold it: such models take token ids only.
Pooled vectors are scaled to unit length, as llama.cpp's server does: the header does not say.

Source: llama.cpp's convert_hf_to_gguf.py (BertModel.set_vocab), llama.h (pooling types), common.h (embd_normalize).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from models.checkpoints import safetensors
from models.checkpoints.checkpoint import WEIGHTS, Checkpoint, read_tensors
from models.checkpoints.gguf import Gguf
from models.checkpoints.safetensors import Tensor, TensorSource

_POOLING = {1: "mean", 2: "cls", 3: "lasttoken"}
_WORD_START, _CONTINUATION = "\u2581", "##"
_CONTROL = 3  # a token type
_SPECIAL = ("cls", "seperator", "unknown", "padding", "mask")  # spelled as the format spells it


def write(folder: Path, file: Gguf, whole: bool) -> None:
    """Write tokenizer.json, modules.json and the files that it names into `folder`, as far as the file has them.

    Args:
        whole: whether the blocks of the model's family are computed: vectors of others are not pooled.
    """
    metadata = file.metadata
    complete = metadata.get("tokenizer.huggingface.json")
    text = complete if isinstance(complete, str) else _word_piece(metadata)
    if text:
        (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    pooling = metadata.get(f"{metadata.get('general.architecture')}.pooling_type")
    if whole and isinstance(pooling, int) and pooling in _POOLING:
        _write_modules(folder, _POOLING[pooling], file.tensors)


def _write_modules(folder: Path, mode: str, tensors: Mapping[str, Tensor]) -> None:
    dense = [number for number in (2, 3) if f"dense_{number}.weight" in tensors]
    chain = [("Transformer", ""), ("Pooling", "1_Pooling"), *(("Dense", f"{number}_Dense") for number in dense)]
    chain.append(("Normalize", "4_Normalize"))
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in chain]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": mode}), encoding="utf-8")
    for number in dense:
        _write_dense(folder / f"{number}_Dense", tensors, f"dense_{number}.weight")


def _write_dense(folder: Path, tensors: Mapping[str, Tensor], name: str) -> None:
    """Write the projection after the pooling of an EmbeddingGemma, which has no bias and no activation."""
    folder.mkdir()
    held = read_tensors(Checkpoint(folder, {}, dict(tensors)), [name])[name]
    weight = np.asarray(held[:], np.float32)
    sizes = {"out_features": weight.shape[0], "in_features": weight.shape[-1]}
    config = {**sizes, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    safetensors.write(folder / WEIGHTS, [TensorSource("linear.weight", "F32", weight.shape, [weight])])


def _word_piece(metadata: Mapping[str, Any]) -> str | None:
    """Return tokenizer.json of a WordPiece vocabulary; None if there is none, or it is incomplete."""
    tokens, kinds = (metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    if metadata.get("tokenizer.ggml.model") != "bert" or not isinstance(tokens, list) or not _are_texts(tokens):
        return None
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        kinds = [0] * len(tokens)
    words = [_word(token, kind == _CONTROL) for token, kind in zip(tokens, kinds, strict=True)]
    special = {key: _special_token(metadata, key, words) for key in _SPECIAL}
    if len(set(words)) != len(words) or not all(special[key] for key in ("cls", "seperator", "unknown")):
        return None
    return _tokenizer_json(words, {key: word for key, word in special.items() if word})


def _are_texts(tokens: list[Any]) -> bool:
    return all(isinstance(token, str) for token in tokens)


def _word(token: str, control: bool) -> str:
    """Return a token as in vocab.txt: the converter marks where words begin, vocab.txt where they continue."""
    if control or (token.startswith("[") and token.endswith("]")):
        return token
    if token.startswith(_WORD_START) and token != _WORD_START:
        return token.removeprefix(_WORD_START)
    return _CONTINUATION + token


def _special_token(metadata: Mapping[str, Any], key: str, words: list[str]) -> str | None:
    number = metadata.get(f"tokenizer.ggml.{key}_token_id")
    if number is None and key == "cls":
        number = metadata.get("tokenizer.ggml.bos_token_id")
    return words[number] if isinstance(number, int) and 0 <= number < len(words) else None


def _tokenizer_json(words: list[str], special: Mapping[str, str]) -> str:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    numbers = {word: number for number, word in enumerate(words)}
    cased = any(word != word.lower() for word in words if word not in special.values() and not word.startswith("["))
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token=special["unknown"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    first, last = special["cls"], special["seperator"]
    tokenizer.post_processor = processors.BertProcessing((last, numbers[last]), (first, numbers[first]))
    tokenizer.add_special_tokens(list(dict.fromkeys(special.values())))
    text: str = tokenizer.to_str()
    return text
