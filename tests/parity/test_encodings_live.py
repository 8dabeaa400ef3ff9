"""What a card says of attention and positions, against what transformers' own model of the checkpoint computes with."""

import importlib
import inspect
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position

from models.artifacts.card import Card
from models.artifacts.export import export
from models.checkpoints import safetensors
from models.errors import BadCheckpoint
from models.families import FAMILIES, family_for_side
from models.families.family import Family
from models.positions import alibi, buckets, masks
from models.recipes.positional_encodings import EVERY_LAYER, Buckets, Mask
from tests.parity.conftest import Ledger
from tests.parity.tiny_models import FSMT_NEEDS, TINY, Sample, sample

pytestmark = pytest.mark.parity
SEEDS = range(8)
TOKENS = 19
UNSEEN = -1e4  # what hides a token is below it, the ALiBi that Falcon adds to its mask above
MASK_ARGUMENTS = ("attention_mask", "attn_mask", "mask")
UNRUN = {
    "minicpm3",
    "deepseek_v2",
    "deepseek_v3",
    "helium",
}  # their tiny heads do not fit their rotation: layer 0 alone
_SHARED = "sliding and full layers share one RoPE table"
_RECURRENT = "layers are recurrent, some of them or all"
_BLOCKS = "attention is by blocks, and to some tokens from everywhere"
UNTOLD = {
    **dict.fromkeys(("gpt_neo", "modernbert-decoder", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), _SHARED),
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text", "smollm3", "exaone4", "gemma2", "vaultgemma"), _SHARED),
    **dict.fromkeys(("cohere2", "gpt_oss", "afmoe"), _SHARED),
    "llama4_text": "chunked and full layers share one RoPE table",
    **dict.fromkeys(("minimax", "jamba", "recurrent_gemma", "mamba", "mamba2"), _RECURRENT),
    **dict.fromkeys(("longformer", "big_bird", "led", "longt5"), _BLOCKS),
}
UNROTATED = {  # test_rope_live.py hears which layers of the first, of cohere2, exaone4 and afmoe rotate; of others none
    "smollm3",
    "exaone4",
    "cohere2",
    "llama4_text",
    "minimax",
    "afmoe",
    "recurrent_gemma",
}
UNHEARD = {
    "deberta": "its encoder makes the mask, with the query's padding in it: see its own test",
    "deberta-v2": "its encoder makes the mask, with the query's padding in it: see its own test",
    "layoutlm": "asked for boxes, it is not run by ids and a mask alone: see what its outputs depend on",
    "funnel": "it hands over the row of padding and pools its queries: see what its outputs depend on",
    "xlm": "it has no layers of one module, and the row of padding is its mask: see what its outputs depend on",
    "flaubert": "as xlm",
    "xlnet": "tokens come before the batch, and a token always sees itself: see what its outputs depend on",
    "openai-gpt": "each attention has its own triangle: see what its outputs depend on",
    "fsmt": "it hands over the row of padding: see what its outputs depend on",
    "fsmt decoder": "its caller makes the triangle: see what its outputs depend on",
}
DEPENDS: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in UNHEARD),
    ("xlm", {"causal": True}),
    ("flaubert", {"causal": True}),
    ("xlnet", {"attn_type": "uni"}),
    ("openai-gpt", {"is_causal": False}),
]
Maker = Callable[..., Any]


def row_of(family: str) -> Family:
    return family_for_side(family.split()[0], FAMILIES[family.split()[0]], TINY[family].side)


def module_of(made: Sample) -> Any:
    return importlib.import_module(type(made.model).__module__)


def heard(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, kept: dict[str, Any]) -> None:
    """Keep what a function of transformers returns under its name."""
    function: Maker = getattr(place, name)

    def keep(*arguments: Any, **options: Any) -> Any:
        kept[name] = function(*arguments, **options)
        return kept[name]

    monkeypatch.setattr(place, name, keep)


def run(made: Sample, mask: Any) -> None:
    ids = torch.zeros(mask.shape, dtype=torch.long)
    with torch.no_grad():
        made.model.get_submodule(TINY[made.family].runs)(input_ids=ids, attention_mask=torch.from_numpy(mask))


def padded(seed: int) -> Any:
    """Three rows of a batch: padded at the end, at the front, and not at all."""
    random = np.random.default_rng(seed)
    mask = np.ones((3, TOKENS), np.int64)
    mask[0, random.integers(1, TOKENS) :] = 0
    mask[1, : random.integers(1, TOKENS)] = 0
    return mask


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", [family for family in TINY if family not in UNTOLD | UNHEARD])
def test_mask_equals_the_one_that_the_layers_get(family: str, seed: int, tmp_path: Path) -> None:
    row = row_of(family)
    narrow = {"sliding_window": 2 + seed} if row.window == "sliding_window" else {}
    made = sample(family, seed, tmp_path / "checkpoint", **narrow)
    check_masks(made, card_of(made, tmp_path), seed)


