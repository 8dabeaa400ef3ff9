"""Recipes of every family: graphs and reference compared with golden data and with each other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.card import Card
from models.artifacts.export import export
from models.checkpoints import safetensors
from models.errors import ReferenceMismatch
from models.families import FAMILIES, family_for_side
from models.families.config import Config
from models.families.filling import input_layer
from models.families.tensor_shapes import expected_shapes, per_layer_shapes
from models.positions.learned import positions
from models.positions.rope.angles import cos_sin
from models.positions.rope.frequencies import frequencies
from models.recipes.extra_inputs import Extra
from models.recipes.steps import LayerNorm, Recipe, RMSNorm, Scale
from models.reference import interpreter as reference
from tests.golden_cases import Case, cases, write_checkpoint, write_folder, write_tiny_bert
from tests.onnx_sessions import open_session
from tests.parity.block_configs import CONFIGS, PUBLISHED
from tests.sweeps import sampled

Arrays = dict[str, NDArray[Any]]
ARANGE: Arrays = {"positions": np.arange(40)}


def run(folder: Path, card: Card, graph: str, feeds: Arrays) -> Arrays:
    """Return the outputs of one graph of an export; feeds it does not read are dropped."""
    entry = card.graphs[graph]
    session = open_session(folder / entry.file)
    values = session.run(list(entry.outputs), {name: feeds[name] for name in entry.inputs})
    return dict(zip(entry.outputs, values, strict=True))


def packed(case: Case, card: Card) -> Arrays:
    """Return a golden batch as packed rows, with positions by the family's rule."""
    ids, mask = case.ids, case.mask
    types = case.arrays.get("token_type_ids", np.zeros_like(ids))
    places = [positions(card.position, row, masked) for row, masked in zip(ids, mask, strict=True)]
    return {
        "ids": ids.reshape(-1),
        "positions": np.concatenate(places),
        "types": types.reshape(-1),
        "mask": mask.reshape(-1).astype(bool),
        "lengths": np.full(len(ids), ids.shape[1]),
        **{
            each.name: case.arrays[each.name].reshape(ids.size, *case.arrays[each.name].shape[2:])
            for each in card.extras
        },
    }


def exported(case: Case, place: Path) -> Card:
    """Export the case's checkpoint to place/out."""
    whole = True if case.kind == "encoder" else None
    return export(write_checkpoint(case, place / "x"), place / "out", side=case.side, encoder=whole)


def graph_of(case: Case, card: Card, name: str) -> str:
    return name + "_typed" if card.types == "optional" and "token_type_ids" in case.arrays else name


@pytest.mark.parametrize("case", cases("input_layer"), ids=str)
def test_input_layer_graph_equals_transformers(case: Case, tmp_path: Path) -> None:
    card = exported(case, tmp_path)
    feeds = packed(case, card)
    expected = case.arrays["hidden_states"].reshape(len(feeds["ids"]), -1)
    rows = run(tmp_path / "out", card, graph_of(case, card, "embedding"), feeds)["input_embeddings"]
    np.testing.assert_allclose(rows, expected, **case.tolerance["hidden_states"])


@pytest.mark.parametrize("case", cases("input_layer"), ids=str)
def test_reference_equals_transformers(case: Case, tmp_path: Path) -> None:
    card = exported(case, tmp_path)
    feeds = packed(case, card)
    types = feeds["types"] if "token_type_ids" in case.arrays or card.types == "zeros" else None
    outputs = reference.run(card.recipe, case.weights, feeds["ids"], feeds["positions"], types, feeds["mask"], feeds)
    rows = outputs["input_embeddings"]
    expected = case.arrays["hidden_states"].reshape(rows.shape)
    np.testing.assert_allclose(rows, expected, **case.tolerance["hidden_states"])


@pytest.mark.parametrize("case", cases("encoder"), ids=str)
def test_encoder_graph_equals_transformers(case: Case, tmp_path: Path) -> None:
    card = exported(case, tmp_path)
    feeds = packed(case, card)
    rows = run(tmp_path / "out", card, "encoder", feeds)["last_hidden_state"]
    expected = case.arrays["last_hidden_state"].reshape(rows.shape)
    row = FAMILIES[case.params["model_type"]]
    sees_less = row.causal is True or row.window or (row.buckets and row.buckets.kind == "deberta")
    judged = feeds["mask"] if sees_less else slice(None)  # what a masked row attends to differs
    np.testing.assert_allclose(rows[judged], expected[judged], **case.tolerance["last_hidden_state"])
    hidden = reference_outputs(tmp_path / "out", card, card.graphs["encoder"].inputs, feeds)["last_hidden_state"]
    np.testing.assert_allclose(hidden[judged], expected[judged], **case.tolerance["last_hidden_state"])


