"""ONNX Runtime, on CPU or CUDA. The only module of service/ that imports onnxruntime."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from models.artifacts.card import Card, Graph
from service.errors import StartError

CHUNK = 512  # rows a run of a row-wise graph: keeps the arena small and the caches warm
SILENT = 4
CUDA = "CUDAExecutionProvider"
SHRINKS = "memory.enable_memory_arena_shrinkage"
CUDA_OPTIONS = {"arena_extend_strategy": "kSameAsRequested", "use_tf32": "0"}
log = logging.getLogger(__name__)


class OnnxEngine:
    """The sessions of one exported model. Runs may come from several threads at once."""

    def __init__(self, device: str, sessions: Mapping[str, ort.InferenceSession], graphs: Mapping[str, Graph]) -> None:
        self.device = device
        self._sessions = sessions
        self._graphs = graphs
        self._shrinking: set[str] = set()
        rowwise = {name for name, graph in graphs.items() if not (graph.attends or graph.pools)}
        self._chunked = rowwise if device == "cpu" else set()

    def run(self, graph: str, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Run one graph; rows of row-wise graphs go through in chunks."""
        session, rename = self._sessions[graph], self._graphs[graph].rename
        own = [rename.get(name, name) for name in outputs] if rename else list(outputs)
        if graph in self._chunked and len(next(iter(feeds.values()))) > CHUNK:
            return _run_in_chunks(session, feeds, own)
        options = self._shrinks(graph) if self._shrinking else None
        # the public run first checks what a packed numpy feed never is, for 1.5 of 14 microseconds (1.31)
        arrays: list[NDArray[Any]] = session._sess.run(own, feeds, options)
        return arrays

    def shrink(self) -> None:
        """Let the next run of each graph, if it is no longer than a chunk, give back what its arena holds unused.

        An arena keeps what the longest run needed. Shrinking after every run costs the next its page faults. Nothing is
        done on CUDA, where `gpu_memory_bytes` bounds it.
        """
        if self.device == "cpu":
            self._shrinking = set(self._sessions)

    def _shrinks(self, graph: str) -> ort.RunOptions | None:
        if graph not in self._shrinking:
            return None
        self._shrinking = self._shrinking - {graph}
        options = ort.RunOptions()
        options.add_run_config_entry(SHRINKS, "cpu:0")
        return options


def load(folder: Path, card: Card, device: str, threads: int, gpu_memory_bytes: int = 0) -> OnnxEngine:
    """Sessions for every graph of the card; tables stay on disk and are mapped.

    device   auto takes CUDA where a session really gets it; cuda fails where it does not
    threads  for graphs that mix rows; row-wise graphs run on the calling thread
    gpu_memory_bytes   that the arena of each graph may take on CUDA; 0: what there is
    raises   StartError in one line: no CUDA where it was asked for, or a graph ONNX Runtime refuses
    """
    ort.set_default_logger_severity(SILENT)  # what matters is raised, and told in one line
    providers = _providers(device, gpu_memory_bytes)
    graphs = card.every_graph.items()
    sessions = {name: _session(folder / graph.file, graph, providers, threads) for name, graph in graphs}
    got = {_device_of(session) for session in sessions.values()}
    if device == "cuda" and got != {"cuda"}:
        raise StartError(
            "device cuda was asked for, but ONNX Runtime got no CUDA device: install requirements/gpu.txt on a machine "
            "with an NVIDIA driver, or use --device auto"
        )
    return OnnxEngine("cuda" if got == {"cuda"} else "cpu", sessions, card.every_graph)


def why(device: str) -> str:
    """Why a model runs where it does, for the start-up line."""
    if device == "cuda":
        return "CUDA found"
    if CUDA in ort.get_available_providers():
        return "onnxruntime-gpu found no usable CUDA device"
    return "this onnxruntime is the CPU build"


def _providers(device: str, gpu_memory_bytes: int) -> list[Any]:
    if device == "cpu" or CUDA not in ort.get_available_providers():
        return ["CPUExecutionProvider"]
    ort.preload_dlls()  # finds the CUDA and cuDNN wheels
    bound = {"gpu_mem_limit": str(gpu_memory_bytes)} if gpu_memory_bytes else {}
    return [(CUDA, CUDA_OPTIONS | bound), "CPUExecutionProvider"]


def _session(path: Path, graph: Graph, providers: list[Any], threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = SILENT
    heavy = graph.attends or graph.outputs == ("logits",)
    options.intra_op_num_threads = threads if heavy else 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the event loop needs the core
    try:
        return ort.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # onnxruntime raises a class of its own for every status
        reason = str(error).strip().splitlines()[0]
        raise StartError(f"{path} cannot be loaded: {reason}; export the model again") from error


def _device_of(session: ort.InferenceSession) -> str:
    return "cuda" if session.get_providers()[0] == CUDA else "cpu"


def _run_in_chunks(
    session: ort.InferenceSession, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]
) -> list[NDArray[Any]]:
    total = len(next(iter(feeds.values())))
    widths = {output.name: output.shape[1] for output in session.get_outputs()}
    buffers = [_aligned((total, widths[name])) for name in outputs]
    binding = session.io_binding()
    for start in range(0, total, CHUNK):
        rows = slice(start, min(start + CHUNK, total))
        for name, array in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array[rows]))
        for name, buffer in zip(outputs, buffers, strict=True):
            part = buffer[rows]
            binding.bind_output(name, "cpu", 0, np.float32, part.shape, part.ctypes.data)
        session.run_with_iobinding(binding)
    return buffers


def _aligned(shape: tuple[int, int]) -> NDArray[np.float32]:
    """A float32 array that starts on a cache line; ONNX Runtime writes to others a quarter slower (1.31, measured)."""
    size = shape[0] * shape[1] * 4
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(np.float32).reshape(shape)
