"""The OpenVINO engine: encoders in bfloat16 if the processor multiplies it; every other graph in ONNX Runtime.

OpenVINO's matrix products depend on the shape of their input, so a text padded to its batch would get other bits in
other company. Here each text is padded to a multiple of BUCKET tokens, alone as in a batch, and batches hold texts of
one such length: then its bits are always the same (tests/service/runtime/test_openvino.py).

A compiled model is not kept on disk. The weights are packed in the first run, which OpenVINO's cache does not save:
with it MiniLM is loaded in 0.23 s instead of 0.36 and a BERT-large in 0.90 instead of 0.65, for its weights on disk
once more; and of three processes that start at once with one folder some end by SIGBUS (2026.4).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray

from models.artifacts.card import Card
from models.checkpoints import safetensors
from models.checkpoints.safetensors import DTYPES
from models.recipes.steps import tensors
from service.errors import StartError
from service.runtime.engine import Engine, Precision
from service.runtime.openvino_graph import blocks, is_known

BUCKET = 16  # tokens
HIDDEN = "last_hidden_state"
INPUT_ROWS = "input_embeddings"
HINTS = {"bfloat16": "bf16", "float32": "f32"}
VERSION: str = openvino.__version__.partition("-")[0]

Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]


class OpenVinoEngine:
    """One exported model, whose graph `encoder` OpenVINO runs; runs may come from several threads at once.

    Args:
        encoder: the blocks, compiled.
        name: name of the graph they belong to.
        rows: runs every other graph.
        input_layer: the graph of `rows` that gives the input of the blocks, and the inputs it reads.
        runs: best number of concurrent runs of the encoder.
        alone: the same with all threads in one run.
    """

    device = "cpu"

    def __init__(
        self,
        encoder: openvino.CompiledModel,
        name: str,
        rows: Engine,
        input_layer: tuple[str, Sequence[str]],
        runs: int = 1,
        alone: "OpenVinoEngine | None" = None,
    ) -> None:
        self.widths: Mapping[str, int] = rows.widths
        self.runs, self.alone = runs, alone
        self._encoder = encoder
        self._name = name
        self._rows = rows
        self._input_layer, self._inputs = input_layer
        self._requests: SimpleQueue[openvino.InferRequest] = SimpleQueue()  # requests that no run is using

    def run(self, graph: str, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Return the outputs of a graph."""
        if graph != self._name:
            return self._rows.run(graph, feeds, outputs)
        read = {name: feeds[name] for name in self._inputs}
        (rows,) = self._rows.run(self._input_layer, read, (INPUT_ROWS,))
        try:
            request = self._requests.get_nowait()
        except Empty:
            request = self._encoder.create_infer_request()
        try:
            return [_encode(request, rows, feeds["mask"], feeds["lengths"])]
        finally:
            self._requests.put(request)

    def shrink(self) -> None:
        """Free the memory that longer runs needed; runs that are under way are awaited."""
        self._encoder.release_memory()
        if self.alone is not None:
            self.alone.shrink()


def fault(card: Card) -> str | None:
    """Return why OpenVINO cannot run the encoder of a model; None if it can."""
    attending = [name for name, graph in card.graphs.items() if graph.attends and graph.layout != "image"]
    if not attending:
        return "it has no encoder"
    if not card.encoder or not card.weights or card.graphs[attending[0]].outputs != (HIDDEN,):
        return "it was adopted as ONNX"
    if card.quantized:
        return f"its encoder is {card.quantized.dtype}"
    if not all(map(is_known, card.encoder)):
        return "its encoder has steps that the OpenVINO engine does not know"
    if _input_layer(card) is None:
        return "it has no graph of its input layer alone"
    return None


