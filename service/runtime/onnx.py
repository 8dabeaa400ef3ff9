"""The ONNX Runtime engine, on CPU or CUDA."""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from models.artifacts.card import Card, Graph
from models.recipes.graph_names import ONE_ROW, ONE_TYPE
from models.tables import int8_matrices
from service.errors import StartError
from service.runtime import prepacked

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
CUDA_OPTIONS = {"arena_extend_strategy": "kSameAsRequested", "use_tf32": "0"}
SILENT = 4
SHRINK_ARENA = "memory.enable_memory_arena_shrinkage"
# Rows of one run of a row-wise graph on CPU; more run in chunks that fit the L2 cache, which also bounds what the arena
# grows to. Of 384 columns a chunk of 128 takes 10 to 20 % less time a row than one of 512, but costs 15 µs to bind.
ONE_RUN_ROWS = 512
CHUNK_ROWS = 128
# Bytes of matrices up to which a session of a graph with attention packs its own copy of them. Beyond, where there is
# none on disk (prepacked.py), it multiplies by the mapped file, which workers share: a Qwen3 of 0.6 B parameters is
# loaded in 0.5 s instead of 6 and takes 0.06 GB instead of 1.8, but 24 tokens take 1.45 times as long, 192 tokens 1.37
# times and 512 as long.
MAX_PACKED = 3 << 29
PLAIN_RUN = ort.RunOptions()  # a run without options makes its own, which takes 1.5 µs
FEW_ROWS = 32  # rows for which a single segment id saves less than the 0.5 µs that it takes to find it


class Sessions(dict[str, ort.InferenceSession]):
    """Sessions by their graph's name; a missing one is opened when it is first needed.

    Args:
        open_: opens the session of a graph.
    """

    def __init__(self, open_: Callable[[str], ort.InferenceSession]) -> None:
        super().__init__()
        self._open, self._lock = open_, threading.Lock()

    def __missing__(self, name: str) -> ort.InferenceSession:
        with self._lock:
            if name not in self:
                self[name] = self._open(name)
        return self[name]


