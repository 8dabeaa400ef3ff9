"""Gradients of an input layer against torch's golden numbers and finite differences of the reference."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.errors import BadQuery
from models.families.padding import padding_rows
from models.positions.learned import PositionRule
from models.recipes.extra_inputs import ATTENDED, MASKED
from models.recipes.steps import (
    AddIndexed,
    AddPosition,
    AddSinusoid,
    AddType,
    Attention,
    Embed,
    LayerNorm,
    Linear,
    MaskRows,
    Recipe,
    RMSNorm,
    Round,
    Scale,
    TokenDropout,
)
from models.reference import interpreter as reference
from models.reference.gradient import Packed, backward, sum_by_index
from models.tables import cross_entropy
from models.tables.cross_entropy import IGNORED, Rule, output_side
from tests.golden_cases import case

Arrays = dict[str, NDArray[Any]]
Floats = NDArray[np.float64]
RECIPES: dict[str, Recipe] = {
    "llama": (Embed("word"),),
    "gemma": (Embed("word"), Scale(3.5)),
    "bert": (Embed("word"), AddType("type"), AddPosition("position"), LayerNorm("weight", "bias", 1e-12)),
    "gpt2": (Embed("word"), AddType("word"), AddPosition("position")),
    "marian": (Embed("word"), Scale(2.0), AddSinusoid("marian", 6)),
    "modernbert": (Embed("word"), LayerNorm("weight", None, 1e-5)),
    "albert": (Embed("word"), AddPosition("position"), LayerNorm("weight", "bias", 1e-5), Linear("up", "up_bias")),
    "deberta": (Embed("word"), Linear("down", None), LayerNorm("down_weight", "down_bias", 1e-7), MaskRows()),
    "nanochat": (Embed("word"), RMSNorm(None, 1e-6)),
    "rms": (Embed("word"), RMSNorm("weight", 1e-6), Scale(0.5)),
    "esm": (Embed("word"), TokenDropout(4), AddPosition("position"), LayerNorm("weight", "bias", 1e-5), MaskRows()),
    "layoutlm": (
        Embed("word"),
        AddIndexed("box", "bbox", (0,)),
        AddIndexed("box", "bbox", (3, 1)),
        AddIndexed("task", "task_type_ids"),
        LayerNorm("weight", "bias", 1e-12),
    ),
}


def weights() -> Arrays:
    random = np.random.default_rng(0)
    shapes = {"word": (11, 6), "type": (2, 6), "position": (9, 6), "box": (12, 6), "task": (3, 6)}
    shapes |= {"weight": (6,), "bias": (6,), "up": (8, 6), "up_bias": (8,), "down": (4, 6)}
    shapes |= {"down_weight": (4,), "down_bias": (4,)}
    return {name: random.standard_normal(shape) for name, shape in shapes.items()}


def packed() -> Packed:
    box = np.array([[1, 2, 3, 9], [0, 0, 5, 5], [1, 2, 3, 9], [4, 1, 0, 3], [2, 8, 1, 5], [1, 1, 1, 1]])
    return Packed(
        ids=np.array([3, 1, 3, 4, 10, 0]),
        positions=np.array([0, 1, 2, 3, 0, 1]),
        types=np.array([0, 0, 1, 1, 0, 1]),
        mask=np.array([True, True, True, True, True, False]),
        extras={
            "bbox": box,
            "task_type_ids": np.array([0, -1, 2, 2, 0, -1]),
            MASKED: np.array([1, 1, 1, 1, 0, 0]),
            ATTENDED: np.array([4, 4, 4, 4, 1, 1]),
        },
    )


def output(recipe: Recipe, tensors: Arrays) -> Floats:
    inputs = packed()
    actual = reference.run(recipe, tensors, inputs.ids, inputs.positions, inputs.types, inputs.mask, inputs.extras)
    return actual["input_embeddings"]


def by_differences(recipe: Recipe, tensors: Arrays, name: str, upstream: Floats) -> Floats:
    """d sum(upstream * output) / d tensor, by central differences."""
    actual = np.zeros_like(tensors[name])
    for place in np.ndindex(actual.shape):
        sides = []
        for step in (1e-6, -1e-6):
            moved = tensors[name].copy()
            moved[place] += step
            sides.append((upstream * output(recipe, tensors | {name: moved})).sum())
        actual[place] = (sides[0] - sides[1]) / 2e-6
    return actual


@pytest.mark.parametrize("family", RECIPES)
def test_every_gradient_matches_finite_differences(family: str) -> None:
    recipe, tensors = RECIPES[family], weights()
    upstream = np.random.default_rng(1).standard_normal(output(recipe, tensors).shape)
    tables, parameters = backward(recipe, tensors, packed(), upstream, {})
    for name, sparse in tables.items():
        dense = np.zeros_like(tensors[name])
        dense[sparse.indices] = sparse.rows
        np.testing.assert_allclose(dense, by_differences(recipe, tensors, name, upstream), atol=2e-8)
        assert (np.diff(sparse.indices) > 0).all()
    for name, gradient in parameters.items():
        np.testing.assert_allclose(gradient, by_differences(recipe, tensors, name, upstream), atol=2e-8)
    named = {value for step in recipe for value in (getattr(step, key, None) for key in ("table", "weight", "bias"))}
    assert set(tables) | set(parameters) == named - {None}


def test_rounding_passes_gradients_unchanged() -> None:
    upstream = np.random.default_rng(2).standard_normal((6, 6))
    plain, _ = backward((Embed("word"), Scale(2.0)), weights(), packed(), upstream, {})
    rounded, _ = backward((Embed("word"), Scale(2.0), Round("bfloat16")), weights(), packed(), upstream, {})
    np.testing.assert_array_equal(plain["word"].rows, rounded["word"].rows)


def test_tied_gradient_matches_torch() -> None:
    golden = case("grad_tied").arrays
    table, ids = golden["E"], golden["ids"]
    hidden = np.tanh(table[ids] @ golden["W"])
    side = output_side(table, hidden, golden["targets"])
    assert side.loss == pytest.approx(float(golden["loss"]), abs=1e-12)
    every = side.rows(np.arange(len(table)))
    np.testing.assert_allclose(every, golden["dE_out"], atol=1e-12)
    upstream = side.hidden_gradient * (1 - hidden**2) @ golden["W"].T
    padded, _ = backward((Embed("E"),), {"E": table}, Packed(ids, ids), upstream, {"E": 0})
    np.testing.assert_array_equal(padded["E"].indices, golden["sparse_indices"])
    np.testing.assert_allclose(padded["E"].rows, golden["sparse_values"], atol=1e-12)
    bare, _ = backward((Embed("E"),), {"E": table}, Packed(ids, ids), upstream, {})  # dE_tied knows no padding_idx
    every[bare["E"].indices] += bare["E"].rows
    np.testing.assert_allclose(every, golden["dE_tied"], atol=1e-12)


def test_worked_example_of_weight_tying() -> None:
    golden = case("grad_seed004_example2").arrays
    side = output_side(golden["E"], golden["h"][None], np.array([1]))
    np.testing.assert_allclose(side.rows(np.arange(3)), golden["dE_out"], atol=1e-12)
    assert side.loss == pytest.approx(-np.log(golden["p"][1]), abs=1e-12)
    digits = [[0.126, 0.201], [-0.337, -0.539], [0.212, 0.338]]
    np.testing.assert_allclose(side.rows(np.arange(3)), digits, atol=1e-3)


def loss_of(table: Floats, hidden: Floats, targets: NDArray[np.int64], rule: Rule, reduction: str) -> float:
    """The cross-entropy, written out."""
    bias = 0.0 if rule.bias is None else np.asarray(rule.bias[:])
    logits = rule.after * (hidden * rule.before @ table.T + bias)
    logits = logits if rule.cap is None else rule.cap * np.tanh(logits / rule.cap)
    losses = [
        np.log(np.exp(row).sum()) - row[target]
        for row, target in zip(logits, targets, strict=True)
        if target != IGNORED
    ]
    return float(np.mean(losses) if reduction == "mean" else np.sum(losses))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("rule", [Rule(), Rule(0.5, 1.5), Rule(1.0, 2.0, 3.0), Rule(0.7, 1.1, 2.0, np.arange(13.0))])
def test_output_side_matches_finite_differences(rule: Rule, reduction: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "BLOCK_VALUES", 12)  # two or three rows of the table at a time
    random = np.random.default_rng(5)
    table, hidden = random.standard_normal((13, 4)), random.standard_normal((3, 4))
    targets = np.array([12, IGNORED, 0])
    side = output_side(table, hidden, targets, reduction, rule)
    assert side.loss == pytest.approx(loss_of(table, hidden, targets, rule, reduction), abs=1e-12)
    for array, gradient in ((table, side.rows(np.arange(13))), (hidden, side.hidden_gradient)):
        for place in np.ndindex(array.shape):
            value = array[place]
            sides = []
            for step in (1e-6, -1e-6):
                array[place] = value + step
                sides.append(loss_of(table, hidden, targets, rule, reduction))
            array[place] = value
            assert gradient[place] == pytest.approx((sides[0] - sides[1]) / 2e-6, abs=2e-8)


def test_large_logits_do_not_overflow() -> None:
    side = output_side(np.array([[1e4], [-1e4], [1e4]]), np.array([[1.0]]), np.array([0]))
    assert side.loss == pytest.approx(np.log(2), abs=1e-12)
    np.testing.assert_allclose(side.rows(np.arange(3)), [[-0.5], [0.0], [0.5]], atol=1e-12)


def test_rows_with_the_same_index_are_summed() -> None:
    actual = sum_by_index([(np.array([5, 2, 5]), np.array([[1.0], [2.0], [3.0]])), (np.array([2]), np.array([[10.0]]))])
    np.testing.assert_array_equal(actual.indices, [2, 5])
    np.testing.assert_array_equal(actual.rows, [[12.0], [4.0]])


def test_padding_rows_match_transformers() -> None:
    """transformers 5.23: the padding_idx of every nn.Embedding, read from the live modules."""
    recipe: Recipe = (Embed("word"), AddType("type"), AddPosition("position"))
    arange, counted = PositionRule("arange", 0, 9), PositionRule("cumsum_non_pad", 3, 9, 3)
    assert padding_rows("bert", recipe, arange, 3) == {"word": 3}
    assert padding_rows("roberta", recipe, counted, 3) == {"word": 3, "position": 3}
    assert padding_rows("mpnet", recipe, PositionRule("cumsum_non_pad", 1, 9, 1), 3) == {"word": 1, "position": 1}
    assert padding_rows("llama", recipe[:1], arange, None) == {}
    assert padding_rows("gpt2", recipe, arange, 3) == padding_rows("t5", recipe[:1], arange, 0) == {}


def test_rejects_step_without_backward() -> None:
    linear = Linear("up", None)
    with pytest.raises(BadQuery, match="the step Attention"):
        backward((Embed("word"), Attention(1, *[linear] * 4)), weights(), packed(), np.ones((6, 6)), {})


def test_rejects_targets_that_are_all_ignored() -> None:
    with pytest.raises(BadQuery, match="every target is -100"):
        output_side(np.ones((2, 2)), np.ones((1, 2)), np.array([IGNORED]))