@pytest.mark.parametrize("family", [family for family in TINY if family in UNTOLD])
def test_card_has_no_mask_where_layers_differ_in_it(family: str, tmp_path: Path) -> None:
    assert card_of(sample(family, 1, tmp_path / "checkpoint"), tmp_path).encodings.masks == {}


def test_every_family_without_a_mask_has_its_reason() -> None:
    assert set(UNTOLD) == {family for family in TINY if row_of(family).omits_masks}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("family", "changes"), DEPENDS, ids=str)
def test_outputs_depend_on_the_tokens_that_the_mask_lets_through(
    family: str, changes: dict[str, Any], seed: int, tmp_path: Path
) -> None:
    """Of models that hand no mask over: another token in one place changes the rows that may see it, and no more."""
    made = sample(family, seed, tmp_path / "checkpoint", **changes)
    card = card_of(made, tmp_path)
    assert set(card.encodings.masks) == {EVERY_LAYER}
    for weights in made.model.parameters():
        weights.data *= 0.2  # no softmax is so sharp that a token it lets through counts for nothing
    ids = torch.tensor(np.random.default_rng(seed).integers(6, 30, (1, 9)))
    first = rows_of(made, ids)
    seen = np.zeros((9, 9), bool)
    for key in range(9):
        other = ids.clone()
        other[0, key] = 35 - other[0, key]
        seen[:, key] = np.abs(rows_of(made, other) - first).max(-1) > 0
    mask = masks.tabulate(9, causal=card.encodings.masks[EVERY_LAYER].causal, form="boolean").outputs["mask"]
    np.testing.assert_array_equal(seen, mask.whole()[0, 0])


def rows_of(made: Sample, ids: Any) -> Any:
    inputs: dict[str, Any] = {"input_ids": ids}
    if made.family == "layoutlm":
        inputs["bbox"] = torch.zeros(*ids.shape, 4, dtype=torch.long)
    if made.family == "fsmt decoder":
        inputs["encoder_hidden_states"] = torch.zeros(1, 1, made.model.config.d_model)
        ahead = torch.triu(torch.full((ids.shape[1],) * 2, torch.finfo(torch.float32).min), 1)
        inputs |= dict.fromkeys(FSMT_NEEDS) | {"decoder_causal_mask": ahead}
    with torch.no_grad():
        return made.model.get_submodule(TINY[made.family].runs)(**inputs).last_hidden_state[0].float().numpy()


def card_of(made: Sample, folder: Path) -> Card:
    return export(made.folder, folder / "out", side=TINY[made.family].side)


def check_masks(made: Sample, card: Card, seed: int) -> None:
    mask = padded(seed)
    handed = handed_over(made, mask)
    types = getattr(made.model.config, "layer_types", None)
    masks = card.encodings.masks
    assert set(masks) in ({EVERY_LAYER}, set(types or ()))
    for layer, live_mask in enumerate(handed):
        rules = masks[EVERY_LAYER] if EVERY_LAYER in masks else masks[types[layer]]
        expected = (
            ~live_mask if live_mask.dtype == torch.bool else live_mask > UNSEEN
        ).numpy()  # MPT says what is hidden
        expected, seen = np.broadcast_arrays(expected, allowed(rules, mask))
        assert expected.shape[-2:] == (TOKENS, TOKENS)
        np.testing.assert_array_equal(seen, expected)


class _Heard(Exception):
    """Raised once every observed layer has received its mask."""


def handed_over(made: Sample, mask: Any) -> list[Any]:
    """The mask that each layer is called with, of UNRUN's the first layer's alone."""
    blocks = list(made.model.get_submodule(TINY[made.family].blocks))
    kept: list[Any] = []

    def keep(block: Any, positional: Any, named: Any) -> None:
        bound = inspect.signature(block.forward).bind(*positional, **named).arguments
        kept.append(next(bound[name] for name in MASK_ARGUMENTS if name in bound))
        if made.family in UNRUN:
            raise _Heard

    hooks = [block.register_forward_pre_hook(keep, with_kwargs=True) for block in blocks]
    with suppress(_Heard):
        run(made, mask)
    for hook in hooks:
        hook.remove()
    assert kept
    assert made.family in UNRUN or len(kept) >= len(blocks)  # ALBERT calls one block again and again
    return kept


def allowed(rules: Mask, mask: Any) -> Any:
    """[B, 1, S, S]; a query of padding at the front sees nothing in a causal mask, as in transformers."""
    own = {"causal": rules.causal, "window": rules.window, "chunk": rules.chunk}
    return masks.tabulate(TOKENS, attention_mask=mask, form="boolean", **own).outputs["mask"].whole()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "camembert"])
