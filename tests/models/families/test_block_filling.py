"""What the blocks of a config attend to, and which of them have experts."""

from typing import Any

import pytest

from models.errors import BadCheckpoint
from models.families import config_of, family_of
from models.families.block_filling import block_steps, uncomputed, with_layer_mean
from models.families.encoding_fitting import fit_encodings
from models.recipes.steps import Attention, Collect, DistanceBias, Experts, Recipe, layers

# The types that ModernBERT's config class gives the layers where config.json lists none (transformers 5.23).
WINDOWS = {
    "one layer": ({"num_hidden_layers": 1}, [None]),
    "every layer full": ({"num_hidden_layers": 3, "global_attn_every_n_layers": 1}, [None, None, None]),
    "every third full": ({"num_hidden_layers": 4, "global_attn_every_n_layers": 3}, [None, 64, 64, None]),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_only_sliding_layers_of_modernbert_have_a_window(name: str) -> None:
    keys, windows = WINDOWS[name]
    data: dict[str, Any] = {"model_type": "modernbert", **keys}
    family, config = family_of("modernbert"), config_of("modernbert", data)
    steps = block_steps(family, config, fit_encodings(family, config, "modernbert"))
    assert [step.right for step in layers(steps) if isinstance(step, Attention)] == windows


def test_a_mean_of_layers_needs_a_weight_for_each() -> None:
    data: dict[str, Any] = {"model_type": "bert", "num_hidden_layers": 2}
    family, config = family_of("bert"), config_of("bert", data)
    steps = block_steps(family, config, fit_encodings(family, config, "bert"))
    mixed = with_layer_mean(family, steps, 1, (0.25, 0.75))
    assert [step for step in mixed if isinstance(step, Collect)] == [Collect(0.25), Collect(0.75, True)]
    assert tuple(step for step in mixed if not isinstance(step, Collect)) == steps
    assert mixed.index(Collect(0.25)) == len(family.block)
    with pytest.raises(BadCheckpoint, match=r"weigh 2 layers from layer 2 on .* the model has 2"):
        with_layer_mean(family, steps, 2, (0.25, 0.75))
    with pytest.raises(BadCheckpoint, match="not computed of a text tower"):
        with_layer_mean(family_of("clip_text_model"), steps, 1, (0.25, 0.75))
    with pytest.raises(BadCheckpoint, match="projects its last layer's rows"):
        with_layer_mean(family_of("embedding_gemma2_text"), steps, 1, (0.25, 0.75))


def filled(data: dict[str, Any]) -> Recipe:
    kind = data["model_type"]
    family, config = family_of(kind), config_of(kind, data)
    return block_steps(family, config, fit_encodings(family, config, kind))


QWEN = {"model_type": "qwen3_moe", "num_hidden_layers": 4, "num_experts": 3, "num_experts_per_tok": 2}
# Layers with experts, by transformers 5.23's Qwen3MoeDecoderLayer.
MIXED_LAYERS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "all": ({}, [0, 1, 2, 3]),
    "every other": ({"decoder_sparse_step": 2}, [1, 3]),
    "not those that are listed": ({"mlp_only_layers": [0, 2]}, [1, 3]),
    "none": ({"num_experts": 0}, []),
}


@pytest.mark.parametrize("name", MIXED_LAYERS)
def test_the_config_says_which_layers_have_experts(name: str) -> None:
    changes, mixed = MIXED_LAYERS[name]
    steps = filled(QWEN | changes)[1::2]
    assert [layer for layer, step in enumerate(steps) if isinstance(step, Experts)] == mixed


@pytest.mark.parametrize(("normalized", "weights"), [(True, "own"), (False, "all"), (None, "all")])
def test_the_config_says_what_the_weights_of_experts_are(normalized: bool | None, weights: str) -> None:
    first = filled(QWEN | ({} if normalized is None else {"norm_topk_prob": normalized}))[1]
    assert isinstance(first, Experts)
    assert (first.weights, len(first.experts), first.chosen, first.inner) == (weights, 3, 2, 768)
    assert first.experts[2].up.weight == "layers.0.mlp.experts.2.up_proj.weight"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"num_experts_per_tok": 4}, "says num_experts_per_tok 4; of 3 experts it must be 1 to 3"),
        ({"num_experts": -1}, "num_local_experts -1; it must be a whole number from 0"),
        ({"mlp_only_layers": 3}, "mlp_only_layers 3; it must be a list of layers"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step 0"),
    ],
)
def test_rejects_experts_that_do_not_fit_one_another(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(BadCheckpoint, match=fault):
        filled(QWEN | changes)


def test_phimoe_with_factors_by_length_is_not_computed() -> None:
    """Its LongRoPE multiplies cos and sin by short_mscale or long_mscale."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "short_mscale": 1.1, "long_mscale": 1.3}
    ropes = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64, **factors}
    data = {"model_type": "phimoe", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1}
    family, reasons = family_of("phimoe"), []
    for more in ({}, {"rope_parameters": ropes}):
        config = config_of("phimoe", data | more)
        reasons.append(uncomputed("phimoe", family, config, fit_encodings(family, config, "phimoe")))
    assert reasons[0] is None
    assert "short_mscale" in str(reasons[1])


def test_gpt_neo_repeats_patterns_of_layers() -> None:
    data = {"model_type": "gpt_neo", "num_layers": 4, "attention_types": [[["global", "local"], 1], [["local"], 2]]}
    steps = [step for step in filled(data | {"window_size": 7}) if isinstance(step, Attention)]
    assert [step.left for step in steps] == [None, 6, 6, 6]


@pytest.mark.parametrize("listed", [3, [["global", 2]], [[["near"], 2]]])
def test_rejects_other_patterns_of_layers(listed: Any) -> None:
    with pytest.raises(BadCheckpoint, match="it must be a list of pairs"):
        filled({"model_type": "gpt_neo", "num_layers": 2, "attention_types": listed})


def test_a_token_of_modernberts_decoder_sees_half_the_window() -> None:
    steps = filled({"model_type": "modernbert-decoder", "num_hidden_layers": 2, "local_attention": 10})
    assert [(step.left, step.right) for step in steps if isinstance(step, Attention)] == [(None, 0), (4, 0)]


def test_hyperclovax_has_norms_behind_where_the_config_says_so() -> None:
    data = {"model_type": "hyperclovax", "num_hidden_layers": 1}
    for switch in (True, False):
        steps = filled(data | {"use_post_norm": switch})[:2]
        assert [getattr(step, "closing", None) is not None for step in steps] == [switch, switch]


@pytest.mark.parametrize(
    ("own", "scale", "reason"),
    [
        ({}, 16**-0.5, None),
        ({"softmax_scale": 0.5}, 0.5, None),
        ({"clip_qkv": 6.0}, None, "computed where attn_config.clip_qkv is None; config.json says 6.0"),
        ({"alibi_bias_max": 16}, None, "computed where attn_config.alibi_bias_max is 8; config.json says 16"),
    ],
)
def test_mpt_reads_its_nested_keys(own: dict[str, float], scale: float | None, reason: str | None) -> None:
    data = {"model_type": "mpt", "d_model": 32, "n_heads": 2, "n_layers": 1, "attn_config": own}
    family, config = family_of("mpt"), config_of("mpt", data)
    said = uncomputed("mpt", family, config, fit_encodings(family, config, "mpt"))
    assert said is None if reason is None else reason in str(said)
    if scale is not None:
        attention = filled(data)[0]
        assert isinstance(attention, Attention)
        assert attention.scale == scale
        assert attention.bias == DistanceBias((2**-4, 2**-8))