@pytest.mark.parametrize("case", [case for case in cases("input_layer") if "rope_cos" in case.arrays], ids=str)
def test_rope_graph_equals_transformers(case: Case, tmp_path: Path) -> None:
    card = exported(case, tmp_path)
    expected = case.arrays["rope_cos"][0], case.arrays["rope_sin"][0]  # (tokens, rotary_dim), halves repeated
    tables = run(tmp_path / "out", card, card.encodings.ropes[case.rope_layers or "all"].graph, ARANGE)
    rounding = 2.0**-8 if case.params["dtype"] == "bfloat16" else 0.0  # transformers gives them in the model's dtype
    for rows, table in zip(tables.values(), expected, strict=True):
        here = table[:, : rows.shape[1]]
        np.testing.assert_allclose(rows[: len(here)], here, atol=3e-7 + 5e-7 * len(table) + rounding)


SIZES = {
    "vocab_size": 61,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
    "type_vocab_size": 3,
    "pad_token_id": 1,
    "mask_token_id": 5,
    "table_width": 8,
    "intermediate_size": 8,
    "vocab_size_per_layer_input": 50,
    "hidden_size_per_layer_input": 4,
    "n_langs": 3,
}
SWITCHES = ("scale_embedding", "rescale_embeddings", "mup_enabled", "use_task_id", "token_dropout")
SWITCHES += ("emb_layer_norm_before",)
SIDES = [
    (name, side)
    for name, row in FAMILIES.items()
    for side in ("encoder", "decoder")
    if row.decoder or side != "decoder"
]


def random_checkpoint(model_type: str, side: str, folder: Path, dtype: Any) -> Path:
    """Write a small input layer of any family, with all of its switches on, without prefix for BERT."""
    family = family_for_side(model_type, FAMILIES[model_type], side if FAMILIES[model_type].decoder else None)
    own = {
        family.names.get(key, key): value
        for key, value in SIZES.items()
        if key in family.defaults or key in family.names
    }
    config = {**family.defaults, **own, **{key: True for key in SWITCHES if key in family.defaults}}
    config |= {"mask_token_id": 5} if "token_dropout" in config else {}
    if family.rotates is True:
        config |= {"head_dim": 8, "qk_rope_head_dim": 4, "rotary_dim": 4}
    if "_vl" in model_type:
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    seen = Config(config, family.defaults, family.names)
    shapes = expected_shapes(input_layer(family, seen), seen, family)
    shapes |= per_layer_shapes(family.per_layer, seen)
    random = np.random.default_rng(len(model_type))
    weights = {family.prefix + name: random.normal(0, 1, shape).astype(dtype) for name, shape in shapes.items()}
    return write_folder(folder, config | {"model_type": model_type}, weights)


def compared(folder: Path, card: Card) -> None:
    """Compare every output of every graph with the reference, on inputs that export does not use."""
    random = np.random.default_rng(1)
    lengths = np.array([1, 7, 2, 9])
    ids = random.integers(0, card.vocab_size, lengths.sum())
    types = random.integers(0, card.vocab_size if card.types == "optional" else max(card.type_rows, 1), len(ids))
    feeds = {
        "ids": ids,
        "positions": np.concatenate([random.integers(0, card.position.rows or 4000, n) for n in lengths]),
        "types": types,
        "mask": random.random(len(ids)) < 0.6,
        "lengths": lengths,
        **{each.name: random_extra(each, len(ids), random) for each in card.extras},
    }
    for graph, entry in card.graphs.items():
        expected = reference_outputs(folder, card, entry.inputs, feeds)
        for output, value in run(folder, card, graph, feeds).items():
            np.testing.assert_allclose(value, expected[output], rtol=2e-5, atol=2e-5, err_msg=f"{graph} {output}")


def random_extra(extra: Extra, count: int, random: np.random.Generator) -> NDArray[np.int64]:
    if not extra.sent:
        return random.integers(1, 5, count) + (4 if extra.name == "attended_tokens" else 0)
    values = np.sort(random.integers(extra.missing, extra.rows, (count, extra.columns)), axis=1)
    return values if extra.columns > 1 else values[:, 0]


