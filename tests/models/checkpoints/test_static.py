"""Static embedding checkpoints: the rules of both libraries, and broken ones."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.artifacts import card as cards
from models.artifacts import weights
from models.artifacts.description import describe
from models.artifacts.export import export
from models.artifacts.verification import verify
from models.checkpoints.safetensors import tensors_of
from models.checkpoints.sentence_transformers import Pooling
from models.errors import BadCheckpoint, ModelError
from models.positions.learned import PositionRule
from models.recipes.static import StaticTable
from tests.golden_cases import write_json
from tests.static_golden import static_case


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copied("model2vec_mapping", tmp_path)


def copied(name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(static_case(name).folder, tmp_path / "x"))


def change(path: Path, **values: Any) -> None:
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | values)


def test_card_describes_table_and_rules(tmp_path: Path) -> None:
    card = export(static_case("model2vec_mapping").folder, tmp_path / "out")
    assert cards.read(tmp_path / "out") == card
    assert card.static == StaticTable("embeddings", "mapping", "weights", dropped=1, max_characters=2560)
    assert (card.family, card.hidden_size, card.vocab_size, card.max_tokens) == ("model2vec", 8, 19, 512)
    assert (card.pooling, card.default_output) == (Pooling("mean", normalize=True), "sentence_embedding")
    assert (card.outputs, card.position) == (
        ("input_embeddings", "sentence_embedding"),
        PositionRule("arange", 0, None),
    )
    assert max(card.largest_difference.values()) <= card.tolerance
    assert verify(tmp_path / "out") == card.largest_difference


@pytest.mark.parametrize(
    ("name", "family", "dtype", "max_tokens"),
    [
        ("static_in_a_folder", "static_embedding", "float32", None),
        ("static_cut_at_6", "static_embedding", "float32", 6),
        ("model2vec_float16", "model2vec", "float16", 512),
        ("model2vec_float64", "model2vec", "float32", 512),
        ("model2vec_int8", "model2vec", "int8", 512),
        ("model2vec_unigram_without_limit", "model2vec", "float32", None),
    ],
)
def test_card_has_family_dtype_and_limit_of_checkpoint(
    name: str, family: str, dtype: str, max_tokens: int | None, tmp_path: Path
) -> None:
    card = export(static_case(name).folder, tmp_path / "out")
    assert (card.family, card.dtype, card.max_tokens, card.source) == (family, dtype, max_tokens, name)


def test_table_is_stored_once_byte_for_byte(folder: Path, tmp_path: Path) -> None:
    export(folder, tmp_path / "out")
    kept, held = tensors_of(tmp_path / "out/weights.safetensors"), load_file(folder / "model.safetensors")
    assert set(kept) == set(held)
    assert np.array_equal(kept["embeddings"], held["embeddings"])
    assert not any(path.stat().st_size > 4000 for path in (tmp_path / "out").glob("*.onnx"))


def test_exports_token_vectors_only(folder: Path, tmp_path: Path) -> None:
    card = export(folder, tmp_path / "out", pooling="none")
    assert (card.outputs, card.default_output, card.pooling) == (("input_embeddings",), "input_embeddings", None)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_card_states_error_of_quantized_table(dtype: str, folder: Path, tmp_path: Path) -> None:
    card = export(folder, tmp_path / "out", dtype=dtype)
    held = load_file(folder / "model.safetensors")["embeddings"]
    kept = weights.tensors(tmp_path / "out", card)["embeddings"][np.arange(7)]
    assert card.dtype == dtype
    assert card.tables is not None
    largest = np.abs(kept.astype(np.float64) - held).max()
    assert 0 < largest == pytest.approx(card.tables["embeddings"].largest_error)


def test_rejects_other_dtype_for_int8_table(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is int8, as Model2Vec quantised it: leave out --dtype float16"):
        export(static_case("model2vec_int8").folder, tmp_path / "out", dtype="float16")


def test_opens_model2vec_without_modules_json(folder: Path, tmp_path: Path) -> None:
    """The first versions of Model2Vec wrote config.json with its model_type alone."""
    (folder / "modules.json").unlink()
    change(folder / "config.json", model_type="model2vec")
    assert export(folder, tmp_path / "out").family == "model2vec"


def test_describes_checkpoint(folder: Path, tmp_path: Path) -> None:
    export(folder, tmp_path / "out")
    assert "static embeddings: 7 rows for 19 ids, weighted, without token 1" in describe(str(folder))
    assert "largest difference between ONNX and the float64 reference" in describe(str(tmp_path / "out"))


def rewrite(folder: Path, **changes: Any) -> None:
    held = load_file(folder / "model.safetensors") | changes
    save_file({name: array for name, array in held.items() if array is not None}, folder / "model.safetensors")


def nan(folder: Path) -> None:
    table = load_file(folder / "model.safetensors")["embeddings"]
    table[3, 2] = np.nan
    rewrite(folder, embeddings=table)


def modules(*kinds: str) -> Callable[[Path], None]:
    entries = [{"type": f"sentence_transformers.models.{kind}", "path": "."} for kind in kinds]
    return lambda folder: write_json(folder / "modules.json", entries)


def outside(folder: Path) -> None:
    write_json(folder / "modules.json", [{"type": "a.StaticEmbedding", "path": "../.."}])


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), r"holds neither model\.safetensors"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), r"tokenizer\.json is missing"),
    "a tokenizer that is none": (lambda folder: write_json(folder / "tokenizer.json", {"a": 1}), "is not a tokenizer"),
    "no table": (lambda folder: rewrite(folder, embeddings=None), "should hold the table as 'embeddings'"),
    "a table of one dimension": (
        lambda folder: rewrite(folder, embeddings=np.zeros(7, np.float32)),
        r"'embeddings' is F32 \[7\]; it is a \[rows, d\] table",
    ),
    "a table of integers": (
        lambda folder: rewrite(folder, embeddings=np.zeros((7, 8), np.int32)),
        r"'embeddings' is I32 \[7, 8\]; it is a \[rows, d\] table of F32, F16, BF16, F64, I8",
    ),
    "a table with NaN": (nan, "'embeddings' holds a value that is infinite or not a number in row 3"),
    "infinite weights": (
        lambda folder: rewrite(folder, weights=np.full(19, np.inf)),
        "'weights' holds a value that is infinite or not a number in row 0",
    ),
    "weights too few": (
        lambda folder: rewrite(folder, weights=np.ones(18)),
        r"'weights' is F64 \[18\]; it is \[19\], one value an id",
    ),
    "a mapping of floats": (
        lambda folder: rewrite(folder, mapping=np.zeros(19, np.float32)),
        r"'mapping' is F32 \[19\]; it is \[19\], one value an id, of I64",
    ),
    "a mapping beyond the table": (
        lambda folder: rewrite(folder, mapping=np.arange(19)),
        "'mapping' sends id 7 to row 7; the table has rows 0 to 6",
    ),
    "a mapping below zero": (
        lambda folder: rewrite(folder, mapping=np.full(19, -1)),
        "'mapping' sends id 0 to row -1; the table has rows 0 to 6",
    ),
    "a table smaller than the vocabulary": (
        lambda folder: rewrite(folder, mapping=None, weights=None),
        "gives ids up to 18, but .* has rows for 0 to 6",
    ),
    "a length that is none": (lambda folder: change(folder / "config.json", max_length="long"), "max_length is 'long'"),
    "a length of nothing": (
        lambda folder: change(folder / "config.json", max_length=0),
        "max_length is '0'",
    ),
    "a module after it": (
        lambda folder: ((folder / "config.json").unlink(), modules("StaticEmbedding", "Dense")(folder)),
        "chains StaticEmbedding, Dense; what is computed after StaticEmbedding: Normalize or nothing",
    ),
    "a folder outside": (outside, "lies outside the checkpoint"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_rejects_broken_checkpoint_and_leaves_nothing(what: str, folder: Path, tmp_path: Path) -> None:
    spoil, message = BROKEN[what]
    spoil(folder)
    with pytest.raises(BadCheckpoint, match=message):
        export(folder, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x"]


def test_rejects_other_pooling(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="whose pooling is mean: leave out --pooling cls"):
        export(folder, tmp_path / "out", pooling="cls")


def test_reads_default_dimensions_and_similarity_function(tmp_path: Path) -> None:
    folder = copied("static_unit", tmp_path)
    settings = {"prompts": {}, "truncate_dim": 3, "similarity_fn_name": "dot"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    card = export(folder, tmp_path / "out")
    assert (card.default_width, card.sentence_width, card.similarity_function) == (3, 8, "dot")
    assert export(folder, tmp_path / "mean", pooling="mean").default_width == 8
