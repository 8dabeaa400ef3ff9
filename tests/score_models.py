"""Tiny random models of one vocabulary: a cross-encoder, a classifier of three labels and an embedder."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts.export import export
from tests.golden_cases import tiny_bert, tiny_config, write_folder, write_json, write_sentence_files, write_tokenizer

RANKER, CLASSIFIER, EMBEDDER = "ranker", "classifier", "embedder"
LABELS = ("good", "bad", "so so")
LONGEST = 24  # tokens of a pair
WIDTH = 32


def write_classifier(folder: Path, labels: tuple[str, ...], **changes: Any) -> Path:
    """A checkpoint of BertForSequenceClassification; one label: a cross-encoder."""
    random = np.random.default_rng(11)

    def drawn(*shape: int) -> NDArray[np.float32]:
        return random.normal(0, 0.4, shape).astype(np.float32)

    encoder = tiny_bert()
    weights = {f"bert.{name}": tensor for name, tensor in encoder.items()}
    weights |= {"bert.pooler.dense.weight": drawn(WIDTH, WIDTH), "bert.pooler.dense.bias": drawn(WIDTH)}
    weights |= {"classifier.weight": drawn(len(labels), WIDTH), "classifier.bias": drawn(len(labels))}
    config = tiny_config(encoder, architectures=["BertForSequenceClassification"])
    config["id2label"] = {str(number): label for number, label in enumerate(labels)}
    write_folder(folder, config | changes, weights)
    write_tokenizer(folder / "tokenizer.json")
    write_json(folder / "tokenizer_config.json", {"model_max_length": LONGEST})
    return folder


def write_store(folder: Path) -> Path:
    """A store of the three models."""
    export(write_classifier(folder / "checkpoints" / RANKER, ("relevance",)), folder / "store" / RANKER)
    export(write_classifier(folder / "checkpoints" / CLASSIFIER, LABELS), folder / "store" / CLASSIFIER)
    weights = tiny_bert()
    checkpoint = write_folder(folder / "checkpoints" / EMBEDDER, tiny_config(weights), weights)
    write_tokenizer(checkpoint / "tokenizer.json")
    write_sentence_files(checkpoint, "mean", max_tokens=LONGEST)
    export(checkpoint, folder / "store" / EMBEDDER)
    return folder / "store"