def test_bert_with_is_decoder_is_causal(family: str, seed: int, tmp_path: Path) -> None:
    made = sample(family, seed, tmp_path / "checkpoint", is_decoder=True)
    card = export(made.folder, tmp_path / "out")
    check_masks(made, card, seed)
    assert card.encodings.masks == {EVERY_LAYER: Mask(True)}


@pytest.mark.parametrize(
    "family", [family for family in TINY if row_of(family).causal is True and family not in UNTOLD | UNHEARD]
)
def test_decoder_with_is_causal_false_is_not_causal(family: str, tmp_path: Path) -> None:
    narrow = {"sliding_window": 5} if row_of(family).window else {}
    made = sample(family, 2, tmp_path / "checkpoint", is_causal=False, **narrow)
    card = card_of(made, tmp_path)
    check_masks(made, card, 2)
    assert not any(mask.causal for mask in card.encodings.masks.values())


BOTH_WAYS: list[tuple[str, dict[str, Any]]] = [
    ("gemma3_text", {"use_bidirectional_attention": True}),
    ("gemma3_text", {"use_bidirectional_attention": True, "is_causal": False}),
    ("gemma4_text", {"use_bidirectional_attention": "all"}),
]


@pytest.mark.parametrize("window", [6, 7])
@pytest.mark.parametrize(("family", "changes"), BOTH_WAYS, ids=str)
def test_a_gemma_that_attends_both_ways_halves_its_window(
    family: str, changes: dict[str, Any], window: int, tmp_path: Path
) -> None:
    made = sample(family, 2, tmp_path / "checkpoint", sliding_window=window, **changes)
    card = card_of(made, tmp_path)
    check_masks(made, card, 2)
    assert not any(mask.causal for mask in card.encodings.masks.values())