def load(
    folder: Path, card: Card, rows: Engine, precision: Precision, threads: int, twice: bool = False
) -> OpenVinoEngine:
    """Return an engine for a model that has no `fault`; its weights are mapped, and workers share those pages.

    A run that has the machine to itself takes three fifths of the time with two threads.

    Args:
        folder: folder of the exported model.
        rows: runs every graph but the encoder.
        precision: precision of matrix products; all sums are float32.
        threads: number of threads and of concurrent runs, each on one thread.
        twice: whether there is memory for the packed weights twice, so that a single run may have all threads.

    Raises:
        StartError: OpenVINO rejects the model; one line.
    """
    name = next(name for name, graph in card.graphs.items() if graph.attends)
    input_layer = _input_layer(card)
    assert input_layer is not None
    try:
        model = blocks(card.encoder, _weights(folder, card), card.hidden_size)
        single = _compiled(model, precision, threads, threads)
        whole = _compiled(model, precision, 1, threads) if twice and threads > 1 else None
    except RuntimeError as error:  # openvino raises no class of its own
        reason = str(error).strip().splitlines()[-1]
        raise StartError(f"OpenVINO {VERSION} cannot compile {card.name}: {reason}; use --engine onnx") from error
    alone = OpenVinoEngine(whole, name, rows, input_layer) if whole else None
    return OpenVinoEngine(single, name, rows, input_layer, threads, alone)


def _compiled(model: openvino.Model, precision: Precision, streams: int, threads: int) -> openvino.CompiledModel:
    options = {
        "INFERENCE_PRECISION_HINT": HINTS[precision],
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,  # else every worker pins its threads to the same cores
    }
    return openvino.Core().compile_model(model, "CPU", options)


def _weights(folder: Path, card: Card) -> dict[str, NDArray[Any]]:
    """Return the encoder's tensors, mapped copy-on-write: OpenVINO copies arrays that are not writable."""
    placed = safetensors.read_header(folder / (card.weights or ""))
    return {
        name: np.memmap(placed[name].path, DTYPES[placed[name].dtype], "c", placed[name].offset, placed[name].shape)
        for name in tensors(card.encoder)
    }


def _input_layer(card: Card) -> tuple[str, tuple[str, ...]] | None:
    """Return the graph that computes the rows before the first block from the encoder's inputs, and its inputs."""
    read = {name for graph in card.graphs.values() if graph.attends for name in graph.inputs}
    for name, graph in card.graphs.items():
        if graph.outputs == (INPUT_ROWS,) and set(graph.inputs) == read - {"lengths", "mask"} | (
            {"mask"} & set(graph.inputs)
        ):
            return name, graph.inputs
    return None


def _encode(request: openvino.InferRequest, rows: Floats, mask: NDArray[np.bool_], lengths: Int64s) -> Floats:
    """Return last_hidden_state [N, d] of packed rows."""
    hidden = np.empty_like(rows)
    starts = np.cumsum(lengths) - lengths
    for size, members in _buckets(lengths):
        tokens = lengths[members]
        real = np.arange(size) < tokens[:, None]  # (B, S)
        places = (starts[members][:, None] + np.arange(size))[real]  # (n,), rows of this bucket
        padded = np.zeros((*real.shape, rows.shape[1]), np.float32)
        padded[real] = rows[places]
        (output,) = request.infer([padded, _keys(real, mask[places])], share_inputs=True, share_outputs=True).values()
        hidden[places] = output[real]
    return hidden


def _buckets(lengths: Int64s) -> Iterator[tuple[int, Int64s]]:
    """Yield each padded length with the sequences that have it."""
    sizes = -(-lengths // BUCKET) * BUCKET
    for size in np.unique(sizes):
        yield int(size), np.flatnonzero(sizes == size)


def _keys(real: NDArray[np.bool_], mask: NDArray[np.bool_]) -> Floats:
    """Return what is added to the scores of each slot: -inf for padding and masked tokens, unless all are."""
    attended = real.copy()
    attended[real] = mask
    attended |= real & ~attended.any(axis=1, keepdims=True)
    return np.where(attended, np.float32(0), np.float32(-np.inf))
