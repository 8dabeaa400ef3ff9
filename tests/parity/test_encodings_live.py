"""What a card says of attention and positions, against what transformers' own model of the checkpoint computes with."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import masking_utils
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position

from models.card import Card
from models.encodings import EVERY_LAYER, Buckets, Mask
from models.errors import BadCheckpoint
from models.export import export
from models.families import FAMILIES
from models.positions import alibi, buckets, masks
from models.sources import safetensors
from tests.parity.conftest import Ledger
from tests.parity.tiny_models import TINY, Sample, sample

pytestmark = pytest.mark.parity
SEEDS = range(8)
TOKENS = 19
MAKERS = ("create_causal_mask", "create_bidirectional_mask", "create_bidirectional_sliding_window_mask")
Maker = Callable[..., Any]


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
@pytest.mark.parametrize("family", [family for family in TINY if family != "deberta-v2"])
def test_a_mask_is_the_one_the_model_hands_to_its_layers(
    family: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sample(family, seed, tmp_path / "checkpoint")
    check_masks(made, export(made.folder, tmp_path / "out"), seed, monkeypatch)


def check_masks(made: Sample, card: Card, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module, kept, mask = module_of(made), dict[str, Any](), padded(seed)
    for name in MAKERS:
        if hasattr(module, name):
            heard(monkeypatch, module, name, kept)
    run(made, mask)
    types = getattr(made.model.config, "layer_types", None) or [EVERY_LAYER]
    assert set(card.encodings.masks) == set(types)
    for name, rules in card.encodings.masks.items():
        seen = allowed(rules, mask)
        np.testing.assert_array_equal(seen, made_by(kept, name) == 0)


def made_by(kept: dict[str, Any], layer_type: str) -> Any:
    sliding = "create_bidirectional_sliding_window_mask"
    if "sliding" in layer_type:
        return kept[sliding].numpy()
    (found,) = [value for name, value in kept.items() if name != sliding]
    return found.numpy()


def allowed(rules: Mask, mask: Any) -> Any:
    """[B, 1, S, S]; a query of padding at the front sees nothing in a causal mask, as in transformers."""
    own = {"causal": rules.causal, "window": rules.window, "chunk": rules.chunk}
    return masks.allowed(TOKENS, attention_mask=mask, **own)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "camembert"])
def test_a_bert_made_a_decoder_is_causal(
    family: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sample(family, seed, tmp_path / "checkpoint", is_decoder=True)
    card = export(made.folder, tmp_path / "out")
    check_masks(made, card, seed, monkeypatch)
    assert card.encodings.masks == {EVERY_LAYER: Mask(True)}


@pytest.mark.parametrize("family", [family for family, row in FAMILIES.items() if row.causal is True])
def test_a_decoder_told_not_to_be_causal_is_not(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sample(family, 2, tmp_path / "checkpoint", is_causal=False)
    card = export(made.folder, tmp_path / "out")
    check_masks(made, card, 2, monkeypatch)
    assert card.encodings.masks == {EVERY_LAYER: Mask(False)}


@pytest.mark.parametrize("family", ["llama", "bert", "gpt_neox", "falcon"])
def test_a_window_that_the_model_does_not_read_is_not_in_its_card(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sample(family, 5, tmp_path / "checkpoint", sliding_window=3)
    check_masks(made, export(made.folder, tmp_path / "out"), 5, monkeypatch)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_debertas_mask_is_its_own_where_the_query_is_no_padding(seed: int, tmp_path: Path) -> None:
    made = sample("deberta-v2", seed, tmp_path / "checkpoint")
    card = export(made.folder, tmp_path / "out")
    mask = padded(seed)
    expected = made.model.encoder.get_attention_mask(torch.from_numpy(mask)).numpy().astype(bool)
    seen = allowed(card.encodings.masks[EVERY_LAYER], mask)
    np.testing.assert_array_equal(seen & mask[:, None, :, None].astype(bool), expected)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", [family for family, row in FAMILIES.items() if row.rotates])
def test_every_layer_is_said_to_rotate_by_its_own_table(family: str, seed: int, tmp_path: Path) -> None:
    made = sample(family, seed, tmp_path / "checkpoint")
    config = made.model.config
    found = export(made.folder, tmp_path / "out").encodings
    if getattr(config, "alibi", False):
        assert (found.ropes, found.layers) == ({}, ())
        return
    assert found.layers == tuple(getattr(config, "layer_types", None) or [EVERY_LAYER] * config.num_hidden_layers)
    assert set(found.ropes) == set(found.layers)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", ["bloom", "mpt", "falcon"])
def test_a_bias_is_the_one_the_model_adds(
    family: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ledger: Ledger
) -> None:
    changes = {"alibi": True} if family == "falcon" else {}
    made = sample(family, seed, tmp_path / "checkpoint", **changes)
    found = export(made.folder, tmp_path / "out").encodings.alibi
    assert found is not None
    assert found.form == family
    kept: dict[str, Any] = {}
    name = "build_mpt_alibi_tensor" if family == "mpt" else "build_alibi_tensor"
    heard(monkeypatch, module_of(made), name, kept)
    mask = padded(seed)
    run(made, mask)
    reads = {} if family == "mpt" else {"attention_mask": mask}
    asked: Any = {"form": found.form, "max_bias": found.max_bias, "query_length": TOKENS, **reads}
    got = alibi.tabulate(found.heads, **asked, arithmetic="parity").outputs["bias"].whole()
    expected = kept[name].numpy()[..., -TOKENS:]  # MPT: of max_seq_len, cut by its attention
    assert expected.size == got.size
    difference = np.abs(got - expected.reshape(got.shape))
    relative = float((difference / np.maximum(np.abs(got), 1e-30)).max())
    ledger.check(family, "ALiBi, relative", relative, 2.0**-8 if family == "falcon" else 1e-6)


@pytest.mark.parametrize("max_bias", [4, 16])
def test_mpts_alibi_bias_max_is_what_the_slopes_were_trained_with(
    max_bias: int, tmp_path: Path, ledger: Ledger
) -> None:
    """Transformers 5.23 has the formula with it, and never hands it over (MPT-7B-StoryWriter says 16)."""
    made = sample("mpt", 1, tmp_path / "checkpoint", attn_config={"alibi_bias_max": max_bias})
    found = export(made.folder, tmp_path / "out").encodings.alibi
    assert found is not None
    expected = module_of(made).build_mpt_alibi_tensor(found.heads, TOKENS, max_bias).numpy()[..., :-1]  # the last is 0
    asked: Any = {"form": found.form, "max_bias": found.max_bias, "query_length": TOKENS}
    got = alibi.tabulate(found.heads, **asked, arithmetic="parity").outputs["bias"].whole()[0, ..., :-1]
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
def test_a_t5_bias_is_the_one_its_first_block_computes(seed: int, tmp_path: Path, ledger: Ledger) -> None:
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
def test_debertas_relative_vectors_are_those_its_layers_read(seed: int, tmp_path: Path, ledger: Ledger) -> None:
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


def test_transformers_still_makes_masks_under_these_names() -> None:
    assert all(hasattr(masking_utils, name) for name in MAKERS)
