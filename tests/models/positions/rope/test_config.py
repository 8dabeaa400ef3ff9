"""Every form of RoPE in a config.json against transformers' tables, and the errors of invalid ones."""

import re
from typing import Any

import numpy as np
import pytest

from models.errors import BadEncoding, BadScaling
from models.positions.arithmetic import Arithmetic
from models.positions.rope.angles import cos_sin
from models.positions.rope.config import LayerRope, RopeConfig, read
from models.positions.rope.conventions import CONVENTIONS, NO_ROPE, TEXT_TYPES
from models.positions.rope.frequencies import Rope, frequencies
from models.positions.rope.multi_axis import AXES
from models.positions.rope.rotation import LAYOUTS
from tests.golden_cases import Case, case, cases

SIZES = {"hidden_size": 64, "num_attention_heads": 2, "max_position_embeddings": 4096}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
TRAINED = {"original_max_position_embeddings": 1024}
OWNERS = {  # the model_type whose code made a golden case, where it is not Llama's
    "rope_cohere_interleaved_tables": "cohere",
    "rope_gemma4_full_attention": "gemma4_text",
    "rope_gpt_oss_half_width": "gpt_oss",
    "rope_modernbert_sliding_attention": "modernbert",
    "rope_ntk_alpha_hunyuan": "hunyuan_v1_dense",
    "rope_olmo3_nested_truncate_ignored": "olmo3",
    "rope_partial50_phi": "phi",
}


def config(**data: Any) -> dict[str, Any]:
    return SIZES | {"rope_theta": 10000.0} | data


def only(actual: RopeConfig) -> LayerRope:
    assert list(actual.tables) == ["all"]
    return actual.tables["all"]


def golden_layer(golden: Case) -> LayerRope:
    """What `read` makes of the config.json a golden case's model would have."""
    width, layer = golden.params["head_dim"], golden.params.get("layer_type")
    parameters = golden.params["rope_parameters"]
    data = {
        "model_type": OWNERS.get(golden.name, "llama"),
        "hidden_size": width,
        "num_attention_heads": 1,
        "head_dim": width,
        "max_position_embeddings": golden.params["max_position_embeddings"],
        "rope_parameters": {layer: parameters} if layer else parameters,
    }
    return read(data | ({"global_head_dim": width} if layer else {})).tables[layer or "all"]


@pytest.mark.parametrize("arithmetic", ["exact", "parity"])
@pytest.mark.parametrize("golden", cases("rope"), ids=str)
def test_config_gives_the_tables_of_transformers(golden: Case, arithmetic: Arithmetic) -> None:
    rope, arrays = golden_layer(golden).rope, golden.arrays
    lengths = {"inv_freq": tokens(golden), "inv_freq_short": 1, "inv_freq_long": 1 << 20}
    for name in arrays:
        if name.startswith("inv_freq"):
            length = lengths[name] if name in lengths else int(name.removeprefix("inv_freq_seq"))
            actual = frequencies(rope, arithmetic, length)
            np.testing.assert_allclose(actual.inverse_frequency, arrays[name], **golden.tolerance["inv_freq"])
            assert actual.attention_factor == pytest.approx(float(arrays["attention_factor"]), rel=1e-7)
    for ending in ("", "_short"):
        if f"cos{ending}" in arrays:
            compare_tables(golden, rope, arithmetic, ending)


def tokens(golden: Case, ending: str = "") -> int:
    """The length of the sequence a golden table was made with."""
    longest = int(golden.arrays[f"positions{ending}"].max()) + 1
    return longest if ending else int(golden.arrays.get("seq_len_for_cos_sin", longest))


def compare_tables(golden: Case, rope: Rope, arithmetic: Arithmetic, ending: str) -> None:
    """cos and sin within the manifest's formula, att * (3e-7 + 5e-7 * position * inv_freq)."""
    arrays = golden.arrays
    positions = arrays[f"positions{ending}"]
    actual = frequencies(rope, arithmetic, tokens(golden, ending))
    allowed = actual.attention_factor * (3e-7 + 5e-7 * positions[:, None] * actual.inverse_frequency)
    for name, values in zip(("cos", "sin"), cos_sin(actual, positions), strict=True):
        expected = arrays[f"{name}{ending}"]
        step = 2 if golden.name == "rope_cohere_interleaved_tables" else 1
        assert (np.abs(values - expected[:, ::step][:, : values.shape[1]]) <= allowed).all(), name


