"""Copies of a model's graphs, optimised and packed for this processor, that sessions map instead of making their own.

ONNX Runtime packs matrices for its kernels anew in every session: MiniLM's two sessions hold 102 MB of them, those of
each worker again, and are ready in 0.3 s. From a copy on disk they hold 23 MB beside mapped pages that all workers
share, and are ready in half that time; answers are the same bit for bit.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import onnxruntime as ort

from models.artifacts.card import PREPACKED, Card
from service.machine import processor_flags

MIN_BYTES = 16 << 20  # of matrices: below, a copy saves less than a start needs to look for it
FREE_SHARE = 2  # times a copy's bytes that must be free on its disk
EXTERNAL_FILE = "session.optimized_model_external_initializers_file_name"
SAVE_PREPACKED = "session.save_external_prepacked_constant_initializers"
STAMPS = "stamps.json"  # of the files of a copy when it was made; written last


class Copies:
    """The copies of one model's graphs for this processor and ONNX Runtime.

    Args:
        folder: the exported model.
        card: its card.
        size: bytes of a copy.
    """

    def __init__(self, folder: Path, card: Card, size: int) -> None:
        files = {name: file.sha256 for name, file in card.files.items()}
        made_for = json.dumps([sorted(processor_flags()), files], sort_keys=True)
        self._folder, self._bytes = folder, size
        self._place = folder / PREPACKED / f"{ort.__version__}-{hashlib.sha256(made_for.encode()).hexdigest()[:16]}"

    def open(self, graph: str, options: Callable[[], ort.SessionOptions]) -> ort.InferenceSession | None:
        """Return a session of a graph's copy, made first where it is missing; None where it cannot be made or opened.

        Args:
            graph: the file of the graph.
            options: returns the options of a session, each time new ones.
        """
        with suppress(Exception):  # onnxruntime raises a class of its own for every status; the graph itself is left
            if not self._is_whole(graph):
                with _locked(self._folder):
                    if not self._is_whole(graph):  # another worker may have made it meanwhile
                        self._make(graph, options())
            ready = options()
            ready.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # it was optimised when saved
            return _opened(self._place / graph / graph, ready)
        return None

    def _is_whole(self, graph: str) -> bool:
        """Return whether a copy is there, none of its files changed since it was made."""
        try:
            stamps = json.loads((self._place / graph / STAMPS).read_text(encoding="utf-8"))
            return bool(stamps == _stamps(self._place / graph))
        except (OSError, ValueError):
            return False

    def _make(self, graph: str, options: ort.SessionOptions) -> None:
        for old in self._place.parent.glob("*"):  # of another version of ONNX Runtime
            if not old.name.startswith(f"{ort.__version__}-"):
                shutil.rmtree(old, ignore_errors=True)
        if shutil.disk_usage(self._folder).free < FREE_SHARE * self._bytes:
            raise OSError(f"{self._folder} has no room for copies of its graphs")
        made = self._place / f".{graph}"
        shutil.rmtree(made, ignore_errors=True)  # what a process that was killed left
        made.mkdir(parents=True)
        try:
            options.optimized_model_filepath = str(made / graph)
            options.add_session_config_entry(EXTERNAL_FILE, f"{graph}.data")
            options.add_session_config_entry(SAVE_PREPACKED, "1")
            _opened(self._folder / graph, options)
            (made / STAMPS).write_text(json.dumps(_stamps(made)), encoding="utf-8")
            shutil.rmtree(self._place / graph, ignore_errors=True)
            made.rename(self._place / graph)
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _opened(path: Path, options: ort.SessionOptions) -> ort.InferenceSession:
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _stamps(place: Path) -> dict[str, list[int]]:
    statuses = {path.name: path.stat() for path in place.iterdir() if path.name != STAMPS}
    return {name: [each.st_size, each.st_mtime_ns, each.st_ino] for name, each in sorted(statuses.items())}


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, for which others of the same machine wait."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