@pytest.mark.parametrize("family", ["llama", "bert", "gpt_neox", "falcon"])
def test_card_leaves_out_a_window_the_model_does_not_read(family: str, tmp_path: Path) -> None:
    made = sample(family, 5, tmp_path / "checkpoint", sliding_window=3)
    check_masks(made, card_of(made, tmp_path), 5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", ["deberta", "deberta-v2"])
def test_deberta_mask_matches_where_the_query_is_real(family: str, seed: int, tmp_path: Path) -> None:
    made = sample(family, seed, tmp_path / "checkpoint")
    card = export(made.folder, tmp_path / "out")
    mask = padded(seed)
    expected = made.model.encoder.get_attention_mask(torch.from_numpy(mask)).numpy().astype(bool)
    seen = allowed(card.encodings.masks[EVERY_LAYER], mask)
    np.testing.assert_array_equal(seen & mask[:, None, :, None].astype(bool), expected)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", [family for family, row in FAMILIES.items() if row.rotates and family in TINY])
def test_card_names_the_rope_table_of_every_layer(family: str, seed: int, tmp_path: Path) -> None:
    made = sample(family, seed, tmp_path / "checkpoint")
    config = made.model.config
    encodings = export(made.folder, tmp_path / "out").encodings
    if getattr(config, "alibi", False) or getattr(config, "position_embedding_type", "rotary") == "absolute":
        assert (encodings.ropes, encodings.layers) == ({}, ())
        return
    types, count = getattr(config, "layer_types", None) or [], config.num_hidden_layers
    apart = set(types) & set(getattr(config, "rope_parameters", None) or {})
    assert set(encodings.ropes) == set(encodings.layers) - {None}
    expected = types if apart else [EVERY_LAYER] * count
    assert [name or own for name, own in zip(encodings.layers, expected, strict=True)] == list(expected)
    assert None not in encodings.layers or family in UNROTATED


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", ["bloom", "mpt", "falcon"])
def test_bias_equals_the_one_that_the_model_adds(
    family: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ledger: Ledger
) -> None:
    changes = {"alibi": True} if family == "falcon" else {}
    made = sample(family, seed, tmp_path / "checkpoint", **changes)
    alibi_card = export(made.folder, tmp_path / "out").encodings.alibi
    assert alibi_card is not None
    assert alibi_card.form == family
    kept: dict[str, Any] = {}
    name = "build_mpt_alibi_tensor" if family == "mpt" else "build_alibi_tensor"
    heard(monkeypatch, module_of(made), name, kept)
    mask = padded(seed)
    run(made, mask)
    reads = {} if family == "mpt" else {"attention_mask": mask}
    parameters: Any = {"form": alibi_card.form, "max_bias": alibi_card.max_bias, "query_length": TOKENS, **reads}
    got = alibi.tabulate(alibi_card.heads, **parameters, arithmetic="parity").outputs["bias"].whole()
    expected = kept[name].numpy()[..., -TOKENS:]  # MPT: of max_seq_len, cut by its attention
    assert expected.size == got.size
    difference = np.abs(got - expected.reshape(got.shape))
    relative = float((difference / np.maximum(np.abs(got), 1e-30)).max())
    ledger.check(family, "ALiBi, relative", relative, 2.0**-8 if family == "falcon" else 1e-6)


@pytest.mark.parametrize("max_bias", [4, 16])
def test_mpt_alibi_bias_max_sets_the_slopes(max_bias: int, tmp_path: Path, ledger: Ledger) -> None:
    """Transformers 5.23 has the formula with it, and never hands it over (MPT-7B-StoryWriter says 16)."""
    made = sample("mpt", 1, tmp_path / "checkpoint", attn_config={"alibi_bias_max": max_bias})
    alibi_card = export(made.folder, tmp_path / "out").encodings.alibi
    assert alibi_card is not None
    expected = (
        module_of(made).build_mpt_alibi_tensor(alibi_card.heads, TOKENS, max_bias).numpy()[..., :-1]
    )  # the last is 0
    parameters: Any = {"form": alibi_card.form, "max_bias": alibi_card.max_bias, "query_length": TOKENS}
    got = alibi.tabulate(alibi_card.heads, **parameters, arithmetic="parity").outputs["bias"].whole()[0, ..., :-1]
    ledger.check("mpt", "ALiBi of another max_bias", float(np.abs(got / expected - 1).max()), 1e-6)


@pytest.mark.parametrize("switch", [{"alibi": False}, {"prefix_lm": True}], ids=str)
def test_an_mpt_of_another_attention_is_refused(switch: dict[str, bool], tmp_path: Path) -> None:
    """Transformers 5.23 reads neither and computes what the model was not trained with."""
    made = sample("mpt", 1, tmp_path / "checkpoint", attn_config=switch)
    with pytest.raises(BadCheckpoint, match=f"attn_config.{next(iter(switch))} .*of 'mpt' only"):
        export(made.folder, tmp_path / "out")


def exported(made: Sample, folder: Path) -> tuple[Buckets | None, Any]:
    card = export(made.folder, folder)
    return card.encodings.buckets, safetensors.tensors_of(folder / str(card.weights))


@pytest.mark.parametrize("seed", range(16))
def test_t5_bias_equals_that_of_the_first_block(seed: int, tmp_path: Path, ledger: Ledger) -> None:
    made = sample("t5", seed, tmp_path / "checkpoint")
    row, tensors = exported(made, tmp_path / "out")
    assert row is not None
    assert row.table is not None
    attention = made.model.encoder.block[0].layer[0].SelfAttention
    for queries, keys in ((1, 1), (40, 40), (7, 300), (300, 300)):
        with torch.no_grad():
            expected = attention.compute_bias(queries, keys).numpy()
        own: Any = {"num_buckets": row.buckets, "max_distance": row.reach, "bidirectional": row.bidirectional}
        own |= {"weights": tensors[row.table], "arithmetic": "parity"}
        got = buckets.tabulate_t5(queries, keys, **own).outputs["bias"].whole()
        assert got.shape == expected.shape
        ledger.check("t5", "bias", float(np.abs(got - expected).max()), 0.0)


@pytest.mark.parametrize("seed", range(24))
def test_deberta_relative_vectors_equal_those_of_its_layers(seed: int, tmp_path: Path, ledger: Ledger) -> None:
    made = sample("deberta-v2", seed, tmp_path / "checkpoint")
    row, tensors = exported(made, tmp_path / "out")
    encoder = made.model.encoder
    assert (row is not None) == encoder.relative_attention
    if row is None:
        return
    with torch.no_grad():
        expected = encoder.get_rel_embedding().numpy()
    assert (row.norm is not None) == ("layer_norm" in encoder.norm_rel_ebd)
    own: Any = {"position_buckets": row.buckets, "max_relative_positions": row.reach, "weights": tensors[row.table]}
    if row.norm:
        own |= {"norm": tuple(tensors[name] for name in row.norm[:2]), "norm_eps": row.norm[2]}
    table = buckets.tabulate_deberta(60, **own, arithmetic="parity")
    got = table.outputs["rel_embeddings"].whole()
    assert got.shape == expected.shape
    worst = float(np.abs(got - expected).max() / max(1.0, np.abs(expected).max()))
    ledger.check("deberta-v2", "rel_embeddings", worst, 1e-6)
    assert table.facts["span"] == encoder.layer[0].attention.self.pos_ebd_size
    sizes = {"bucket_size": encoder.position_buckets, "max_position": encoder.max_relative_positions}
    rows = torch.zeros(1, 60, 1)
    expected_buckets = build_relative_position(rows, rows, **sizes)[0].numpy()
    np.testing.assert_array_equal(table.outputs["bucket"].whole(), expected_buckets)
