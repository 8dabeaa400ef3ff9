"""Forms of the input layer beside what Inlay runs: microseconds a token of one run on one thread.

    python -m loadtest.encoders.input_layer FOLDER

FOLDER is an exported model of BERT's form. Every form returns the same rows, float32 (tokens, width), of the same ids,
positions and types; their numbers are compared first. This module times functions, so it imports models and service.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from loadtest.encoders.bars import OWN_FORM
from models.artifacts import card as cards
from models.artifacts.card import Card
from models.checkpoints.safetensors import Tensor, read, read_header
from models.graphs.builder import CONTRIB, GraphBuilder
from models.graphs.input_layer import INPUTS, emit_input_layer, packed_output
from models.recipes.steps import AddPosition, AddType, Embed, LayerNorm
from service.runtime import onnx

SIZES = (16, 128, 512, 4096)
ROUNDS = 21
TURN_S = 0.004  # of a form in a round
TOLERANCE = 1e-5
Feeds = Mapping[str, NDArray[np.int64]]
Rows = NDArray[np.float32]
Form = Callable[[Feeds], Rows]


class Tables:
    """The names of the weights of BERT's input layer.

    Args:
        card: of the model.
    """

    def __init__(self, card: Card) -> None:
        assert card.recipe
        by_kind: dict[type, Any] = {type(step): step for step in card.recipe}
        norm = by_kind[LayerNorm]
        self.words: str = by_kind[Embed].table
        self.positions: str = by_kind[AddPosition].table
        self.types: str = by_kind[AddType].table
        self.scale, self.shift, self.epsilon = str(norm.weight), str(norm.bias), float(norm.eps)


def fused_graph(builder: GraphBuilder, tables: Tables, width: int) -> Any:
    """Return the graph of one EmbedLayerNormalization, which takes int32 of (batch, sequence)."""
    row = builder.constant(np.array([0]))
    ids, positions, types = (
        builder.op("Unsqueeze", builder.cast(name, "INT32"), row) for name in ("ids", "positions", "types")
    )
    named = (tables.words, tables.positions, tables.types, tables.scale, tables.shift)
    weights = [builder.weight(name) for name in named]
    rows = builder.op(
        "EmbedLayerNormalization",
        *(ids, types, *weights, "", positions),
        outputs=2,
        domain=CONTRIB,
        epsilon=tables.epsilon,
    )
    return _finished(builder, builder.op("Squeeze", rows, row), width)


def plain_graph(builder: GraphBuilder, card: Card, width: int) -> Any:
    """Return the graph of three Gathers, two Adds and a LayerNormalization."""
    assert card.recipe
    return _finished(builder, emit_input_layer(builder, card.recipe), width)


def _finished(builder: GraphBuilder, rows: str, width: int) -> Any:
    inputs = {name: INPUTS[name] for name in ("ids", "positions", "types")}
    return builder.model("embedding", inputs, {"input_embeddings": packed_output(rows, width)})


def session_of(graph: Any, folder: Path, name: str) -> ort.InferenceSession:
    """Write a graph beside the weights that it maps, and open it with one thread."""
    path = folder / f"{name}.onnx"
    path.write_bytes(graph.SerializeToString())
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(str(path), options, ["CPUExecutionProvider"])


def in_one_run(session: ort.InferenceSession) -> Form:
    """Return the form that runs all rows at once."""

    def run(feeds: Feeds) -> Rows:
        rows: Rows = session.run(None, feeds)[0]
        return rows

    return run


def in_chunks(session: ort.InferenceSession, width: int, most: int) -> Form:
    """Return the form that runs `most` rows at a time, each written to its place of one array."""

    def run(feeds: Feeds) -> Rows:
        tokens = len(feeds["ids"])
        rows = np.empty((tokens, width), np.float32)
        binding = session.io_binding()
        for start in range(0, tokens, most):
            stop = min(start + most, tokens)
            for name, array in feeds.items():
                binding.bind_cpu_input(name, array[start:stop])
            address = rows.ctypes.data + 4 * width * start
            binding.bind_output("input_embeddings", "cpu", 0, np.float32, (stop - start, width), address)
            session.run_with_iobinding(binding)
        return rows

    return run


def bound_once(session: ort.InferenceSession, width: int, tokens: int) -> Form:
    """Return the form whose inputs and output stay bound; what is sent is copied in, the rows are copied out."""
    inputs = {name: np.zeros(tokens, np.int64) for name in ("ids", "positions", "types")}
    rows = np.empty((tokens, width), np.float32)
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("input_embeddings", "cpu", 0, np.float32, rows.shape, rows.ctypes.data)

    def run(feeds: Feeds) -> Rows:
        for name, array in inputs.items():
            array[:] = feeds[name]
        session.run_with_iobinding(binding)
        return rows.copy()

    return run


def in_numpy(tensors: Mapping[str, Any], tables: Tables) -> Form:
    """Return the form that looks up, adds and normalises in numpy."""
    words, positions, types = (tensors[name] for name in (tables.words, tables.positions, tables.types))
    scale, shift = tensors[tables.scale], tensors[tables.shift]

    def run(feeds: Feeds) -> Rows:
        rows = words.take(feeds["ids"], 0)
        rows += positions.take(feeds["positions"], 0)
        rows += types.take(feeds["types"], 0)
        rows -= rows.mean(axis=1, keepdims=True)
        rows *= 1 / np.sqrt(np.einsum("nd,nd->n", rows, rows)[:, None] / rows.shape[1] + tables.epsilon)
        rows *= scale
        rows += shift
        return rows  # type: ignore[no-any-return]

    return run


def forms_of(folder: Path, beside: Path) -> Callable[[int], dict[str, Form]]:
    """Return what gives the forms for a number of tokens.

    Args:
        folder: the exported model.
        beside: an empty folder, which gets a link to the weights.
    """
    card = cards.read(folder)
    tables, width = Tables(card), card.hidden_size
    assert card.weights
    placed: dict[str, Tensor] = read_header(folder / card.weights)
    (beside / card.weights).hardlink_to(folder / card.weights)
    plain = session_of(plain_graph(GraphBuilder(placed), card, width), beside, "plain")
    fused = session_of(fused_graph(GraphBuilder(placed), tables, width), beside, "fused")
    engine = onnx.load(folder, card, "cpu", threads=1)
    fixed: dict[str, Form] = {
        OWN_FORM: lambda feeds: engine.run("embedding", feeds, ["input_embeddings"])[0],
        "Gather, Add, LayerNormalization": in_one_run(plain),
        "the same, chunks of 128": in_chunks(plain, width, 128),
        "the same, chunks of 512": in_chunks(plain, width, 512),
        "EmbedLayerNormalization": in_one_run(fused),
        "that, chunks of 128": in_chunks(fused, width, 128),
        "that, chunks of 512": in_chunks(fused, width, 512),
        "numpy": in_numpy(read(placed.values()), tables),
    }
    return lambda tokens: (
        fixed
        | {
            "Gather, Add, LayerNormalization, bound once": bound_once(plain, width, tokens),
            "EmbedLayerNormalization, bound once": bound_once(fused, width, tokens),
        }
    )


def feeds_of(tokens: int, vocabulary: int) -> Feeds:
    """Return sequences of at most 512 random ids, int64 (tokens,) each."""
    ids = np.random.default_rng(tokens).integers(0, vocabulary, tokens)
    return {"ids": ids, "positions": np.arange(tokens) % 512, "types": np.zeros(tokens, np.int64)}


def check(forms: Mapping[str, Form], feeds: Feeds) -> None:
    """Compare the rows of every form; SystemExit where one differs."""
    expected = forms[OWN_FORM](feeds)
    for name, form in forms.items():
        difference = float(np.abs(form(feeds) - expected).max())
        if not difference <= TOLERANCE:
            raise SystemExit(f"{name} differs by {difference:.2g} for {len(expected)} tokens")


def microseconds(form: Form, feeds: Feeds) -> float:
    """Return the mean time of a run over a few milliseconds, a token."""
    runs, begun = 0, time.perf_counter()
    while (spent := time.perf_counter() - begun) < TURN_S:
        form(feeds)
        runs += 1
    return 1e6 * spent / runs / len(feeds["ids"])


def measure(folder: Path, rounds: int = ROUNDS) -> dict[str, dict[str, tuple[float, float]]]:
    """Return microseconds a token by form, by number of tokens: the median and the least of interleaved rounds."""
    vocabulary = cards.read(folder).vocab_size
    taken: dict[str, dict[str, tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        forms_for = forms_of(folder, Path(beside))
        for tokens in SIZES:
            forms, feeds = forms_for(tokens), feeds_of(tokens, vocabulary)
            check(forms, feeds)
            seen: dict[str, list[float]] = {name: [] for name in forms}
            for _ in range(rounds):
                for name, form in forms.items():
                    seen[name].append(microseconds(form, feeds))
            taken[str(tokens)] = {name: (statistics.median(values), min(values)) for name, values in seen.items()}
    return taken


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
