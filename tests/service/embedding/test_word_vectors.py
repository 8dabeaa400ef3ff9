"""Vectors of words (GloVe): a text's words are found as sentence-transformers' WhitespaceTokenizer finds them."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from models.artifacts.export import export
from models.errors import BadCheckpoint
from service.embedding.requests import Text
from tests.embed_requests import embed_request
from tests.golden_cases import write_json
from tests.service.registry.registry_service import Service

WORDS = ["PADDING_TOKEN", "hello", "world", "U.S.", "stones", ","]
TABLE = np.eye(6, 4, dtype=np.float32) + 0.5
MODULE = "sentence_transformers.models."


def write(folder: Path, mode: str = "mean", tokenizer: str = "WhitespaceTokenizer") -> Path:
    """Write the files of a model of word vectors."""
    first = folder / "0_WordEmbeddings"
    kinds = {first.name: "WordEmbeddings", "1_Pooling": "Pooling"}
    write_json(folder / "modules.json", [{"path": path, "type": MODULE + kind} for path, kind in kinds.items()])
    write_json(folder / "1_Pooling/config.json", {f"pooling_mode_{mode}_tokens": True})
    config = {"tokenizer_class": f"{MODULE}tokenizer.{tokenizer}", "update_embeddings": False, "max_seq_length": 5}
    write_json(first / "wordembedding_config.json", config)
    vocabulary = {"vocab": WORDS, "stop_words": ["the", "WORLD"], "do_lower_case": False}
    write_json(first / "whitespacetokenizer_config.json", vocabulary)
    save_file({"emb_layer.weight": TABLE}, first / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("hello", [1]),
        ("Hello, the 'world'! U.S. u.s. unknown", [1, 2, 3]),
        ("world WORLD stones\u2003STONES...", [2, 4, 4]),
        ("hello , world", [1, 5, 2]),
        ("hello " * 9, [1] * 5),
        ("the ... u.s. \n", []),
    ],
)
def test_a_text_is_the_mean_of_its_words(text: str, rows: list[int], tmp_path: Path) -> None:
    export(write(tmp_path / "x"), tmp_path / "store/x")
    service = Service(tmp_path / "store")
    request = embed_request([Text(text)], None, ("sentence_embedding",), truncate=True)
    (output,) = asyncio.run(service.pipeline.embed(request)).outputs
    wanted = TABLE[rows].mean(axis=0) if rows else np.zeros(4)
    np.testing.assert_allclose(output.rows[0], wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tokenizer": "PhraseTokenizer"},
            r"wordembedding_config.json:1: tokenizer_class is 'PhraseTokenizer'; .*save",
        ),
        (
            {"mode": "max"},
            r"modules.json chains WordEmbeddings, Pooling, which pools by max; what is computed.*by mean",
        ),
    ],
)
def test_other_word_vectors_are_refused(changes: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=message):
        export(write(tmp_path / "x", **changes), tmp_path / "out")
