"""Positional encodings of a card: read from config.json, kept in card.json, their tables in the weights."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file

from models.artifacts import card as cards
from models.artifacts.card import Card
from models.artifacts.description import describe
from models.artifacts.export import export
from models.artifacts.random_checkpoint import create
from models.errors import BadCard, ModelError
from models.families import FAMILIES
from models.positions import alibi
from models.positions.rope.config import LayerRope, read
from models.positions.rope.conventions import CONVENTIONS, NO_ROPE
from models.positions.rope.frequencies import Rope
from models.positions.rope.presets import PRESETS
from models.positions.rope.rotation import LAYOUTS
from models.recipes.positional_encodings import EVERY_LAYER, Alibi, Buckets, Encodings, Mask, RopeTable
from models.recipes.typed_json import from_json
from service.cli.main import main
from service.protocols.inlay.positions.schemes import available
from tests.golden_cases import case, write_checkpoint, write_folder
from tests.sweeps import sampled

BIAS = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
NORM = ("deberta.encoder.LayerNorm.weight", "deberta.encoder.LayerNorm.bias")


def changed(name: str, folder: Path, more: dict[str, NDArray[Any]] | None = None, **config: Any) -> Path:
    """Write a golden checkpoint with a changed config.json and more tensors."""
    golden = case(name)
    return write_folder(folder, golden.config | config, golden.weights | (more or {}))


def exported(name: str, folder: Path, more: dict[str, NDArray[Any]] | None = None, **config: Any) -> Card:
    return export(changed(name, folder / "checkpoint", more, **config), folder / "out")


# ---- the card keeps them ----


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Card]:
    folder = tmp_path_factory.mktemp("card")
    return folder / "out", export(write_checkpoint(case("input_mpt"), folder / "checkpoint"), folder / "out")


def kept(bare: tuple[Path, Card], encodings: Encodings) -> Encodings:
    """Return encodings after a round trip through card.json."""
    folder, card = bare
    cards.write(replace(card, encodings=encodings), folder)
    return cards.read(folder).encodings


FACTS = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(1, 1 << 30)
NAMES = st.text("abc_", min_size=1, max_size=9)
LONG = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0], "original_max_position_embeddings": 64}
LISTED: list[LayerRope] = [
    *(table for preset in PRESETS.values() for table in read(preset.config).tables.values()),
    LayerRope(Rope.of(1e4, 4, "longrope", LONG, head_dim=8, max_position_embeddings=128), "half", None, None),
]
ROPES = st.builds(
    RopeTable,
    rope=st.sampled_from([layer.rope for layer in LISTED]),
    layout=st.sampled_from(list(LAYOUTS)),
    sections=st.none() | st.tuples(COUNTS, COUNTS, COUNTS),
    axes=st.none() | st.just("chunked"),
    softmax_scale=FACTS,
    attention_factor=FACTS,
    inverse_frequency=st.lists(FACTS, max_size=4).map(tuple),
    notes=st.lists(st.text(), max_size=2).map(tuple),
    graph=NAMES,
)
BUCKETS = st.builds(
    Buckets,
    kind=st.sampled_from(["t5", "deberta"]),
    buckets=st.integers(-1, 1 << 16),
    reach=COUNTS,
    bidirectional=st.booleans(),
    table=st.none() | NAMES,
    norm=st.none() | st.tuples(NAMES, NAMES, FACTS),
)
EVERYTHING = st.builds(
    Encodings,
    ropes=st.dictionaries(NAMES, ROPES, max_size=3),
    layers=st.lists(st.none() | NAMES, max_size=5).map(tuple),
    alibi=st.none() | st.builds(Alibi, form=st.sampled_from(list(alibi.FORMS)), heads=COUNTS, max_bias=FACTS),
    buckets=st.none() | BUCKETS,
    masks=st.dictionaries(NAMES, st.builds(Mask, causal=st.booleans(), window=st.none() | COUNTS, chunk=st.none())),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(encodings=EVERYTHING)
def test_encodings_survive_card(bare: tuple[Path, Card], encodings: Encodings) -> None:
    assert kept(bare, encodings) == encodings


def test_ropes_survive_card_and_are_hashable(bare: tuple[Path, Card]) -> None:
    """Lists of longrope and M-RoPE become lists in JSON; a Rope is a key of caches and needs tuples."""
    tables = {
        f"{number}": RopeTable(each.rope, each.layout, each.sections, each.axes, 1.0, 1.0, (), (), "rope")
        for number, each in enumerate(LISTED)
    }
    back = kept(bare, Encodings(tables)).ropes
    assert back == tables
    assert [hash(table.rope) for table in back.values()] == [hash(table.rope) for table in tables.values()]
    assert {table.rope.rope_type for table in back.values()} >= {"default", "linear", "llama3", "longrope", "yarn"}


def test_encodings_json_is_asdict() -> None:
    buckets = Buckets("deberta", 32, 128, True, "x", ("w", "b", 1e-7))
    encodings = Encodings({}, ("all", None), Alibi("bloom", 8, 8.0), buckets, {"all": Mask(False, 4)})
    assert from_json(Encodings, json.loads(json.dumps(asdict(encodings)))) == encodings


@pytest.mark.parametrize("change", [{"encodings": 5}, {"hidden_width": 8}, {"recipe": [{"step": "Unknown"}]}])
def test_rejects_card_with_values_of_other_kinds(change: dict[str, Any], bare: tuple[Path, Card]) -> None:
    folder, card = bare
    cards.write(card, folder)
    data = json.loads((folder / "card.json").read_text()) | change
    (folder / "card.json").write_text(json.dumps(data))
    with pytest.raises(BadCard, match="export the model again"):
        cards.read(folder)


# ---- the tables they read ----


def random_bits(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> NDArray[Any]:
    """Return finite numbers of every magnitude, with subnormal ones and -0."""
    random = np.random.default_rng(seed)
    values = random.normal(size=shape) * 10.0 ** random.uniform(-6, 4, shape)
    table = values.astype(dtype)
    table.flat[:3] = (-0.0, ml_dtypes.finfo(dtype).smallest_subnormal, ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    return table


def test_t5_bias_table_is_copied_bit_for_bit(tmp_path: Path) -> None:
    table = random_bits((32, 4), np.float32)
    card = exported("input_t5_encoder", tmp_path, {BIAS: table})
    assert card.encodings.buckets == Buckets("t5", 32, 128, True, BIAS)
    assert load_file(tmp_path / "out/weights.safetensors")[BIAS].tobytes() == table.tobytes()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_bias_table_is_widened_exactly(dtype: Any, tmp_path: Path) -> None:
    table = random_bits((32, 4), dtype)
    exported("input_t5_encoder", tmp_path, {BIAS: table})
    bias = load_file(tmp_path / "out/weights.safetensors")[BIAS]
    assert bias.dtype == np.float32
    assert bias.astype(dtype).tobytes() == table.tobytes()
    np.testing.assert_array_equal(bias.astype(np.float64), table.astype(np.float64))


def test_deberta_relative_vectors_and_norm_are_copied(tmp_path: Path) -> None:
    more = {"deberta.encoder.rel_embeddings.weight": random_bits((16, 32), np.float32)}
    more |= {name: random_bits((32,), np.float32, seed=1) for name in NORM}
    buckets = exported("input_deberta_v2_rel_only", tmp_path, more).encodings.buckets
    assert buckets == Buckets("deberta", 8, 40, True, "deberta.encoder.rel_embeddings.weight", (*NORM, 1e-7))
    written = load_file(tmp_path / "out/weights.safetensors")
    assert {name: written[name].tobytes() for name in more} == {name: more[name].tobytes() for name in more}


@pytest.mark.parametrize("name", ["input_t5_encoder", "input_deberta_v2_rel_only"])
def test_input_layer_file_has_buckets_without_table(name: str, tmp_path: Path) -> None:
    encodings = exported(name, tmp_path).encodings
    assert encodings.buckets is not None
    assert (encodings.buckets.table, encodings.buckets.norm, encodings.tables) == (None, None, ())
    assert "their table not in the checkpoint" in describe(str(tmp_path / "out"))


@pytest.mark.parametrize(("rows", "heads"), [(31, 4), (32, 5)])
def test_bias_table_of_wrong_size_costs_the_table_alone(rows: int, heads: int, tmp_path: Path) -> None:
    card = exported("input_t5_encoder", tmp_path, {BIAS: np.zeros((rows, heads), np.float32)})
    assert f"has shape [{rows}, {heads}], but config.json makes it [32, 4]" in card.encodings.refused["t5"]
    assert card.encodings.buckets is None
    assert "input_embeddings" in card.outputs


def test_deberta_vectors_without_norm_cost_the_table_alone(tmp_path: Path) -> None:
    vectors = {"deberta.encoder.rel_embeddings.weight": np.zeros((16, 32), "f4")}
    card = exported("input_deberta_v2_rel_only", tmp_path, vectors)
    assert "no tensor 'deberta.encoder.LayerNorm.weight'" in card.encodings.refused["deberta"]
    assert "input_embeddings" in card.outputs


def test_t5_heads_need_not_divide_width(tmp_path: Path) -> None:
    """T5 v1.1 small: 6 heads of 64 and vectors of 512."""
    table = random_bits((32, 6), np.float32)
    buckets = exported("input_t5_encoder", tmp_path, {BIAS: table}, num_heads=6).encodings.buckets
    assert buckets is not None
    assert buckets.table == BIAS


@pytest.mark.parametrize("name", ["input_t5_encoder", "input_marian_encoder"])
def test_encoder_own_word_table_is_preferred(name: str, tmp_path: Path) -> None:
    """As transformers 5.23 reads them: it ties the two only where they are equal."""
    golden = case(name)
    (shared,) = [tensor for tensor in golden.weights if tensor.endswith("shared.weight")]
    own = shared.replace("shared.weight", "encoder.embed_tokens.weight")
    more = {own: -golden.weights[shared]}
    both = exported(name, tmp_path / "both", more)
    alone = export(write_folder(tmp_path / "x", golden.config, more), tmp_path / "alone")
    assert both.recipe == alone.recipe
    assert both.recipe[0].table == own  # type: ignore[union-attr]
    np.testing.assert_array_equal(load_file(tmp_path / "both/out/weights.safetensors")[own], more[own])


# ---- what a family and its config make of them ----


def test_families_rotate_iff_conventions_say_so() -> None:
    rotating = {name for name, row in FAMILIES.items() if row.rotates}
    assert rotating == set(FAMILIES) & set(CONVENTIONS)
    assert not rotating & set(NO_ROPE)


@pytest.mark.parametrize("family", [name for name, row in FAMILIES.items() if not row.rotates])
def test_family_without_rope_has_no_ropes(family: str, tmp_path: Path) -> None:
    create(tmp_path / "x", model_type=family, vocab_size=50, hidden_size=16)
    card = export(tmp_path / "x", tmp_path / "out")
    assert (card.encodings.ropes, card.encodings.layers) == ({}, ())
    assert not any("rope" in name for name in card.graphs)


def test_falcon_has_either_rope_or_alibi(tmp_path: Path) -> None:
    for number, switch in enumerate((True, False, None, "absent")):
        config: dict[str, Any] = {} if switch == "absent" else {"alibi": switch}
        encodings = exported("input_falcon", tmp_path / str(number), **config).encodings
        assert (encodings.alibi is not None) == (switch is True)
        assert bool(encodings.ropes) == bool(encodings.layers) == (switch is not True)
        assert ("rope_cos" in cards.read(tmp_path / str(number) / "out").outputs) == (switch is not True)


def test_each_family_has_its_alibi_form(tmp_path: Path) -> None:
    assert exported("input_bloom", tmp_path / "a", alibi_bias_max=16).encodings.alibi == Alibi("bloom", 4, 8.0)
    assert exported("input_mpt", tmp_path / "b").encodings.alibi == Alibi("mpt", 4, 8.0)
    alibi = exported("input_mpt", tmp_path / "c", attn_config={"alibi": True, "alibi_bias_max": 16}).encodings.alibi
    assert alibi == Alibi("mpt", 4, 16.0)


TYPES = ["full_attention", "sliding_attention"]
MASKS: dict[str, tuple[str, dict[str, Any], dict[str, Mask]]] = {
    "bert": ("input_bert", {}, {EVERY_LAYER: Mask(False)}),
    "a decoder of bert": ("input_bert", {"is_decoder": True}, {EVERY_LAYER: Mask(True)}),
    "llama": ("input_llama", {}, {EVERY_LAYER: Mask(True)}),
    "a llama that looks ahead": ("input_llama", {"is_causal": False}, {EVERY_LAYER: Mask(False)}),
    "a llama with a word it does not read": ("input_llama", {"sliding_window": 4}, {EVERY_LAYER: Mask(True)}),
    "half of local_attention to either side": (
        "input_modernbert",
        {"layer_types": TYPES},
        {"full_attention": Mask(False), "sliding_attention": Mask(False, 4)},
    ),
    "no layer slides": ("input_modernbert", {"layer_types": TYPES[:1] * 2}, {"full_attention": Mask(False)}),
    "every layer slides": ("input_modernbert", {"layer_types": TYPES[1:] * 2}, {"sliding_attention": Mask(False, 4)}),
}


@pytest.mark.parametrize("name", MASKS)
def test_window_applies_to_sliding_layers(name: str, tmp_path: Path) -> None:
    source, config, expected = MASKS[name]
    encodings = exported(source, tmp_path, **config).encodings
    assert encodings.masks == expected
    assert set(encodings.ropes) in (set(), set(expected))


def test_missing_layer_count_is_family_default(tmp_path: Path) -> None:
    """22 of ModernBERT, every third of them full, as its class has it."""
    golden = case("input_modernbert")
    silent = ("num_hidden_layers", "global_attn_every_n_layers")
    config = {key: value for key, value in golden.config.items() if key not in silent}
    encodings = export(write_folder(tmp_path / "x", config, golden.weights), tmp_path / "out").encodings
    assert encodings.layers == tuple("sliding_attention" if layer % 3 else "full_attention" for layer in range(22))
    assert encodings.masks == {"full_attention": Mask(False), "sliding_attention": Mask(False, 4)}


def test_modernbert_norm_bias_follows_config(tmp_path: Path) -> None:
    bias = {"model.embeddings.norm.bias": np.arange(32, dtype=np.float32)}
    card = exported("input_modernbert", tmp_path / "a", bias, norm_bias=True)
    assert card.recipe[-1].bias == "model.embeddings.norm.bias"  # type: ignore[union-attr]
    assert exported("input_modernbert", tmp_path / "b", bias).recipe[-1].bias is None  # type: ignore[union-attr]
    with pytest.raises(ModelError, match=r"no tensor 'model\.embeddings\.norm\.bias'"):
        exported("input_modernbert", tmp_path / "c", norm_bias=True)


@pytest.mark.parametrize("family", sampled(FAMILIES, 5))
def test_random_checkpoint_holds_encoding_tables(family: str, tmp_path: Path) -> None:
    create(tmp_path / "x", model_type=family, vocab_size=50, hidden_size=16)
    config = json.loads((tmp_path / "x/config.json").read_text())
    assert 16 in config.values()
    assert len(set(config) & {"hidden_size", "d_model", "n_embd", "dim", "n_embed", "emb_dim"}) == 1
    card = export(tmp_path / "x", tmp_path / "out")
    row, encodings = FAMILIES[family], card.encodings
    assert bool(encodings.ropes) == (row.rotates is True)  # ESM rotates where its config says so
    assert (encodings.alibi is not None) == (row.alibi is not None and family != "falcon")
    assert (encodings.buckets is not None) == (row.buckets is not None and "deberta" not in family)  # off unless told
    assert encodings.buckets is None or (encodings.buckets.table is not None) == (
        family != "umt5"
    )  # a table in every layer
    assert bool(encodings.masks) != row.omits_masks
    assert set(encodings.tables) <= set(load_file(tmp_path / "out/weights.safetensors"))


SAID: dict[str, tuple[str, dict[str, Any], str]] = {
    "falcon": ("input_falcon", {}, "rope: default, theta 10000, 8 channels, half"),
    "falcon with ALiBi": ("input_falcon", {"alibi": True}, "attention      ALiBi (falcon), 4 heads"),
    "bloom": ("input_bloom", {}, "attention      ALiBi (bloom), 4 heads"),
    "t5": ("input_t5_encoder", {}, "t5 buckets, their table not in the checkpoint"),
    "a partial rope": ("input_gpt_neox", {"rotary_pct": 0.5, "rope_parameters": None}, "4 channels"),
    "two ropes": ("input_modernbert", {}, "rope of sliding_attention: default, theta 10000, 8 channels"),
    "nothing": ("input_bert", {}, "attention      no positions; both ways"),
    "a causal mask": ("input_llama", {}, "half; causal"),
    "windows": (
        "input_modernbert",
        {"layer_types": TYPES},
        "both ways in full_attention; both ways in sliding_attention, window 4 to either side",
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_describe_states_positional_encodings(name: str, tmp_path: Path) -> None:
    source, config, sentence = SAID[name]
    exported(source, tmp_path, **config)
    assert sentence in describe(str(tmp_path / "out"))
    assert sentence.removeprefix("attention      ") in describe(str(tmp_path / "checkpoint"))


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "an MPT without ALiBi": ("input_mpt", {"attn_config": {"alibi": False}}, "attn_config.alibi False; of 'mpt' only"),
    "an MPT with a prefix": ("input_mpt", {"attn_config": {"prefix_lm": True}}, "attn_config.prefix_lm True"),
    "an attn_config that is none": ("input_mpt", {"attn_config": [1]}, r"attn_config \[1\]; it must be an object"),
}
TABLES_REFUSED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "an odd rotary width": (
        "input_llama",
        {"model_type": "recurrent_gemma", "attention_window_size": 8, "num_attention_heads": 16},
        "rope",
        "rotary_dim 1",
    ),
    "a scaling without its factor": (
        "input_falcon",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}},
        "rope",
        "factor",
    ),
    "a scaling of no known name": (
        "input_llama",
        {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}},
        "rope",
        "spiral",
    ),
    "a rope_theta in words": ("input_llama", {"rope_parameters": {"rope_theta": "1e4"}}, "rope", "rope_theta"),
    "an odd count of buckets": ("input_t5_encoder", {"relative_attention_num_buckets": 7}, "t5", "an even number"),
    "a count of buckets in words": (
        "input_t5_encoder",
        {"relative_attention_num_buckets": "32"},
        "t5",
        "_buckets '32'",
    ),
    "buckets that reach nowhere": (
        "input_t5_encoder",
        {"relative_attention_max_distance": 8},
        "t5",
        "max_distance is 8",
    ),
    "a distance of 0": (
        "input_t5_encoder",
        {"relative_attention_max_distance": 0},
        "t5",
        "_max_distance 0; it must be",
    ),
    "position_buckets in words": (
        "input_deberta_v2_rel_only",
        {"position_buckets": "8"},
        "deberta",
        "position_buckets '8'",
    ),
    "a reach within the near buckets": (
        "input_deberta_v2_rel_only",
        {"max_relative_positions": 5},
        "deberta",
        "max_relative_positions is 5",
    ),
    "a max_bias of 0": ("input_mpt", {"attn_config": {"alibi_bias_max": 0}}, "alibi", "alibi_bias_max 0; it must be"),
    "a max_bias in words": ("input_mpt", {"attn_config": {"alibi_bias_max": "8"}}, "alibi", "alibi_bias_max '8'"),
    "heads that do not divide": (
        "input_falcon",
        {"alibi": True, "num_attention_heads": 5},
        "alibi",
        "num_attention_heads 5",
    ),
    "a window of one key": ("input_modernbert", {"local_attention": 1}, "mask", "local_attention 1; it must be"),
    "a window in words": ("input_modernbert", {"local_attention": "8"}, "mask", "local_attention '8'"),
    "a layer of no known type": (
        "input_modernbert",
        {"layer_types": ["full_attention", "odd"]},
        "rope",
        "of type 'odd'",
    ),
    "windows of unknown layers": (
        "input_modernbert",
        {"layer_types": ["full_attention", "odd"]},
        "mask",
        "which layers have a window is not known",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rejects_unsupported_config_in_one_line(name: str, tmp_path: Path) -> None:
    source, config, message = REFUSED[name]
    with pytest.raises(ModelError, match=message) as caught:
        exported(source, tmp_path, **config)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("name", TABLES_REFUSED)
def test_impossible_encodings_cost_the_table_and_not_the_model(name: str, tmp_path: Path) -> None:
    source, config, scheme, reason = TABLES_REFUSED[name]
    card = exported(source, tmp_path, **config)
    assert "input_embeddings" in card.outputs
    assert reason in card.encodings.refused[scheme]
    assert "\n" not in card.encodings.refused[scheme]
    assert scheme not in available(card)
    assert cards.read(tmp_path / "out") == card
    assert f"no {scheme} table: {card.encodings.refused[scheme]}" in describe(str(tmp_path / "out"))


def test_export_warns_of_refused_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = changed("input_t5_encoder", tmp_path / "checkpoint", relative_attention_num_buckets=7)
    assert main(["export", str(folder), str(tmp_path / "out")]) == 0
    assert "warning: out has no t5 table: " in capsys.readouterr().err