@pytest.mark.parametrize(("model_type", "side"), sampled(SIDES, 4, unpack=True))
def test_interpreters_agree_for_every_family(model_type: str, side: str, tmp_path: Path) -> None:
    dtype = (np.float32, np.float16)[len(model_type) % 2]
    checkpoint = random_checkpoint(model_type, side, tmp_path / "x", dtype)
    card = export(checkpoint, tmp_path / "out", side=side if FAMILIES[model_type].decoder else None)
    assert card.side == FAMILIES[model_type].side or card.side == side
    compared(tmp_path / "out", card)


@pytest.mark.parametrize("case", cases("encoder"), ids=str)
def test_interpreters_agree_for_encoders(case: Case, tmp_path: Path) -> None:
    compared(tmp_path / "out", exported(case, tmp_path))


def test_every_whole_encoder_has_golden_or_live_numbers() -> None:
    golden = {case.params["model_type"] for case in cases("encoder")} | {"camembert"}  # a roberta by another name
    whole = {model_type for model_type, family in FAMILIES.items() if family.block}
    assert golden <= whole
    pages = {"qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text"}  # of test_image_tokens_live.py
    assert whole <= golden | set(CONFIGS) | PUBLISHED | pages  # of tests/parity/test_blocks_live.py and its neighbour


def reference_outputs(folder: Path, card: Card, reads: tuple[str, ...], feeds: Arrays) -> Arrays:
    weights = safetensors.tensors_of(folder / "weights.safetensors")
    types, mask = (feeds[name] if name in reads else None for name in ("types", "mask"))
    if card.per_layer and reads == ("ids",) and "per_layer" in card.graphs:
        outputs: Arrays = {"per_layer_embeddings": reference.per_layer(card.per_layer, weights, feeds["ids"])}
    else:
        outputs = {}
    outputs |= reference.run(card.recipe, weights, feeds["ids"], feeds["positions"], types, mask, feeds)
    if card.encoder:
        outputs["last_hidden_state"] = reference.encode(
            card.encoder,
            weights,
            outputs["input_embeddings"],
            feeds["mask"],
            feeds["lengths"],
            feeds["positions"],
            card.encodings.ropes,
        )
    for table in card.encodings.ropes.values():
        tables = cos_sin(frequencies(table.rope, "parity"), feeds["positions"])
        outputs |= zip(card.graphs[table.graph].outputs, tables, strict=True)
    return outputs


@pytest.mark.parametrize("case", cases("input_layer"), ids=str)
def test_input_layer_row_is_bitwise_same_alone(case: Case, tmp_path: Path) -> None:
    card = exported(case, tmp_path)
    feeds = packed(case, card)
    graph = graph_of(case, card, "embedding")
    together = run(tmp_path / "out", card, graph, feeds)["input_embeddings"]
    for row in range(0, len(together), 5):
        alone = {name: value[row : row + 1] for name, value in feeds.items()}
        assert run(tmp_path / "out", card, graph, alone)["input_embeddings"].tobytes() == together[row].tobytes()


