"""The ONNX engine: runs in chunks give the bytes of single rows, in the order of the outputs asked for."""

from pathlib import Path

import numpy as np
import onnx as onnx_format
import pytest

from models.artifacts import card as cards
from models.artifacts.export import export
from models.recipes.graph_names import ONE_TYPE
from service.errors import StartError
from service.runtime import onnx
from service.runtime.onnx import OnnxEngine
from tests.golden_cases import case, write_checkpoint, write_tiny_bert
from tests.onnx_sessions import open_session

ROWS = 1100  # two chunks and a rest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with graphs of one step and of several, and RoPE tables in another."""
    folder = tmp_path_factory.mktemp("engine")
    export(write_tiny_bert(folder / "bert", pooling="mean"), folder / "store/bert")
    export(write_checkpoint(case("input_llama"), folder / "llama"), folder / "store/llama")
    return folder / "store"


def load(folder: Path) -> tuple[cards.Card, OnnxEngine]:
    card = cards.read(folder)
    return card, onnx.load(folder, card, "cpu", 1)


@pytest.mark.parametrize(
    ("model", "graph"), [("bert", "embedding"), ("bert", "components"), ("llama", "embedding"), ("llama", "rope")]
)
def test_chunks_give_the_bytes_of_single_rows(model: str, graph: str, folder: Path) -> None:
    card, engine = load(folder / model)
    draw = np.random.default_rng(1)
    values = {
        "ids": draw.integers(0, card.vocab_size, ROWS),
        "positions": draw.integers(0, 40, ROWS),
        "types": draw.integers(0, 2, ROWS),
    }
    feeds = {name: values[name] for name in card.graphs[graph].inputs}
    outputs = card.graphs[graph].outputs
    whole = engine.run(graph, feeds, outputs)
    for row in (0, 127, 128, 511, 512, 1024, ROWS - 1):
        alone = engine.run(graph, {name: array[row : row + 1] for name, array in feeds.items()}, outputs)
        assert [array[row].tobytes() for array in whole] == [array.tobytes() for array in alone]


def test_returns_requested_outputs_in_order(folder: Path) -> None:
    card, engine = load(folder / "bert")
    feeds = {name: np.zeros(600, np.int64) for name in card.graphs["components"].inputs}
    names = card.graphs["components"].outputs
    forward, backward = engine.run("components", feeds, names), engine.run("components", feeds, names[::-1])
    assert [array.tobytes() for array in forward] == [array.tobytes() for array in backward[::-1]]
    assert [len(engine.run("components", feeds, (name,))) for name in names] == [1] * len(names)


@pytest.mark.parametrize("rows", [1, 16, 100, ROWS])
@pytest.mark.parametrize("one_type", [True, False])
def test_one_type_for_all_rows_gives_the_same_bytes(rows: int, one_type: bool, folder: Path) -> None:
    """A segment of 0 is read once for all rows; older exports take one for each."""
    card = cards.read(folder / "bert")
    graph = onnx_format.load(folder / "bert/embedding.onnx", load_external_data=False)
    (types,) = [each for each in graph.graph.input if each.name == "types"]
    assert types.type.tensor_type.shape.dim[0].dim_param == ONE_TYPE
    if not one_type:
        types.type.tensor_type.shape.dim[0].dim_param = "tokens"
    path = folder / f"bert/embedding-{one_type}.onnx"
    onnx_format.save(graph, path)
    session = open_session(path)
    engine = OnnxEngine("cpu", {"embedding": session}, card.graphs)
    draw = np.random.default_rng(2)
    feeds = {"ids": draw.integers(0, card.vocab_size, rows), "positions": np.arange(rows) % 24}
    for types_sent in (np.zeros(rows, np.int64), np.ones(rows, np.int64), np.arange(rows) % 2):
        (expected,) = session.run(["input_embeddings"], {**feeds, "types": types_sent})
        (found,) = engine.run("embedding", {**feeds, "types": types_sent}, ("input_embeddings",))
        assert found.tobytes() == expected.tobytes()


def test_runs_after_shrinking_give_the_same_bytes(folder: Path) -> None:
    card, engine = load(folder / "bert")
    feeds = {name: np.zeros(8, np.int64) for name in card.graphs["embedding"].inputs}
    before = engine.run("embedding", feeds, ("input_embeddings",))[0].tobytes()
    engine.shrink()
    assert [engine.run("embedding", feeds, ("input_embeddings",))[0].tobytes() for _ in range(2)] == [before] * 2


def test_cuda_without_a_device_is_an_error_of_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx.ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(StartError, match=r"device cuda was asked for, but .* got no CUDA device") as error:
        onnx.load(folder / "bert", cards.read(folder / "bert"), "cuda", 1)
    assert "\n" not in str(error.value)
    assert onnx.load(folder / "bert", cards.read(folder / "bert"), "auto", 1).device == "cpu"


@pytest.mark.parametrize(("threads", "twice", "runs"), [(1, True, 1), (2, False, 1), (2, True, 2), (4, True, 4)])
def test_runs_at_a_time_follow_threads_and_memory(threads: int, twice: bool, runs: int, folder: Path) -> None:
    engine = onnx.load(folder / "bert", cards.read(folder / "bert"), "cpu", threads, twice=twice)
    assert (engine.runs, engine.alone is not None) == (runs, runs > 1)


@pytest.mark.parametrize("lengths", [(1,), (7,), (40,), (3, 40, 9)])
def test_threads_do_not_change_bytes(lengths: tuple[int, ...], folder: Path) -> None:
    card = cards.read(folder / "bert")
    engine, draw = onnx.load(folder / "bert", card, "cpu", 2, twice=True), np.random.default_rng(1)
    tokens = sum(lengths)
    feeds = {
        "ids": draw.integers(0, card.vocab_size, tokens),
        "positions": np.concatenate([np.arange(length) for length in lengths]),
        "types": np.zeros(tokens, np.int64),
        "mask": np.ones(tokens, bool),
        "lengths": np.array(lengths, np.int64),
    }
    assert engine.alone is not None
    beside, alone = (each.run("encoder", feeds, ("last_hidden_state",)) for each in (engine, engine.alone))
    assert beside[0].tobytes() == alone[0].tobytes()
