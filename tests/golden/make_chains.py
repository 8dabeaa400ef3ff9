"""Writes chains.json and chains/: tiny sentence encoders with modules behind their pooling, and their vectors.

    python tests/golden/make_chains.py tests/golden

It needs sentence-transformers (torch with it). chains/NAME is what the library saved; chains.json holds the versions
and one entry per model: for each text its vector by encode() with default arguments, and by encode() of each prompt.
Imports nothing of this project: it is its judge.
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
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Dropout,
    LayerNorm,
    Normalize,
    Pooling,
    Transformer,
)
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

COMMAND = "python tests/golden/make_chains.py tests/golden"
PACKAGES = ("sentence-transformers", "transformers", "tokenizers", "numpy", "torch")
WIDTH = 16
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = ("the", "river", "stone", "market", "engine", "winter", "violin", "har", "##bour", "##s", "a", ".")
TEXTS = ("the river", "", "stone", "The harbours.", "winter market 河", "a violin engine " * 20)
PROMPTS = {"query": "the market ", "passage": "stone "}


def tokenizer() -> Tokenizer:
    """As BERT's, its specials and post-processor included."""
    vocabulary = {word: number for number, word in enumerate((*SPECIALS, *WORDS))}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.add_special_tokens(list(SPECIALS))
    return made


def transformer(scratch: Path) -> Transformer:
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(SPECIALS) + len(WORDS), max_position_embeddings=40, **sizes)).save_pretrained(
        scratch
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer(), model_max_length=32, **names).save_pretrained(scratch)
    return Transformer(str(scratch))


def linear(inner: int, width: int, activation: Any = None, **options: Any) -> Dense:
    return Dense(inner, width, activation_function=activation or nn.Identity(), **options)


def layer_norm(width: int) -> LayerNorm:
    module = LayerNorm(width)
    nn.init.normal_(module.norm.weight, 1, 0.3)
    nn.init.normal_(module.norm.bias, 0, 0.3)
    return module


CHAINS: dict[str, tuple[Callable[[], list[nn.Module]], dict[str, Any]]] = {
    "cls_tanh_unit": (lambda: [Pooling(WIDTH, "cls"), linear(WIDTH, WIDTH, nn.Tanh()), Normalize()], {}),
    "two_dense_cut": (
        lambda: [
            Pooling(WIDTH, "mean"),
            linear(WIDTH, 4 * WIDTH, bias=False),
            linear(4 * WIDTH, WIDTH, bias=False),
            Normalize(),
        ],
        {"truncate_dim": 8, "similarity_fn_name": "dot"},
    ),
    "several_modes": (
        lambda: [
            Pooling(WIDTH, ("max", "mean", "lasttoken"), include_prompt=False),
            Normalize(),
            layer_norm(3 * WIDTH),
            Dropout(0.5),
            linear(3 * WIDTH, 5, nn.GELU(), use_residual=True),
        ],
        {"prompts": PROMPTS, "default_prompt_name": "query", "similarity_fn_name": "euclidean"},
    ),
}


def entry(name: str, model: SentenceTransformer) -> dict[str, Any]:
    def listed(vectors: np.ndarray) -> list[list[float]]:
        return [[float(value) for value in row] for row in vectors]

    prompts = {prompt: listed(model.encode(list(TEXTS), prompt_name=prompt)) for prompt in model.prompts}
    prompted = {prompt: rows for prompt, rows in prompts.items() if prompt in PROMPTS}
    return {"name": name, "vectors": listed(model.encode(list(TEXTS))), "prompted": prompted}


def made(out: Path) -> list[dict[str, Any]]:
    entries = []
    for seed, (name, (behind, options)) in enumerate(CHAINS.items()):
        torch.manual_seed(seed)
        modules = [transformer(out / "scratch"), *behind()]
        SentenceTransformer(modules=modules, device="cpu", **options).save(str(out / name), create_model_card=False)
        entries.append(entry(name, SentenceTransformer(str(out / name), device="cpu")))
    return entries


def main(out: Path) -> None:
    torch.set_num_threads(1)
    shutil.rmtree(out / "chains", ignore_errors=True)
    entries = made(out / "chains")
    shutil.rmtree(out / "chains/scratch")
    for path in out.glob("chains/**/*.safetensors"):
        path.chmod(0o644)
    head = {
        "command": COMMAND,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "texts": TEXTS,
    }
    lines = ",\n".join(json.dumps(each) for each in entries)
    text = json.dumps(head, indent=1, ensure_ascii=False)[:-2]
    (out / "chains.json").write_text(f'{text},\n "models": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden"))
