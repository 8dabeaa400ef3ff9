"""The OpenVINO engine: a text's bits are the same in any company, and its numbers those of the other engines."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts import card as cards
from models.artifacts.comparison import TOLERANCE, make_check_inputs
from models.artifacts.export import export
from models.families import FAMILIES
from models.reference import interpreter
from service.errors import StartError
from service.registry.engine_choice import CLOSE_ENOUGH, measure
from service.registry.loading import Tokenizer
from service.runtime import onnx, reference
from service.runtime.engine import Engine, Precision
from tests.block_recipes import CASES, WIDTH, made
from tests.golden_cases import Case, case, cases, write_checkpoint, write_tiny_bert
from tests.whole_models import write_whole

pytest.importorskip("openvino")

from openvino import compile_model

from service.runtime import openvino, openvino_graph

DEMO = Path("models/store/all-MiniLM-L6-v2")
PRECISIONS: tuple[Precision, ...] = ("bfloat16", "float32")
LONGEST = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("openvino")
    export(write_tiny_bert(folder / "checkpoint", pooling="mean"), folder / "bert")
    return folder / "bert"


def load(folder: Path, precision: Precision = "float32", threads: int = 1, twice: bool = False) -> Engine:
    card = cards.read(folder)
    return openvino.load(folder, card, onnx.load(folder, card, "cpu", 1), precision, threads, twice)


def encode(engine: Engine, sequences: list[NDArray[np.int64]]) -> list[NDArray[np.float32]]:
    """The rows of each of several sequences that are run together."""
    lengths = [len(ids) for ids in sequences]
    ids = np.concatenate(sequences)
    positions = np.concatenate([np.arange(length) for length in lengths])
    feeds = {"ids": ids, "positions": positions, "types": np.zeros_like(ids)}
    feeds |= {"mask": np.ones(len(ids), bool), "lengths": np.array(lengths)}
    (rows,) = engine.run("encoder", feeds, ("last_hidden_state",))
    return np.split(rows, np.cumsum(lengths)[:-1])


def assert_company_changes_no_bit(engine: Engine, vocabulary: int, longest: int, batches: int) -> None:
    draw = np.random.default_rng(5)
    texts = [draw.integers(0, vocabulary, draw.integers(1, longest + 1)) for _ in range(24)]
    alone = [encode(engine, [ids])[0] for ids in texts]
    for _ in range(batches):
        chosen = draw.integers(0, len(texts), draw.integers(2, 20))
        for index, rows in zip(chosen, encode(engine, [texts[index] for index in chosen]), strict=True):
            assert rows.tobytes() == alone[index].tobytes()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("threads", [1, 2])
def test_company_changes_no_bit_of_a_tiny_model(precision: Precision, threads: int, folder: Path) -> None:
    engine = load(folder, precision, threads)
    assert_company_changes_no_bit(engine, cards.read(folder).vocab_size, LONGEST, 20)


def test_company_changes_no_bit_of_the_demo_model() -> None:
    assert_company_changes_no_bit(load(DEMO, "bfloat16"), 30000, 70, 6)


def check_feeds(card: cards.Card) -> dict[str, Any]:
    """Sequences of several lengths with masked rows, one of them masked whole."""
    return {
        name: value for name, value in make_check_inputs(card).feeds().items() if name in card.graphs["encoder"].inputs
    }


MORE_THAN_BERT = ("mpnet", "modernbert", "nomic_bert", "gte", "roformer", "deberta-v2")  # gates, rotation, biases


@pytest.mark.parametrize("case", cases("encoder"), ids=str)
def test_every_family_runs_or_is_left_to_onnx_runtime(case: Case, tmp_path: Path) -> None:
    card = export(write_checkpoint(case, tmp_path / "x"), tmp_path / "out", encoder=True)
    if card.family in MORE_THAN_BERT or FAMILIES[card.family].causal is True:
        assert openvino.fault(card) == "its encoder has steps that the OpenVINO engine does not know"
        return
    assert openvino.fault(card) is None
    feeds = check_feeds(card)
    (expected,) = reference.load(tmp_path / "out", card).run("encoder", feeds, ("last_hidden_state",))
    (found,) = load(tmp_path / "out").run("encoder", feeds, ("last_hidden_state",))
    assert np.max(np.abs(found - expected) / np.maximum(1, np.abs(expected))) <= TOLERANCE["encoder"]


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "silu"])
def test_float32_gives_what_the_reference_gives(activation: str, tmp_path: Path) -> None:
    export(write_tiny_bert(tmp_path / "checkpoint", hidden_act=activation), tmp_path / "bert")
    card = cards.read(tmp_path / "bert")
    feeds = check_feeds(card)
    (expected,) = reference.load(tmp_path / "bert", card).run("encoder", feeds, ("last_hidden_state",))
    (found,) = load(tmp_path / "bert").run("encoder", feeds, ("last_hidden_state",))
    assert found.dtype == np.float32
    assert np.max(np.abs(found - expected) / np.maximum(1, np.abs(expected))) <= TOLERANCE["encoder"]


def test_masked_rows_change_no_other_row(folder: Path) -> None:
    card, engine = cards.read(folder), load(folder)
    feeds = check_feeds(card)
    changed = feeds | {"ids": np.where(feeds["mask"], feeds["ids"], 5)}
    kept = feeds["mask"].copy()
    kept[0] = True  # a sequence with nothing to attend to attends to itself
    changed["ids"][0] = feeds["ids"][0]
    (before,), (after,) = (engine.run("encoder", each, ("last_hidden_state",)) for each in (feeds, changed))
    assert before[kept].tobytes() == after[kept].tobytes()
    assert not np.array_equal(before, after)


def test_bfloat16_is_close_on_the_demo_model() -> None:
    card = cards.read(DEMO)
    whole = onnx.load(DEMO, card, "cpu", 1)
    tokenizer = Tokenizer(DEMO / "tokenizer.json")
    closeness = measure(card, tokenizer, whole, load(DEMO, "bfloat16"))
    assert CLOSE_ENOUGH <= closeness.least <= closeness.mean <= 1 + 1e-6


def test_random_ids_measure_a_model_without_tokenizer(folder: Path) -> None:
    card = cards.read(folder)
    whole, changed = onnx.load(folder, card, "cpu", 1), load(folder, "bfloat16")
    closeness = measure(card, None, whole, changed)
    assert 0.99 < closeness.least <= closeness.mean < 1


def test_runs_at_a_time_give_the_bits_of_runs_apart(folder: Path) -> None:
    engine = load(folder, "bfloat16", threads=2)
    draw = np.random.default_rng(6)
    batches = [[draw.integers(0, 20, draw.integers(1, LONGEST)) for _ in range(6)] for _ in range(16)]
    apart = [encode(engine, batch) for batch in batches]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda batch: encode(engine, batch), batches))
    assert [[rows.tobytes() for rows in batch] for batch in together] == [
        [rows.tobytes() for rows in batch] for batch in apart
    ]


def test_all_threads_in_one_run_give_the_same_bits(folder: Path) -> None:
    engine = load(folder, "bfloat16", threads=2, twice=True)
    assert engine.alone is not None
    texts = [np.arange(length) % 20 for length in (1, 15, 16, 17, 33)]
    for ids in texts:
        assert encode(engine.alone, [ids])[0].tobytes() == encode(engine, [ids])[0].tobytes()
    assert load(folder, "bfloat16", threads=2).alone is None


def test_a_run_after_shrinking_gives_the_same_bits(folder: Path) -> None:
    engine = load(folder, "bfloat16")
    ids = [np.arange(20)]
    before = encode(engine, ids)[0].tobytes()
    engine.shrink()
    assert [encode(engine, ids)[0].tobytes() for _ in range(3)] == [before] * 3


def test_other_graphs_run_in_onnx_runtime(folder: Path) -> None:
    card = cards.read(folder)
    feeds = {name: np.arange(4) % 2 for name in card.graphs["embedding"].inputs}
    expected, found = (
        engine.run("embedding", feeds, ("input_embeddings",))[0]
        for engine in (onnx.load(folder, card, "cpu", 1), load(folder, "bfloat16"))
    )
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", CASES)
def test_knows_the_steps_that_it_computes_and_no_others(name: str) -> None:
    """Judged by the float64 reference; a step that is known in part would give other numbers."""
    blocks, weights = made(name)
    known = all(map(openvino_graph.is_known, blocks))
    assert known == (name in ("both ways", "no norm"))
    if not known:
        return
    rows = np.random.default_rng(1).normal(size=(9, WIDTH))
    expected = interpreter.encode(blocks, weights, rows, np.ones(9, bool), np.array([9]))
    compiled = compile_model(openvino_graph.blocks(blocks, weights, WIDTH), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = compiled([rows[None].astype(np.float32), np.zeros((1, 9), np.float32)])[0][0]
    assert np.abs(found - expected).max() <= TOLERANCE["encoder"]


def test_a_decoder_is_left_to_onnx_runtime(tmp_path: Path) -> None:
    card = export(write_whole(tmp_path / "x", "llama"), tmp_path / "out", encoder=True)
    assert openvino.fault(card) == "its encoder has steps that the OpenVINO engine does not know"


def test_says_which_models_it_does_not_run(folder: Path, tmp_path: Path) -> None:
    card = cards.read(folder)
    assert openvino.fault(card) is None
    assert openvino.fault(replace(card, encoder=())) == "it was adopted as ONNX"
    int8 = cards.QuantizedEncoder("int8", 0.99, 0.999, 64)
    assert openvino.fault(replace(card, quantized=int8)) == "its encoder is int8"
    assert "steps" in str(openvino.fault(replace(card, encoder=(*card.encoder, card.recipe[0]))))
    without = {name: graph for name, graph in card.graphs.items() if name != "embedding"}
    assert "input layer" in str(openvino.fault(replace(card, graphs=without)))
    export(write_checkpoint(case("input_llama"), tmp_path / "checkpoint"), tmp_path / "llama")
    assert openvino.fault(cards.read(tmp_path / "llama")) == "it has no encoder"


def test_a_model_that_does_not_compile_is_one_line(folder: Path) -> None:
    card = cards.read(folder)
    rows = onnx.load(folder, card, "cpu", 1)
    with pytest.raises(StartError, match=r"cannot compile .*--engine onnx") as caught:
        openvino.load(folder, replace(card, hidden_size=card.hidden_size + 1), rows, "float32", 1)
    assert "\n" not in str(caught.value)
