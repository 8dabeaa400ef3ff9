"""Tiny checkpoints of sparse vectors as sentence-transformers and FlagEmbedding write them, and their judge."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from models.artifacts import card as cards
from models.checkpoints import safetensors
from models.reference import head as head_reference
from models.reference import interpreter as reference
from tests.golden_cases import (
    WORDS,
    tiny_bert,
    tiny_config,
    write_folder,
    write_json,
    write_sentence_files,
    write_tokenizer,
)
from tests.torch_files import write_torch

HIDDEN = 32
NAMES = {"cls_token": "[CLS]", "eos_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
UNUSED = (0, 1, 2, 3)
Vectors = list[dict[int, float]]


def write_masked_lm(folder: Path, seed: int = 7, **changes: Any) -> Path:
    """A BertForMaskedLM, tied, with a tokenizer; no sentence-transformers files."""
    base = tiny_bert(seed=seed)
    random = np.random.default_rng(seed)
    stem = "cls.predictions"
    head = {
        f"{stem}.transform.dense.weight": random.normal(0, 0.3, (HIDDEN, HIDDEN)),
        f"{stem}.transform.dense.bias": random.normal(0, 0.3, HIDDEN),
        f"{stem}.transform.LayerNorm.weight": random.normal(1, 0.1, HIDDEN),
        f"{stem}.transform.LayerNorm.bias": random.normal(0, 0.1, HIDDEN),
        f"{stem}.bias": random.normal(-1, 0.5, len(WORDS)),
    }
    tensors = {f"bert.{name}": own for name, own in base.items()}
    config = tiny_config(base, architectures=["BertForMaskedLM"], tie_word_embeddings=True) | changes
    write_folder(folder, config, tensors | {name: own.astype(np.float32) for name, own in head.items()})
    write_tokenizer(folder / "tokenizer.json")
    write_json(folder / "tokenizer_config.json", NAMES | {"model_max_length": 24})
    return folder


def write_modules(folder: Path, *modules: tuple[str, str]) -> None:
    """modules.json of class names and folders."""
    entries = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.x.{kind}"}
        for number, (kind, path) in enumerate(modules)
    ]
    write_json(folder / "modules.json", entries)


def write_splade(folder: Path, pooling: str = "max", activation: str = "relu", **changes: Any) -> Path:
    """A SparseEncoder of a masked language model."""
    write_masked_lm(folder, **changes)
    write_modules(folder, ("MLMTransformer", ""), ("SpladePooling", "1_SpladePooling"))
    config = {"pooling_strategy": pooling, "activation_function": activation}
    write_json(folder / "1_SpladePooling/config.json", config)
    return folder


def weights_of_ids() -> NDArray[np.float32]:
    table = np.random.default_rng(3).uniform(0.5, 9, len(WORDS)).astype(np.float32)
    table[6] = 0
    return table


def write_table(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"weight": weights_of_ids()}, folder / "model.safetensors")
    write_tokenizer(folder / "tokenizer.json")
    write_json(folder / "tokenizer_config.json", NAMES | {"model_max_length": 24})
    write_json(folder / "config.json", {"frozen": True})


def write_static(folder: Path) -> Path:
    """A SparseEncoder that is a table of weights alone."""
    write_table(folder)
    write_modules(folder, ("SparseStaticEmbedding", ""))
    return folder


def write_router(folder: Path, **parameters: Any) -> Path:
    """A SparseEncoder that looks queries up and encodes documents."""
    write_masked_lm(folder / "document_0_Transformer")
    write_json(folder / "document_1_SpladePooling/config.json", {"pooling_strategy": "max"})
    write_table(folder / "query_0_SparseStaticEmbedding")
    write_modules(folder, ("Router", ""))
    kinds = ("document_0_Transformer", "document_1_SpladePooling", "query_0_SparseStaticEmbedding")
    write_json(
        folder / "router_config.json",
        {
            "types": {name: f"sentence_transformers.x.{name.split('_')[2]}" for name in kinds},
            "structure": {"query": [kinds[2]], "document": list(kinds[:2])},
            "parameters": {"default_route": "document", "allow_empty_key": True} | parameters,
        },
    )
    return folder


def write_lexical(folder: Path) -> Path:
    """A dense encoder with FlagEmbedding's linear layer beside it."""
    tensors = tiny_bert(seed=11)
    write_folder(folder, tiny_config(tensors), tensors)
    write_tokenizer(folder / "tokenizer.json")
    write_json(folder / "tokenizer_config.json", NAMES)
    write_sentence_files(folder, "cls")
    random = np.random.default_rng(5)
    weight = random.normal(0, 0.5, (1, HIDDEN)).astype(np.float32)
    write_torch(folder / "sparse_linear.pt", {"weight": weight, "bias": np.array([2.5], np.float32)})
    return folder


# ---- the judge: the formulas in float64


def expected(folder: Path, sequences: list[list[int]]) -> list[NDArray[np.float64]]:
    """The sparse vectors of an exported model for token ids, as rows of all columns."""
    card = cards.read(folder)
    weights = safetensors.tensors_of(folder / "weights.safetensors")
    assert card.sparse is not None
    rows = []
    for ids in sequences:
        hidden = _hidden(card, weights, np.array(ids))
        row = np.zeros(card.sparse.width)
        if splade := card.sparse.splade:
            assert card.head is not None
            values = np.log1p(np.maximum(head_reference.logits(card.head, weights, hidden), 0))
            values = np.log1p(values) if splade.activation == "log1p_relu" else values
            row = values.max(axis=0) if splade.pooling == "max" else values.sum(axis=0)
        else:
            weight, bias = (weights[f"sparse_linear.{part}"] for part in ("weight", "bias"))
            for id_, value in zip(ids, (hidden @ weight.T + bias)[:, 0], strict=True):
                row[id_] = max(row[id_], value if id_ not in UNUSED else 0.0)
        rows.append(row)
    return rows


def _hidden(card: cards.Card, weights: Any, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    places, mask, types = np.arange(len(ids)), np.ones(len(ids), bool), np.zeros(len(ids), np.int64)
    rows = reference.run(card.recipe, weights, ids, places, types)["input_embeddings"]
    return np.asarray(reference.encode(card.encoder, weights, rows, mask, np.array([len(ids)]), places, {}))
