"""Recipes as JSON, as cards hold them; cards of earlier versions too."""

import json
from dataclasses import fields, replace
from typing import Any, get_args

import pytest

from models.recipes.steps import (
    Adapter,
    AddIndexed,
    AddPosition,
    AddSinusoid,
    AddType,
    Attention,
    Collect,
    Convolution,
    ConvolvedInput,
    Decode,
    Disentangled,
    DistanceBias,
    Embed,
    Experts,
    FeedForward,
    HeadNorms,
    LatentAttention,
    LayerNorm,
    Linear,
    MaskRows,
    Multiply,
    Parallel,
    PerLayerInput,
    PlaceImages,
    Recipe,
    RMSNorm,
    Round,
    Scale,
    ScoreBias,
    ShortConvolution,
    Step,
    TokenDropout,
    layers,
    tensors,
)
from models.recipes.typed_json import from_json, to_json
from tests.block_recipes import CASES, made

NORM, RMS, LINEAR = LayerNorm("n.weight", "n.bias", 1e-5), RMSNorm("r", 1e-6, 1.0), Linear("l.weight", None)
FULL = Attention(
    4,
    Linear("q", "qb"),
    LINEAR,
    LINEAR,
    LINEAR,
    NORM,
    ScoreBias("b", 32, 128),
    2,
    8,
    0.25,
    "full_attention",
    RMS,
    RMS,
    NORM,
    "heads",
    7,
    0,
    50.0,
    RMS,
    0.22,
    NORM,
)
GATED = FeedForward(LINEAR, LINEAR, "silu", RMS, LINEAR, RMS, 0.5)
EXPERT = FeedForward(LINEAR, LINEAR, "silu", gate=Linear("g", None))
MIXED = Experts(LINEAR, (EXPERT, EXPERT), 1, 8, "all", 0.1, "eb", EXPERT, 16, Linear("s", None), RMS, RMS, 0.5)
EVERY: tuple[Step, ...] = (
    Embed("t"),
    Embed("t", Adapter("a", "b", 5, 4, 0.25)),
    AddType("t"),
    AddPosition("p"),
    AddSinusoid("marian", 16, 1),
    AddIndexed("x", "bbox", (3, 1)),
    TokenDropout(5),
    MaskRows(),
    Collect(0.3, last=True),
    Scale(0.5, outside=True),
    Round("bfloat16"),
    NORM,
    RMS,
    LINEAR,
    FULL,
    replace(FULL, bias=DistanceBias((0.5, 0.25))),
    replace(FULL, bias=Disentangled("rel", NORM, LINEAR, None, 256, 512)),
    GATED,
    MIXED,
    LatentAttention(LINEAR, LINEAR, LINEAR, LINEAR, NORM, "latents", NORM, 2, 8, 5),
    Decode((Embed("t"), Scale(2.0), AddPosition("p"), NORM), 2),
    ShortConvolution(RMS, LINEAR, Convolution("c", None, 3, 1, by_channel=True), LINEAR),
    ConvolvedInput(Convolution("c", "cb", 5, 2), "tanh"),
    replace(FULL, query_norm=HeadNorms((NORM, NORM))),
    Multiply("m"),
    PerLayerInput(LINEAR, Linear("s", None), LINEAR, "gelu_tanh", RMS, RMS, 8, 0.25),
    Parallel(FULL, GATED),
    PlaceImages(1),
)


def returned(recipe: Recipe) -> Recipe:
    """The recipe after a card's road."""
    back: Recipe = from_json(Recipe, json.loads(json.dumps(to_json(Recipe, recipe))))
    return back


@pytest.mark.parametrize("step", EVERY, ids=lambda step: type(step).__name__)
def test_every_step_comes_back_from_json(step: Step) -> None:
    (back,) = returned((step,))
    assert back == step
    assert hash(back) == hash(step)  # tuples stay tuples


@pytest.mark.parametrize("name", CASES)
def test_blocks_come_back_from_json(name: str) -> None:
    blocks, _ = made(name)
    assert returned(blocks) == blocks


def test_every_kind_of_step_and_part_is_here() -> None:
    assert {type(step) for step in EVERY} == set(get_args(Step))
    held = {type(getattr(step, field.name)) for step in EVERY for field in fields(step)}
    assert {LayerNorm, RMSNorm, Linear, Adapter, ScoreBias, DistanceBias, Disentangled, HeadNorms} <= held


def without_kinds(data: Any) -> Any:
    """Steps as cards held them before their parts named their kind."""
    if isinstance(data, dict):
        return {
            key: {name: without_kinds(own) for name, own in value.items() if name != "step"}
            if isinstance(value, dict)
            else value
            for key, value in data.items()
        }
    return data


OLD: tuple[Step, ...] = (  # of the vocabulary of that time
    Attention(4, Linear("q", "qb"), LINEAR, LINEAR, LINEAR, NORM, ScoreBias("b", 32, 128)),
    Attention(4, LINEAR, LINEAR, LINEAR, LINEAR),
    FeedForward(LINEAR, Linear("d", "db"), "gelu", NORM),
    NORM,
)
NEW = {
    "Attention": {field.name for field in fields(Attention)[7:]},
    "FeedForward": {"gate", "closing", "factor"},
}


def test_cards_that_do_not_name_kinds_of_parts_are_read() -> None:
    data = [
        {key: value for key, value in without_kinds(own).items() if key not in NEW.get(own["step"], ())}
        for own in to_json(Recipe, OLD)
    ]
    assert '"step": "Linear"' not in json.dumps(data)
    assert "key_heads" not in json.dumps(data)
    assert from_json(Recipe, data) == OLD


@pytest.mark.parametrize(
    "data", [[{"step": "Unknown"}], [{"heads": 4}], [{"step": "Embed"}], [{"step": "Embed", "table": "t", "more": 1}]]
)
def test_what_is_no_recipe_is_refused(data: list[dict[str, Any]]) -> None:
    with pytest.raises((KeyError, TypeError)):
        from_json(Recipe, data)


def test_tensors_of_parts_are_named_once() -> None:
    assert tensors((Parallel(FULL, GATED),)) == ("q", "qb", "l.weight", "n.weight", "n.bias", "b", "r")
    assert tensors((MIXED,)) == ("eb", "l.weight", "g", "s", "r")
    assert list(layers((Embed("t"), Parallel(FULL, GATED), GATED, MIXED))) == [FULL, GATED, GATED, MIXED]
