"""Table statistics against numpy's float64 over the whole table."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from models.artifacts.card import read
from models.artifacts.export import export
from models.artifacts.random_checkpoint import INITS, create
from models.checkpoints.safetensors import tensors_of
from models.errors import ModelError
from models.recipes.steps import AddPosition, Embed, LayerNorm
from models.tables import analysis, row_blocks
from models.tables.analysis import components, effective_rank, row_facts, spectrum
from tests.golden_cases import write_tiny_bert

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)


def table_of(dtype: Any, rows: int = 300, width: int = 20) -> Any:
    random = np.random.default_rng(0)
    table = random.standard_normal((rows, width)) @ np.diag(np.geomspace(10, 0.01, width))
    table[[4, 250]] = 0
    table[[7, 90, 200]] = table[3]
    table[99] = table[98]
    return table.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_row_facts_match_float64(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "BLOCK_VALUES", 90)
    table = table_of(dtype)
    actual, rows = row_facts(table), table.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    counts, edges = np.histogram(lengths, analysis.BINS)
    np.testing.assert_allclose(actual.edges, edges, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(actual.counts, counts)
    numbers = (actual.least, actual.mean, actual.most, actual.deviation)
    np.testing.assert_allclose(
        numbers, (lengths.min(), lengths.mean(), lengths.max(), lengths.std()), rtol=1e-12, atol=1e-12
    )
    assert (actual.zero_rows, actual.zero_ids) == (2, (4, 250))
    assert (actual.duplicate_groups, actual.duplicate_rows) == (2, 6)
    assert actual.duplicate_ids == ((3, 7, 90, 200), (98, 99))
    unit = [row / np.linalg.norm(row) for row in rows if row.any()]
    cosines = [first @ second for first, second in combinations(unit, 2)]
    assert actual.mean_cosine == pytest.approx(np.mean(cosines), abs=1e-12)
    assert actual.mean_length == pytest.approx(np.linalg.norm(rows.mean(axis=0)), rel=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [300, 11])
def test_singular_values_match_lapack(dtype: Any, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "GRAM_VALUES", 100)
    table = table_of(dtype, rows)[:rows] if rows == 300 else table_of(dtype)[:rows]
    actual = spectrum(table)
    expected = np.linalg.svd(table.astype(np.float64), compute_uv=False)
    assert len(actual.singular_values) == min(table.shape)
    above = expected > actual.reliable_above
    np.testing.assert_allclose(np.array(actual.singular_values)[above], expected[above], rtol=1e-6, atol=1e-6)
    assert (np.array(actual.singular_values)[~above] <= actual.reliable_above * 1.01).all()
    shares = expected / expected.sum()
    shares = shares[shares > 0]
    assert actual.effective_rank == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-5)
    energy = np.cumsum(expected**2) / (expected**2).sum()
    assert actual.energy_ranks == {share: int((energy < share).sum()) + 1 for share in analysis.ENERGIES}


def test_effective_rank_of_an_orthogonal_matrix_is_its_rank() -> None:
    """Roy and Vetterli 2007: between 1 and the rank, which equal singular values reach."""
    q, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((40, 8)))
    assert spectrum(q.astype(np.float32)).effective_rank == pytest.approx(8, rel=1e-6)
    assert effective_rank(np.array([5.0, 0.0, 0.0])) == 1
    assert effective_rank(np.array([1.0, 1.0])) == pytest.approx(2)


def test_table_of_zeros_has_no_rank_and_no_direction() -> None:
    zeros = np.zeros((5, 3), np.float32)
    assert (spectrum(zeros).effective_rank, spectrum(zeros).energy_ranks[0.9]) == (0.0, 0)
    actual = row_facts(zeros)
    assert (actual.zero_rows, actual.duplicate_groups, actual.mean_cosine) == (5, 0, None)


def test_huge_values_do_not_overflow() -> None:
    table = (table_of(np.float32) * np.float32(1e36)).astype(np.float32)
    expected = np.linalg.svd(table.astype(np.float64), compute_uv=False)
    assert spectrum(table).singular_values[0] == pytest.approx(expected[0], rel=1e-9)


def test_components_sum_to_the_whole_model(tmp_path: Path) -> None:
    card = export(write_tiny_bert(tmp_path / "x"), tmp_path / "out")
    tensors = tensors_of(tmp_path / "out" / str(card.weights))
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    sizes = {name: tensor.nbytes for name, tensor in tensors.items()}
    parts = components(card.recipe, shapes, sizes, card.hidden_size)
    assert [part.step for part in parts] == [type(step).__name__ for step in card.recipe]
    assert sum(part.flops_per_token for part in parts) == read(tmp_path / "out").flops_per_token["embedding"]
    blocks = components(card.encoder, shapes, sizes, card.hidden_size)
    own = {name for part in parts + blocks for name in part.tensors}
    assert sum(part.bytes for part in parts + blocks) == sum(sizes[name] for name in own)


def test_table_read_twice_counts_once() -> None:
    recipe = (Embed("word"), AddPosition("word"), LayerNorm("w", None, 1e-5))
    parts = components(recipe, {"word": (5, 4), "w": (4,)}, {"word": 80, "w": 16}, 4)
    assert [(part.parameters, part.bytes) for part in parts] == [(20, 80), (0, 0), (4, 16)]


def created(folder: Path, init: str, **options: Any) -> dict[str, Any]:
    create(folder, model_type="roberta", vocab_size=2000, hidden_size=256, init=init, **options)
    return {name: tensor.astype(np.float64) for name, tensor in tensors_of(folder / "model.safetensors").items()}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("init", INITS)
def test_initialisation_has_its_mean_spread_and_padding_rows(init: str, dtype: str, tmp_path: Path) -> None:
    tensors = created(tmp_path / "x", init, dtype=dtype, seed=7)
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
        table = tensors[f"roberta.embeddings.{name}.weight"]
        rows, columns = table.shape
        if name != "token_type_embeddings":  # padding_idx of roberta's two tables, transformers 5.23
            assert not table[1].any()
            table = np.delete(table, 1, axis=0)
        limit = np.sqrt(6 / (rows + columns))
        std = {"normal": 0.02, "scaled": columns**-0.5, "xavier_uniform": limit / np.sqrt(3)}[init]
        assert table.std() == pytest.approx(std, rel=5 / np.sqrt(table.size))
        assert abs(table.mean()) < 5 * std / np.sqrt(table.size)
        if init == "xavier_uniform":
            assert (1 - 20 / table.size) * limit * 0.996 < abs(table).max() <= limit * 1.004  # bfloat16 rounds by 1/256
        else:
            assert abs(table).max() > 3 * std
        assert table.any(axis=1).all()
    if init == "scaled":
        squares = (tensors["roberta.embeddings.word_embeddings.weight"] ** 2).sum(axis=1)
        assert squares[squares > 0].mean() == pytest.approx(1, rel=0.01)
    np.testing.assert_array_equal(tensors["roberta.embeddings.LayerNorm.weight"], 1)
    np.testing.assert_array_equal(tensors["roberta.embeddings.LayerNorm.bias"], 0)


def test_seed_determines_the_numbers(tmp_path: Path) -> None:
    key = "roberta.embeddings.word_embeddings.weight"
    first, again, other = (created(tmp_path / str(at), "scaled", seed=seed)[key] for at, seed in enumerate((3, 3, 4)))
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.99


def test_config_records_the_initialisation(tmp_path: Path) -> None:
    created(tmp_path / "x", "normal", std=0.5, seed=9)
    message = json.loads((tmp_path / "x/config.json").read_text())["initialised"]
    assert (message["name"], message["std"], message["seed"]) == ("normal", 0.5, 9)
    assert set(message["padding_rows"].values()) == {1}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"init": "kaiming"}, "one of normal, scaled, xavier_uniform"),
        ({"init": "scaled", "std": 0.1}, "--init normal alone"),
        ({"init": "normal", "std": -1.0}, "a number from 0"),
        ({"init": "normal", "std": float("nan")}, "a number from 0"),
    ],
)
def test_rejects_unknown_initialisation(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=says):
        create(tmp_path / "x", model_type="bert", **options)
    assert not (tmp_path / "x").exists()