class OnnxEngine:
    """The sessions of one exported model; runs may come from several threads at once.

    Args:
        device: "cpu" or "cuda".
        sessions: sessions by the name of their graph, those of row_graphs by their file's.
        graphs: graphs of the card, by name.
        runs: best number of concurrent runs of one graph with attention.
        alone: the same graphs with all threads in one run.
        packed: whether sessions of graphs with attention have packed copies of their matrices.
        rows: the card's row_graphs, by the name of the graph that they are a form of.
    """

    def __init__(
        self,
        device: str,
        sessions: Mapping[str, ort.InferenceSession],
        graphs: Mapping[str, Graph],
        runs: int = 1,
        alone: "OnnxEngine | None" = None,
        packed: bool = True,
        rows: Mapping[str, str] | None = None,
    ) -> None:
        self.device = device
        self.runs, self.alone = runs, alone
        self._doubled = set() if packed else {name for name, graph in graphs.items() if graph.attends}
        self._sessions = sessions
        self._graphs = graphs
        self._rows = rows = rows or {}
        rowwise = {name for name, graph in graphs.items() if not (graph.attends or graph.pools)}
        self._chunked = rowwise if device == "cpu" else set()
        self.widths: Mapping[str, int] = _widths(sessions, graphs, rows)
        here = [name for name in graphs if rows.get(name, name) in sessions]
        self._one_type = {name for name in here if _takes_one_type(sessions[rows.get(name, name)])}
        self._to_shrink: dict[str, int] = {}  # the runs of each graph that are still to shrink its arena

    @property
    def opened(self) -> frozenset[str]:
        """The graphs that have sessions; those of row_graphs by their file's name."""
        return frozenset(self._sessions)

    def run(self, graph: str, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Return the outputs of a graph; many rows of a row-wise graph run in chunks, with the same values."""
        key = self._rows[graph] if graph in self._rows and ONE_ROW in outputs else graph
        session, rename = self._sessions[key], self._graphs[graph].rename
        names = [rename.get(name, name) for name in outputs] if rename else outputs
        if graph in self._one_type and len(feeds["types"]) > FEW_ROWS and not np.count_nonzero(feeds["types"]):
            feeds = {**feeds, "types": feeds["types"][:1]}
        if graph in self._chunked and len(next(iter(feeds.values()))) > ONE_RUN_ROWS:
            return _run_in_chunks(session, feeds, names)
        options = self._run_options(key) if self._to_shrink else PLAIN_RUN
        if graph in self._doubled and len(feeds["mask"]) == 1:
            return _run_doubled(session, feeds, names, options)
        # of 16 rows of 384: 13.8 µs; with arrays that stay bound 12.6 µs, of 32 rows as much; bound anew 20 µs (1.31)
        arrays: list[NDArray[Any]] = session.run(names, feeds, options)
        return arrays

    def shrink(self) -> None:
        """Make the next runs of each graph free the unused memory of its arena.

        An arena keeps what its longest run needed, and shrinking it after every run would cost the next one its page
        faults. It gives no part back that another run is using, so two runs shrink it where several go on at a time. On
        CUDA nothing is done: `gpu_memory_bytes` bounds the arena there.
        """
        if self.device == "cpu":
            self._to_shrink = dict.fromkeys(self._sessions, min(2, self.runs))
        if self.alone is not None:
            self.alone.shrink()

    def _run_options(self, key: str) -> ort.RunOptions:
        left = self._to_shrink.get(key, 0)
        if not left:
            return PLAIN_RUN
        self._to_shrink = {name: runs for name, runs in (self._to_shrink | {key: left - 1}).items() if runs}
        options = ort.RunOptions()
        options.add_run_config_entry(SHRINK_ARENA, "cpu:0")
        return options


def load(
    folder: Path,
    card: Card,
    device: str,
    threads: int,
    gpu_memory_bytes: int = 0,
    twice: bool = False,
    prepacked_bytes: int = 0,
    gpu: int = 0,
) -> OnnxEngine:
    """Return an engine with a session for every graph of the card; tables stay on disk and are mapped.

    Runs of one thread each use cores best: on two cores two of them give 15 % more texts a second than one run of two
    threads. A run that has the machine to itself is done in half the time with two threads. Since a session has its own
    copy of the weights of its matrix products, there are sessions for both only where memory allows.

    Args:
        device: auto takes CUDA where a session really gets it; cuda fails where it does not.
        threads: threads for graphs that contain attention and the output head; others run on the calling thread.
        gpu_memory_bytes: bytes of the arena of each graph on CUDA; 0: no limit.
        twice: whether there is memory for the weights of graphs with attention twice.
        prepacked_bytes: bytes that the copy of a graph, packed for this processor, may take beside the model.
        gpu: number of the GPU on CUDA.

    Raises:
        StartError: CUDA was asked for and is missing, or ONNX Runtime rejects a graph; one line.
    """
    ort.set_default_logger_severity(SILENT)  # what matters is raised, in one line
    chosen = providers(device, gpu_memory_bytes, gpu)
    graphs, rows = card.every_graph, card.row_graphs.files if card.row_graphs else {}
    matrices = _matrix_bytes(card)
    packed = not card.encoder or matrices <= MAX_PACKED
    size = card.bytes + matrices
    kept = matrices >= prepacked.MIN_BYTES and size <= prepacked_bytes and chosen == [CPU]
    copies = prepacked.Copies(folder, card, size) if kept else None
    opened = partial(_opened, folder, graphs, rows, chosen, packed, copies)
    sessions = opened(threads, graphs)
    devices = {"cuda" if session.get_providers()[0] == CUDA else "cpu" for session in sessions.values()}
    if device == "cuda" and devices != {"cuda"}:
        raise StartError(
            "device cuda was asked for, but ONNX Runtime got no CUDA device: install requirements/gpu.txt on a machine "
            "with an NVIDIA driver, or use --device auto"
        )
    if devices == {"cuda"}:
        return OnnxEngine("cuda", sessions, graphs, rows=rows)
    attending = {name: graph for name, graph in graphs.items() if graph.attends}
    if threads == 1 or not (twice or not packed) or not attending:
        return OnnxEngine("cpu", sessions, graphs, packed=packed, rows=rows)
    single = opened(1, attending)
    single.update({name: sessions.pop(name) for name in list(sessions) if name not in single})
    alone = OnnxEngine("cpu", sessions, attending, packed=packed, rows=rows)
    return OnnxEngine("cpu", single, graphs, threads, alone, packed, rows)


def _opened(
    folder: Path,
    graphs: Mapping[str, Graph],
    rows: Mapping[str, str],
    providers: list[Any],
    packed: bool,
    copies: prepacked.Copies | None,
    threads: int,
    chosen: Mapping[str, Graph],
) -> Sessions:
    """Open a session of each chosen graph; of a graph with a form for one row only that, as few requests need both.

    Args:
        graphs: every graph of the card, by name.
        rows: the files of the forms for one row, by the name of the graph.
        copies: those from which graphs with attention are opened.
    """
    names = {file: name for name, file in rows.items()}

    def open_(name: str) -> ort.InferenceSession:
        graph = graphs[names.get(name, name)]
        file = name if name in names else graph.file
        return _session(folder / file, graph, providers, threads, packed, copies if graph.attends else None)

    sessions = Sessions(open_)
    for name in chosen:
        sessions[rows.get(name, name)]
    return sessions


def _matrix_bytes(card: Card) -> int:
    """Return the bytes of the weights that are not looked up by rows."""
    return card.bytes - sum([table.bytes for table in (card.tables or {}).values()])


def has_cuda() -> bool:
    """Return whether this onnxruntime is a build for CUDA; there may be no GPU."""
    return CUDA in ort.get_available_providers()


def explain_device(device: str) -> str:
    """Return why a model runs on its device, for the start-up line."""
    if device == "cuda":
        return "CUDA found"
    if has_cuda():
        return "onnxruntime-gpu found no usable CUDA device"
    return "this onnxruntime is the CPU build"


def providers(device: str, gpu_memory_bytes: int = 0, gpu: int = 0) -> list[Any]:
    """Return the providers of a session, with their options.

    Args:
        device: as for `load`.
        gpu_memory_bytes: bytes of the arena on CUDA; 0: no limit.
        gpu: number of the GPU.
    """
    if device == "cpu" or not has_cuda():
        return [CPU]
    ort.preload_dlls()  # finds the CUDA and cuDNN wheels
    limit = {"gpu_mem_limit": str(gpu_memory_bytes)} if gpu_memory_bytes else {}
    return [(CUDA, CUDA_OPTIONS | limit | {"device_id": str(gpu)}), CPU]


def _session(
    path: Path,
    graph: Graph,
    providers: list[Any],
    threads: int,
    packed: bool,
    copies: prepacked.Copies | None,
) -> ort.InferenceSession:
    try:
        session = copies.open(path.name, partial(_options, graph, threads, True)) if copies else None
        return session or ort.InferenceSession(str(path), _options(graph, threads, packed), providers=providers)
    except Exception as error:  # onnxruntime raises a class of its own for every status
        reason = str(error).strip().splitlines()[0]
        raise StartError(f"{path} cannot be loaded: {reason}; export the model again") from error


def _options(graph: Graph, threads: int, packed: bool) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = SILENT
    heavy = graph.attends or graph.outputs == ("logits",)
    options.intra_op_num_threads = threads if heavy else 1
    options.inter_op_num_threads = 1
    # threads that wait within a run spin: one text alone takes 4.7 ms, not 6.4, and less processor time; between runs
    # they sleep, since the event loop needs the core
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if graph.attends and not packed:
        options.add_session_config_entry("session.disable_prepacking", "1")
    for key, value in int8_matrices.session_entries().items():
        options.add_session_config_entry(key, value)
    return options


def _widths(
    sessions: Mapping[str, ort.InferenceSession], graphs: Mapping[str, Graph], rows: Mapping[str, str]
) -> dict[str, int]:
    """Return the width of every output whose name has one in the card."""
    widths: dict[str, int] = {}
    for name, graph in graphs.items():
        names = {theirs: ours for ours, theirs in graph.rename.items()}
        if name in rows:
            names[ONE_ROW] = graph.outputs[0]  # as wide as that of all rows
        key = rows.get(name, name)
        for output in sessions[key].get_outputs() if key in sessions else ():
            if output.shape and isinstance(output.shape[-1], int):
                widths[names.get(output.name, output.name)] = output.shape[-1]
    return widths


def _takes_one_type(session: ort.InferenceSession) -> bool:
    """Return whether one segment id may stand for those of all rows."""
    return any(each.name == "types" and each.shape == [ONE_TYPE] for each in session.get_inputs())


def _run_doubled(
    session: ort.InferenceSession,
    feeds: Mapping[str, NDArray[Any]],
    names: Sequence[str],
    options: ort.RunOptions,
) -> list[NDArray[Any]]:
    """Return the outputs for one token, run as two sequences of it: for a single row ONNX Runtime takes another kernel
    with other bits, unless the matrix is packed."""
    twice = {name: np.repeat(value, 2, axis=0) for name, value in feeds.items()}
    arrays: list[NDArray[Any]] = session.run(names, twice, options)
    return [array[:1] for array in arrays]


def _run_in_chunks(
    session: ort.InferenceSession, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]
) -> list[NDArray[Any]]:
    """Return the outputs of a row-wise graph, written in place chunk by chunk."""
    total = len(next(iter(feeds.values())))
    widths = {output.name: output.shape[1] for output in session.get_outputs()}
    buffers = [_aligned((total, widths[name])) for name in outputs]
    addresses = [buffer.ctypes.data for buffer in buffers]
    binding = session.io_binding()
    for start in range(0, total, CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, total)
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array if len(array) == 1 else np.ascontiguousarray(array[start:stop]))
        for name, address in zip(outputs, addresses, strict=True):
            shape, first = (stop - start, widths[name]), address + 4 * start * widths[name]
            binding.bind_output(name, "cpu", 0, np.float32, shape, first)
        session.run_with_iobinding(binding)
    return buffers


def _aligned(shape: tuple[int, int]) -> NDArray[np.float32]:
    """Return a float32 array that starts on a cache line; ONNX Runtime 1.31 writes other arrays a quarter slower."""
    size = shape[0] * shape[1] * 4
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(np.float32).reshape(shape)
