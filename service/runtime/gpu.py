"""The engine of encoders on GPUs: the graph of models/graphs/rectangle.py, one session a GPU; others as before.

A batch sends its indices, some 60 bytes a token, and takes back one row a text where the graph may pool: copies that
need no binding to hide them. Shapes differ with every batch, so ONNX Runtime plans no memory by them.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import onnxruntime as ort
from numpy.typing import NDArray

from models.artifacts.card import Card
from models.artifacts.graph_files import encoder_for_gpus
from models.checkpoints import safetensors
from models.graphs import rectangle
from models.recipes.graph_names import HIDDEN, ONE_ROW
from models.recipes.score_terms import MASKED
from service.errors import StartError, Unavailable
from service.runtime import onnx
from service.runtime.engine import Engine, Precision

ELEMENTS: dict[Precision, str] = {"float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}
NO_MEMORY = ("Failed to allocate memory", "out of memory")  # of ONNX Runtime's arena, and of CUDA
Sessions = Mapping[str, ort.InferenceSession]


class GpuEngine:
    """One exported model, whose graphs with attention have sessions of their own; runs may come from several threads.

    Args:
        rows: runs every other graph.
        sessions: of each GPU, by the name of the graph.
        width: width of a row of the encoder.
        pooling: key of rectangle.SHARES that ONE_ROW is pooled by; None: it is not an output.
        masked: what is added to the scores of masked rows.
    """

    alone = None

    def __init__(
        self, rows: Engine, sessions: Sequence[Sessions], width: int, pooling: str | None, masked: float
    ) -> None:
        self.device, self.runs, self.pooling = rows.device, len(sessions), pooling
        self.widths: Mapping[str, int] = {**rows.widths, HIDDEN: width, ONE_ROW: width}
        self._rows, self._masked, self._names = rows, masked, frozenset(sessions[0])
        self._free: SimpleQueue[Sessions] = SimpleQueue()  # sessions of GPUs that no run is using
        for each in sessions:
            self._free.put(each)

    def run(self, graph: str, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Return the outputs of a graph, from whichever GPU is free."""
        if graph not in self._names:
            return self._rows.run(graph, feeds, outputs)
        sent = rectangle.feeds(feeds["mask"], feeds["lengths"], self.pooling, self._masked)
        sessions = self._free.get()
        try:
            arrays: list[NDArray[Any]] = sessions[graph].run(outputs, {**feeds, **sent}, onnx.PLAIN_RUN)
            return arrays
        except Exception as error:  # onnxruntime raises a class of its own for every status
            if any(words in str(error) for words in NO_MEMORY):
                raise Unavailable(
                    "the GPU has no memory for this batch",
                    remedy="send fewer or shorter texts, or try again in a moment; the operator may lower "
                    "INLAY_MAX_BATCH_TOKENS",
                ) from error
            raise
        finally:
            self._free.put(sessions)

    def shrink(self) -> None:
        """Do nothing: `gpu_memory_bytes` bounds the arenas."""


def fault(card: Card) -> str | None:
    """Return why the encoder has no form for GPUs; None if it has."""
    attending = [graph for graph in card.graphs.values() if graph.attends and graph.layout != "image"]
    if not attending:
        return "it has no encoder"
    if not card.encoder or not card.weights or any(graph.outputs != (HIDDEN,) for graph in attending):
        return "it was adopted as ONNX"
    return f"its encoder is {card.quantized.dtype}" if card.quantized else None


def pooling(card: Card) -> str | None:
    """Return the pooling by which the graph makes the vector of a text; None: the service pools rows."""
    return card.mask_pooling if card.mask_pooling in rectangle.SHARES else None


def load(
    folder: Path, card: Card, rows: Engine, dtype: Precision, gpus: Sequence[int] = (), gpu_memory_bytes: int = 0
) -> GpuEngine:
    """Return an engine for a model that has no `fault`.

    Args:
        folder: folder of the exported model.
        rows: runs every graph without attention.
        dtype: of matrix products and attention; weights are cast to it here.
        gpus: numbers of the GPUs; none: every one that there is.
        gpu_memory_bytes: bytes of the arena of each graph; 0: no limit.

    Raises:
        StartError: ONNX Runtime rejects a graph, or has no such GPU; one line.
    """
    placed = safetensors.read_header(folder / (card.weights or ""))
    names = [name for name, graph in card.graphs.items() if graph.attends and graph.layout != "image"]
    graphs = {name: encoder_for_gpus(card, name, placed, ELEMENTS[dtype]) for name in names}
    sessions: list[Sessions] = []
    for number in gpus or count():
        try:
            sessions.append({name: _session(folder, graphs[name], number, gpu_memory_bytes) for name in names})
        except StartError:
            if gpus or not sessions:
                raise
            break
    masked = rectangle.FLOAT16_MASKED if dtype == "float16" else MASKED
    return GpuEngine(rows, sessions, card.token_width, pooling(card), masked)


def _session(folder: Path, graph: bytes, gpu: int, gpu_memory_bytes: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = onnx.SILENT
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    try:
        session = ort.InferenceSession(graph, options, providers=onnx.providers("cuda", gpu_memory_bytes, gpu))
    except Exception as error:  # onnxruntime raises a class of its own for every status
        reason = str(error).strip().splitlines()[0]
        raise StartError(f"{folder}: its encoder cannot be loaded on GPU {gpu}: {reason}") from error
    if session.get_providers()[0] != onnx.CUDA:
        raise StartError(f"there is no GPU {gpu}: set INLAY_GPUS to the numbers of those there are, or to all")
    return session