def test_interleaved_and_half_tables_have_their_layout() -> None:
    assert golden_layer(case("rope_cohere_interleaved_tables")).layout == "interleaved"
    assert golden_layer(case("rope_gpt_oss_half_width")).layout == "half"


_V5 = LLAMA3 | TRAINED | {"rope_theta": 5e5}
SPELLINGS: dict[str, dict[str, Any]] = {
    "version 4": {"rope_theta": 5e5, "rope_scaling": LLAMA3 | TRAINED},
    "version 4 with type": {
        "rope_theta": 5e5,
        "rope_scaling": {"type": "llama3", **{k: v for k, v in LLAMA3.items() if k != "rope_type"}} | TRAINED,
    },
    "theta among the scaling": {"rope_theta": 7.0, "rope_scaling": _V5},
    "the trained length outside": {"rope_theta": 5e5, "rope_scaling": LLAMA3} | TRAINED,
    "the trained length outside wins": {
        "rope_theta": 5e5,
        "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 7},
    }
    | TRAINED,
    "head_dim null": {"head_dim": None, "rope_parameters": _V5},
    "head_dim instead of sizes": {"head_dim": 32, "hidden_size": None, "rope_parameters": _V5},
    "GPT-2's names": {
        "n_embd": 64,
        "n_head": 2,
        "hidden_size": None,
        "num_attention_heads": None,
        "rope_parameters": _V5,
    },
    "kv_channels": {"kv_channels": 32, "hidden_size": 640, "rope_parameters": _V5},
    "nulls": {
        "rope_parameters": _V5 | {"mscale": None, "partial_rotary_factor": None},
        "rope_scaling": None,
        "rope_theta": 3.0,
    },
    "both: rope_scaling counts": {"rope_parameters": {"rope_type": "default"}, "rope_scaling": _V5},
    "in a text_config": {"text_config": SIZES | {"rope_parameters": _V5}, "hidden_size": 12, "rope_theta": 3.0},
    "in a language_config": {"language_config": SIZES | {"rope_theta": 5e5, "rope_scaling": LLAMA3 | TRAINED}},
    "in a thinker's text_config": {"thinker_config": {"text_config": SIZES | {"rope_parameters": _V5}}},
    "integers": {"rope_theta": 500000, "rope_scaling": LLAMA3 | TRAINED | {"factor": 8, "low_freq_factor": 1}},
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_form_of_a_config_gives_the_same_rope(name: str) -> None:
    expected = only(read(config(rope_parameters=_V5))).rope
    parameters = {key: value for key, value in _V5.items() if key not in ("rope_type", "rope_theta")}
    assert expected == Rope.of(5e5, 32, "llama3", parameters, head_dim=32, max_position_embeddings=4096)
    assert only(read(config(**SPELLINGS[name]))).rope == expected


# what a family's own spelling comes down to: rope_type, theta, rotary_dim
FAMILIES: dict[str, tuple[dict[str, Any], tuple[str, float, int]]] = {
    "gpt_neox": ({"rotary_pct": 0.5, "rotary_emb_base": 5000}, ("default", 5000.0, 16)),
    "gpt_neox by default": ({"model_type": "gpt_neox"}, ("default", 10000.0, 8)),
    "gptj": ({"model_type": "gptj", "n_embd": 64, "n_head": 2, "rotary_dim": 16}, ("default", 10000.0, 16)),
    "gptj by default": ({"model_type": "gptj", "hidden_size": 2048}, ("default", 10000.0, 64)),
    "minimax_m2": ({"model_type": "minimax_m2", "head_dim": 128, "rotary_dim": 48}, ("default", 5e6, 48)),
    "nomic": ({"model_type": "nomic_bert", "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0}, ("default", 1e3, 32)),
    "nomic stretched": ({"model_type": "nomic_bert", "rotary_emb_base": 1000, "rotary_scaling_factor": 2},
                        ("dynamic", 1e3, 32)),
    "gte's ntk": ({"model_type": "new", "rope_scaling": {"type": "ntk", "factor": 2.0}}, ("ntk_fixed", 160000.0, 32)),
    "chatglm": ({"model_type": "chatglm", "kv_channels": 128, "rope_ratio": 500}, ("default", 5e6, 64)),
    "deepseek": ({"model_type": "deepseek_v3", "qk_rope_head_dim": 64}, ("default", 10000.0, 64)),
    "minicpm3": ({"model_type": "minicpm3"}, ("default", 10000.0, 32)),
    "mistral4": ({"model_type": "mistral4", "rope_parameters": {"rope_theta": 2e4, "type": "linear", "factor": 2.0}},
                 ("linear", 2e4, 64)),
    "mrope": ({"rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}}, ("default", 10000.0, 32)),
    "su": ({"rope_scaling": LONGROPE | {"type": "su"}}, ("longrope", 10000.0, 32)),
    "phi3 yarn": ({"model_type": "phi3", "rope_scaling": LONGROPE | {"type": "yarn"}}, ("longrope", 10000.0, 32)),
    "hunyuan": ({"model_type": "hunyuan_v1_dense", "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0,
                                                                    "mscale": 1.0, "beta_fast": 32}},
                ("ntk_alpha", 10000.0, 32)),
    "vLLM's alpha": ({"rope_scaling": {"type": "dynamic", "alpha": 2.0}}, ("ntk_alpha", 10000.0, 32)),
    "gpt_oss by default": ({"model_type": "gpt_oss", "head_dim": 64}, ("yarn", 150000.0, 64)),
    "apertus by default": ({"model_type": "apertus"}, ("llama3", 1.2e7, 32)),
    "zamba2's doubled head": ({"model_type": "zamba2", "use_mem_rope": True}, ("default", 10000.0, 64)),
    "qwen3's own head": ({"model_type": "qwen3"}, ("default", 10000.0, 128)),
    "qwen3's null head": ({"model_type": "qwen3", "head_dim": None}, ("default", 10000.0, 32)),
    "a partial llama": ({"model_type": "llama", "partial_rotary_factor": 0.5}, ("default", 10000.0, 32)),
    "a partial scaled llama": ({"model_type": "llama", "partial_rotary_factor": 0.5,
                                "rope_scaling": {"type": "linear", "factor": 2.0}}, ("linear", 10000.0, 16)),
    "a partial nobody": ({"partial_rotary_factor": 0.5, "rope_theta": 1e4}, ("default", 10000.0, 16)),
    "smollm3's theta": ({"model_type": "smollm3"}, ("default", 2e6, 32)),
    "esm rotating": ({"model_type": "esm", "position_embedding_type": "rotary"}, ("default", 10000.0, 32)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_reads_a_familys_own_keys(name: str) -> None:
    data, (rope_type, theta, rotary_dim) = FAMILIES[name]
    rope = only(read(SIZES | data)).rope
    assert (rope.rope_type, rope.theta, rope.rotary_dim) == (rope_type, theta, rotary_dim)


@pytest.mark.parametrize(("keys", "trained"), [({}, 2048), ({"max_trained_positions": 512}, 512)])
def test_nomic_stretches_beyond_its_trained_positions(keys: dict[str, int], trained: int) -> None:
    rope = only(read(SIZES | {"model_type": "nomic_bert", "n_positions": 8192, "rotary_scaling_factor": 2} | keys)).rope
    assert (rope.max_position_embeddings, dict(rope.parameters)) == (trained, {"factor": 2})


def test_missing_trained_length_is_max_position_embeddings() -> None:
    """As transformers 5.23 reads it."""
    actual = read(config(rope_scaling=LLAMA3))
    explicit = read(config(rope_scaling=LLAMA3 | {"original_max_position_embeddings": 4096}))
    assert only(actual).rope == only(explicit).rope
    assert any("max_position_embeddings 4096 stands for it" in note for note in actual.notes)


# Files with a table per layer type: full theta, sliding theta, and the rope_type of the full layers
TYPED: dict[str, tuple[dict[str, Any], tuple[float, float, str]]] = {
    "gemma3 by default": ({"model_type": "gemma3_text"}, (1e6, 1e4, "default")),
    "gemma3 version 4": (
        {
            "model_type": "gemma3_text",
            "rope_theta": 2e6,
            "rope_local_base_freq": 2e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        (2e6, 2e4, "linear"),
    ),
    "gemma3 version 5": (
        {
            "model_type": "gemma3_text",
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
            },
        },
        (2e6, 2e4, "linear"),
    ),
    "gemma3 with type, which transformers does not read there": (
        {"model_type": "gemma3_text", "rope_scaling": {"type": "linear", "factor": 8.0}},
        (1e6, 1e4, "default"),
    ),
    "gemma3's other tower": ({"model_type": "gemma3", "text_config": {"rope_theta": 3e6}}, (3e6, 1e4, "default")),
    "modernbert": (
        {"model_type": "modernbert", "global_rope_theta": 5.0, "local_rope_theta": 4.0},
        (5.0, 4.0, "default"),
    ),
    "olmo3's theta goes to the full layers alone": (
        {
            "model_type": "olmo3",
            "rope_theta": 7e5,
            "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512},
        },
        (7e5, 5e5, "yarn"),
    ),
    "gemma4": ({"model_type": "gemma4_text"}, (1e6, 1e4, "proportional")),
    "a family nobody knows": (
        {
            "model_type": "unheard_of",
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 9.0},
                "sliding_attention": {"rope_theta": 8.0},
            },
        },
        (9.0, 8.0, "linear"),
    ),
}


@pytest.mark.parametrize("name", TYPED)
def test_full_and_sliding_layers_have_separate_tables(name: str) -> None:
    data, (full, sliding, rope_type) = TYPED[name]
    tables = read(SIZES | data).tables
    assert {key: table.rope.theta for key, table in tables.items()} == {
        "full_attention": full,
        "sliding_attention": sliding,
    }
    assert (tables["full_attention"].rope.rope_type, tables["sliding_attention"].rope.rope_type) == (
        rope_type,
        "default",
    )


def test_gemma4_full_layers_have_a_wider_head() -> None:
    actual = read({"model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 512})
    assert {key: table.rope.head_dim for key, table in actual.tables.items()} == {
        "full_attention": 512,
        "sliding_attention": 256,
    }
    saved = read({"model_type": "gemma4_text", "head_dim": 256, "per_layer_config": {"5": {"head_dim": 384}}})
    assert saved.tables["full_attention"].rope.head_dim == 384


S, F = "sliding_attention", "full_attention"
LAYERS: dict[str, tuple[dict[str, Any], tuple[str | None, ...]]] = {
    "every layer": ({"model_type": "llama", "num_hidden_layers": 3}, ("all",) * 3),
    "no number of layers": ({"model_type": "llama"}, ()),
    "gemma3": ({"model_type": "gemma3_text", "num_hidden_layers": 7}, (S, S, S, S, S, F, S)),
    "gemma3 every second": (
        {"model_type": "gemma3_text", "num_hidden_layers": 4, "sliding_window_pattern": 2},
        (S, F, S, F),
    ),
    "gemma4 ends full": ({"model_type": "gemma4_text", "num_hidden_layers": 3}, (S, S, F)),
    "modernbert": ({"model_type": "modernbert", "num_hidden_layers": 5}, (F, S, S, F, S)),
    "layer types written out": ({"model_type": "olmo3", "layer_types": [F, S]}, (F, S)),
    "cohere2 rotates where it slides": ({"model_type": "cohere2", "num_hidden_layers": 4}, ("all", "all", "all", None)),
    "afmoe too": ({"model_type": "afmoe", "num_hidden_layers": 2, "global_attn_every_n_layers": 2}, ("all", None)),
    "exaone4 too": ({"model_type": "exaone4", "num_hidden_layers": 4, "sliding_window": 4096}, ("all",) * 3 + (None,)),
    "exaone4 by letters": (
        {"model_type": "exaone4", "num_hidden_layers": 3, "sliding_window": 4, "sliding_window_pattern": "LG"},
        ("all", None, "all"),
    ),
    "exaone4 without a window": (
        {"model_type": "exaone4", "num_hidden_layers": 4, "sliding_window": None},
        ("all",) * 4,
    ),
    "smollm3": ({"model_type": "smollm3", "num_hidden_layers": 4}, ("all", "all", "all", None)),
    "smollm3 every second": (
        {"model_type": "smollm3", "num_hidden_layers": 4, "no_rope_layer_interval": 2},
        ("all", None, "all", None),
    ),
    "llama4 listed": (
        {"model_type": "llama4_text", "num_hidden_layers": 3, "no_rope_layers": [0, 1, 1]},
        (None, "all", "all"),
    ),
    "llama4 with an empty list": (
        {"model_type": "llama4_text", "num_hidden_layers": 4, "no_rope_layers": []},
        ("all", "all", "all", None),
    ),
    "a list of an unknown family": (
        {"rope_theta": 1e4, "num_hidden_layers": 2, "no_rope_layers": [1, 0]},
        ("all", None),
    ),
    "qwen3_next attends every fourth": (
        {"model_type": "qwen3_next", "num_hidden_layers": 4},
        (None, None, None, "all"),
    ),
    "lfm2": ({"model_type": "lfm2", "num_hidden_layers": 3, "full_attn_idxs": [1]}, (None, "all", None)),
    "mllama": ({"model_type": "mllama_text_model", "num_hidden_layers": 4}, ("all", "all", "all", None)),
    "bamba": ({"model_type": "bamba", "num_hidden_layers": 3, "attn_layer_indices": [2]}, (None, None, "all")),
    "recurrent_gemma": ({"model_type": "recurrent_gemma", "num_hidden_layers": 4}, (None, None, "all", None)),
    "null is no RoPE": (
        {"layer_types": [S, F], "rope_parameters": {S: {"rope_theta": 1e4}, F: None}},
        (S, None),
    ),
    "a text_config leaves its default out": (
        {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "sliding_window_pattern": 26}},
        (S,) * 25 + (F,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_each_layer_has_its_table_or_none(name: str) -> None:
    data, expected = LAYERS[name]
    assert read(SIZES | data).layers == expected


VISION: dict[str, tuple[dict[str, Any], tuple[int, ...], str, str]] = {
    "qwen2_vl": ({"model_type": "qwen2_vl", "head_dim": 128}, (16, 24, 24), "chunked", "half"),
    "qwen2_vl in version 4": (
        {"model_type": "qwen2_vl", "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}},
        (4, 6, 6),
        "chunked",
        "half",
    ),
    "qwen3_vl": ({"model_type": "qwen3_vl_text"}, (24, 20, 20), "interleaved", "half"),
    "qwen3_5": ({"model_type": "qwen3_5_text"}, (11, 11, 10), "interleaved", "half"),
    "ernie": ({"model_type": "ernie4_5_vl_moe_text", "head_dim": 128}, (22, 22, 20), "ernie", "interleaved"),
    "glm4v": (
        {"model_type": "glm4v_text", "rope_parameters": {"rope_theta": 1e4, "mrope_section": [8, 4, 4]}},
        (8, 4, 4),
        "chunked",
        "interleaved",
    ),
    "an unknown family": (
        {"rope_scaling": {"mrope_section": [8, 4, 4], "mrope_interleaved": True, "rope_type": "default"}},
        (8, 4, 4),
        "interleaved",
        "half",
    ),
}


@pytest.mark.parametrize("name", VISION)
def test_mrope_models_give_sections_and_axes(name: str) -> None:
    data, sections, axes, layout = VISION[name]
    actual = only(read(SIZES | data))
    assert (actual.sections, actual.axes, actual.layout) == (sections, axes, layout)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown type": ({"rope_scaling": {"rope_type": "ntk2"}}, "'ntk2' is not one of default, linear, dynamic"),
    "a type that is no text": ({"rope_scaling": {"rope_type": 3}}, "rope_type is 3; it must be one of default"),
    "axial": ({"rope_parameters": {"rope_type": "axial"}}, "rows and columns"),
    "no factor": ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
    "no alpha": ({"rope_scaling": {"type": "ntk_alpha"}}, "alpha is missing"),
    "no trained length": (
        {"max_position_embeddings": None, "rope_scaling": {"type": "yarn", "factor": 2.0}},
        "original_max_position_embeddings is missing",
    ),
    "dynamic without a length": (
        {"max_position_embeddings": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "needs max_position_embeddings",
    ),
    "factor below 1": ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "must be 1 or more"),
    "factor a text": ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor is '2'"),
    "factor true": ({"rope_scaling": {"type": "linear", "factor": True}}, "factor is True"),
    "factor infinite": ({"rope_scaling": {"type": "linear", "factor": float("inf")}}, "factor is inf"),
    "factor an object": ({"rope_scaling": {"type": "linear", "factor": {"a": 1}}}, "factor is {'a': 1}"),
    "lists in lists": (
        {"rope_scaling": {"type": "longrope", "short_factor": [[1.0]], "long_factor": [1.0]}},
        r"short_factor is \[\[1.0\]\]",
    ),
    "lists of the wrong length": (
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 15, "long_factor": [1.0] * 16}},
        "short_factor has 15 numbers; rotary_dim/2 = 16",
    ),
    "a parameter of another type": (
        {"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 32}},
        "no parameter 'beta_fast'; it reads factor",
    ),
    "a factor without a type": ({"rope_scaling": {"factor": 2.0}}, "default RoPE has no parameter 'factor'"),
    "truncate a number": (
        {"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": 1}},
        "truncate is 1; it must be true or false",
    ),
    "theta 1": ({"rope_theta": 1.0}, "rope_theta above 1"),
    "theta negative": ({"rope_theta": -5}, "rope_theta is -5"),
    "theta a text": ({"rope_theta": "10000"}, "rope_theta is '10000'; it must be a number"),
    "an odd head": ({"head_dim": 33}, "even number of rotated channels"),
    "an odd share": ({"partial_rotary_factor": 0.4, "head_dim": 64}, "rotary_dim 25"),
    "nothing rotated": ({"partial_rotary_factor": 0.01}, "even number of rotated channels"),
    "more than the head": ({"partial_rotary_factor": 1.5}, "even number of rotated channels"),
    "rotary_dim above the head": ({"rotary_dim": 34}, "up to|from 2 to the head's 32"),
    "a share that is a text": ({"partial_rotary_factor": "half"}, "partial_rotary_factor is 'half'"),
    "a list": ({"rope_scaling": [2.0]}, "rope_scaling is .2.0.; it must be an object"),
    "a list for a layer type": (
        {"model_type": "gemma3_text", "rope_parameters": {"full_attention": [1], "sliding_attention": {}}},
        "rope_parameters.full_attention is .1.; it must be an object",
    ),
    "one object where two are due": (
        {"model_type": "gemma3_text", "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        "rope_parameters is one object; gemma3_text reads one for each of full_attention, sliding_attention",
    ),
}
REFUSED_SIZES: dict[str, tuple[dict[str, Any], str]] = {
    "heads that do not divide": ({"num_attention_heads": 3}, "3 attention heads do not divide hidden_size 64"),
    "no sizes": ({"hidden_size": None}, "give head_dim, or hidden_size and num_attention_heads"),
    "a size that is a text": ({"hidden_size": "64"}, "hidden_size '64'; it must be a whole number"),
    "a size of 0": ({"head_dim": 0}, "head_dim '0'; it must be a whole number from 1"),
    "a size that is true": ({"max_position_embeddings": True}, "must be a whole number"),
    "bert": ({"model_type": "bert"}, "bert rotates nothing: it has learned positions"),
    "t5": ({"model_type": "t5"}, "t5 rotates nothing: it has relative position buckets"),
    "bloom": ({"model_type": "bloom"}, "bloom rotates nothing: it has ALiBi"),
    "jamba": ({"model_type": "jamba"}, "jamba rotates nothing: it has no positions"),
    "esm with learned positions": ({"model_type": "esm"}, "esm rotates only where position_embedding_type is 'rotary'"),
    "falcon with ALiBi": ({"model_type": "falcon", "alibi": True}, "falcon rotates only where alibi is False"),
    "a granite without": ({"model_type": "granitemoehybrid", "position_embedding_type": "nope"}, "here it is 'nope'"),
    "nothing of RoPE": ({"rope_theta_": 1e4}, "this config has no RoPE key"),
    "a model_type that is no text": ({"model_type": 7}, "model_type is 7"),
    "too few layer types": (
        {"rope_theta": 1e4, "num_hidden_layers": 3, "layer_types": ["full_attention"]},
        "layer_types has 1 entries; num_hidden_layers is 3",
    ),
    "block types that are none": (
        {"model_type": "recurrent_gemma", "num_hidden_layers": 3, "block_types": 7},
        "block_types is 7; it must be a list of texts",
    ),
    "a per_layer_config that is none": (
        {"model_type": "gemma4_text", "per_layer_config": [512]},
        "per_layer_config is [512]; it must be an object",
    ),
    "two widths for one table": (
        {"model_type": "gemma4_text", "per_layer_config": {"1": {"head_dim": 8}, "2": {"head_dim": 16}}},
        "per_layer_config gives head_dim [8, 16]",
    ),
    "layer types that are none": ({"rope_theta": 1e4, "layer_types": "full"}, "must be a list of texts"),
    "a layer type without a table": (
        {"model_type": "olmo3", "layer_types": ["chunked_attention"]},
        "a layer is of type 'chunked_attention'; there are tables for full_attention, sliding_attention",
    ),
    "no_rope_layers of the wrong length": (
        {"model_type": "smollm3", "num_hidden_layers": 3, "no_rope_layers": [1]},
        "must be a list of 3 numbers",
    ),
    "layer numbers that are none": (
        {"model_type": "lfm2", "num_hidden_layers": 3, "full_attn_idxs": "1"},
        "full_attn_idxs is 1; it must be a list of layer numbers",
    ),
    "sections that do not fit": (
        {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
        "must be three whole numbers that sum to rotary_dim/2 = 16",
    ),
    "two sections": ({"rope_scaling": {"type": "mrope", "mrope_section": [8, 8]}}, "three whole numbers"),
    "default sections that do not fit": ({"model_type": "qwen2_vl"}, "mrope_section is missing, and the default is"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rejects_impossible_scaling_by_name(name: str) -> None:
    data, message = REFUSED[name]
    with pytest.raises(BadScaling, match=message):
        read(config(**data))


@pytest.mark.parametrize("name", REFUSED_SIZES)
def test_rejects_config_without_rope_or_with_wrong_sizes(name: str) -> None:
    data, message = REFUSED_SIZES[name]
    with pytest.raises(BadEncoding, match=re.escape(message)):
        read((SIZES if "rope_theta_" in data or "model_type" in data else config()) | data)


def test_rejects_config_that_is_not_an_object() -> None:
    with pytest.raises(BadEncoding, match="it must be an object of keys and values"):
        read([1])  # type: ignore[arg-type]


NOTES: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown family": ({"model_type": "unheard_of", "rope_theta": 1e4}, "model_type 'unheard_of' is not known"),
    "no family": ({"rope_theta": 1e4}, "no model_type: read with the defaults"),
    "a default of the class": ({"model_type": "gemma2"}, "no head_dim: 256, the default of gemma2"),
    "partial that is not read": (
        {"model_type": "llama", "partial_rotary_factor": 0.5},
        "rotates the whole head of llama",
    ),
    "nested truncate": (
        {
            "model_type": "olmo3",
            "rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 8.0, "truncate": False}},
        },
        "truncate false of full_attention is not read",
    ),
    "type beside layer types": (
        {"model_type": "gemma3_text", "rope_scaling": {"type": "linear", "factor": 8.0}},
        "reads rope_type alone, so nothing is scaled here",
    ),
    "both": (
        {
            "model_type": "llama",
            "rope_parameters": {"rope_type": "default"},
            "rope_scaling": {"type": "linear", "factor": 2.0},
        },
        "rope_scaling counts",
    ),
    "a null head": (
        {"model_type": "mixtral", "head_dim": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "head_dim is null",
    ),
    "the trained length outside": (
        {"model_type": "llama", "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 7}} | TRAINED,
        "1024 at the top level counts, not 7",
    ),
    "hunyuan's other parameters": (
        {"model_type": "hunyuan_v1_dense", "rope_scaling": {"type": "dynamic", "alpha": 5.0, "factor": 1.0}},
        "ntk_alpha here does not read factor",
    ),
    "alpha elsewhere": ({"rope_scaling": {"type": "dynamic", "alpha": 5.0}}, "transformers 5.23 reads it for Hunyuan"),
    "phi's mscale": (
        {
            "model_type": "phi3",
            "rope_scaling": LONGROPE | {"short_mscale": 1.2},
        },
        "longrope here does not read short_mscale",
    ),
    "queries scaled besides": (
        {"model_type": "ministral3", "rope_parameters": {"rope_theta": 1e6, "llama_4_scaling_beta": 0.1}},
        "llama_4_scaling_beta also scales queries",
    ),
    "olmo3's sliding theta": ({"model_type": "olmo3", "rope_theta": 7e5}, "to the full_attention table alone"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTES)
def test_notes_name_assumptions_and_ignored_keys(name: str) -> None:
    data, message = NOTES[name]
    actual = read(SIZES | data)
    notes = [*actual.notes, *(note for table in actual.tables.values() for note in table.notes)]
    assert [note for note in notes if message in note], notes


def test_plain_config_of_a_known_family_has_no_notes() -> None:
    actual = read(config(model_type="llama"))
    assert (actual.notes, only(actual).notes) == ((), ())


def test_truncate_is_read_from_the_top_level_only() -> None:
    yarn = {"rope_type": "yarn", "factor": 8.0, "rope_theta": 5e5, "original_max_position_embeddings": 512}
    nested, outside = (
        read({"model_type": "olmo3", "rope_parameters": {"full_attention": yarn | inner} | outer})
        for inner, outer in (({"truncate": False}, {}), ({}, {"truncate": False}))
    )
    assert dict(nested.tables["full_attention"].rope.parameters).get("truncate") is None
    assert dict(outside.tables["full_attention"].rope.parameters)["truncate"] is False


@pytest.mark.parametrize(("rope_interleave", "layout"), [(True, "interleave_in_half_out"), (False, "half")])
def test_deepseek_interleaving_can_be_disabled(rope_interleave: bool, layout: str) -> None:
    assert only(read({"model_type": "deepseek_v3", "rope_interleave": rope_interleave})).layout == layout


def test_deepseek_softmax_scale_is_not_in_cos_and_sin() -> None:
    """DeepSeek-V3 multiplies its scores by (0.1 ln 40 + 1)^2 = 1.873854; cos and sin by 1."""
    yarn = {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0} | TRAINED
    actual = only(read({"model_type": "deepseek_v3", "rope_theta": 10000, "rope_scaling": yarn}))
    assert actual.softmax_scale == pytest.approx(1.873854, abs=5e-7)
    assert frequencies(actual.rope).attention_factor == 1.0
    assert any("= 1.87385" in note for note in actual.notes)
    assert only(read(config(rope_scaling=yarn))).softmax_scale == 1.0


def test_conventions_name_existing_layouts_axes_and_types() -> None:
    for name, row in CONVENTIONS.items():
        assert row.layout in LAYOUTS, name
        assert row.axes is None or row.axes in AXES, name
        assert (row.axes is None) == (row.sections is None), name
        assert set(row.scaled) | set(row.thetas) | set(row.heads) <= set(row.tables), name
        assert set(row.table_of.values()) <= set(row.tables), name
    assert set(TEXT_TYPES.values()) <= set(CONVENTIONS)
    assert not set(NO_ROPE) & set(CONVENTIONS)


WITHOUT_DEFAULTS = {  # rows of published code, and classes whose own defaults do not fit together
    name for name, row in CONVENTIONS.items() if row.sizes is None
} | {"glm4_moe", "glm4v_moe_text", "glm4v_text", "glm_image_text", "glm_ocr_text",
     "qwen3_omni_moe_talker_text", "qwen3_omni_moe_text"}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(CONVENTIONS) - WITHOUT_DEFAULTS))
def test_every_convention_reads_a_config_with_model_type_only(name: str) -> None:
    row = CONVENTIONS[name]
    said = {row.condition[0]: row.condition[1]} if row.condition else {}
    for table in read({"model_type": name} | said).tables.values():
        assert (frequencies(table.rope, "parity").inverse_frequency >= 0).all()