def test_encoder_sequence_does_not_depend_on_batch(tmp_path: Path) -> None:
    card = export(write_tiny_bert(tmp_path / "x"), tmp_path / "out")
    random = np.random.default_rng(5)
    lengths = [1, 30, 4, 17, 2]
    feeds = [
        {
            "ids": random.integers(0, card.vocab_size, n),
            "positions": np.arange(n),
            "types": random.integers(0, 2, n),
            "mask": random.random(n) < 0.7,
            "lengths": np.array([n]),
        }
        for n in lengths
    ]
    batch = {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
    together = run(tmp_path / "out", card, "encoder", batch)["last_hidden_state"]
    for feed, part in zip(feeds, np.split(together, np.cumsum(lengths)[:-1]), strict=True):
        alone = run(tmp_path / "out", card, "encoder", feed)["last_hidden_state"]
        np.testing.assert_allclose(part, alone, rtol=0, atol=1e-6)


def test_all_false_mask_attends_to_all_rows(tmp_path: Path) -> None:
    card = export(write_tiny_bert(tmp_path / "x"), tmp_path / "out")
    ids = np.array([2, 5, 9, 3, 2, 7, 3])
    feeds = {"ids": ids, "positions": np.array([0, 1, 2, 3, 0, 1, 2]), "types": np.zeros(7, np.int64)}
    feeds |= {"mask": np.array([False] * 4 + [True] * 3), "lengths": np.array([4, 3])}
    hidden = run(tmp_path / "out", card, "encoder", feeds)["last_hidden_state"]
    unmasked = run(tmp_path / "out", card, "encoder", feeds | {"mask": np.ones(7, bool)})["last_hidden_state"]
    np.testing.assert_array_equal(hidden, unmasked)


def test_gpt2_token_types_are_added_only_when_sent(tmp_path: Path) -> None:
    (case,) = (case for case in cases("input_layer") if case.name == "input_gpt2")
    card = exported(case, tmp_path)
    feeds = packed(case, card)
    plain = run(tmp_path / "out", card, "embedding", feeds)["input_embeddings"]
    typed = run(tmp_path / "out", card, "embedding_typed", feeds)["input_embeddings"]
    words = case.weights["transformer.wte.weight"]
    np.testing.assert_allclose(typed - plain, words[feeds["types"]], atol=1e-6)
    assert card.graph_for("token_type_embeddings", typed=True) == "components_typed"
    assert "types" not in card.graphs["components"].inputs


def test_half_precision_tables_stay_so_on_disk(tmp_path: Path) -> None:
    """And rows are widened after the lookup, so they equal the checkpoint's exactly."""
    for dtype, name in ((np.float16, "float16"), (np.float32, "float32")):
        (case,) = (case for case in cases("input_layer") if case.name == "input_bert")
        narrow = Case(
            case.name,
            case.kind,
            case.params,
            {},
            {k: v.astype(dtype) if k[:2] == "w:" else v for k, v in case.arrays.items()},
        )
        card = export(write_checkpoint(narrow, tmp_path / name), tmp_path / f"out-{name}")
        assert card.dtype == name
        rows = run(tmp_path / f"out-{name}", card, "components", packed(narrow, card))["token_embeddings"]
        table = narrow.weights["bert.embeddings.word_embeddings.weight"]
        np.testing.assert_array_equal(rows, table[narrow.arrays["input_ids"].reshape(-1)].astype(np.float32))
        held = safetensors.read_header(tmp_path / f"out-{name}" / "weights.safetensors")
        assert held["bert.embeddings.LayerNorm.weight"].dtype == "F32"


def test_rejects_export_that_differs_from_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = reference.run

    def wrong(*arguments: Any) -> Arrays:
        return {name: value + 1e-3 for name, value in right(*arguments).items()}

    monkeypatch.setattr(reference, "run", wrong)
    (case,) = (case for case in cases("input_layer") if case.name == "input_bert")
    with pytest.raises(
        ReferenceMismatch, match=r"embedding\.onnx: input_embeddings differs .* by 1\.00e-03, more than 1e-05"
    ):
        export(write_checkpoint(case, tmp_path / "x"), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def rms(x: NDArray[np.float64]) -> NDArray[np.float64]:
    root: NDArray[np.float64] = np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    return x / root


@pytest.mark.parametrize(
    "steps", [(Scale(3.0),), (RMSNorm("g", 1e-6),), (Scale(0.5), RMSNorm("g", 1e-6), LayerNorm("g", None, 1e-5))]
)
def test_interpreters_agree_for_unused_steps(steps: Recipe, tmp_path: Path) -> None:
    from models.graphs import input_layer as graphs
    from models.graphs.builder import GraphBuilder, save
    from models.recipes.steps import Embed

    random = np.random.default_rng(0)
    table, gain = random.normal(size=(9, 8)).astype(np.float32), random.normal(1, 0.1, 8).astype(np.float32)
    sources = [
        safetensors.TensorSource("t", "F32", (9, 8), [table]),
        safetensors.TensorSource("g", "F32", (8,), [gain]),
    ]
    placed = safetensors.write(tmp_path / "weights.safetensors", sources)
    recipe = (Embed("t"), *steps)
    save(graphs.embedding(GraphBuilder(placed), recipe, 8), tmp_path / "embedding.onnx")
    save(graphs.components(GraphBuilder(placed), recipe), tmp_path / "components.onnx")
    ids = np.array([0, 8, 3])
    expected = reference.run(recipe, {"t": table, "g": gain}, ids, ids, None)
    for file, output in (("embedding", "input_embeddings"), ("components", "token_embeddings")):
        rows = open_session(tmp_path / f"{file}.onnx").run([output], {"ids": ids})[0]
        np.testing.assert_allclose(rows, expected[output], rtol=1e-5, atol=1e-6)
    by_hand = table[ids].astype(np.float64)
    for step in steps:
        by_hand = by_hand * step.factor if isinstance(step, Scale) else by_hand
        by_hand = rms(by_hand) * gain if isinstance(step, RMSNorm) else by_hand
    if not any(isinstance(step, LayerNorm) for step in steps):
        np.testing.assert_allclose(expected["input_embeddings"], by_hand)
