"""Opens ONNX Runtime sessions as the service does: its options make int8 products exact on every processor."""

from collections.abc import Mapping
from pathlib import Path

import onnxruntime

from models.tables.int8_matrices import session_entries


def open_session(model: Path | bytes, entries: Mapping[str, str] | None = None) -> onnxruntime.InferenceSession:
    """Return a session of one thread on the CPU.

    Args:
        model: the path of a graph, or its bytes.
        entries: the session's configuration; None: the one that the service uses on this processor.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for key, value in (session_entries() if entries is None else entries).items():
        options.add_session_config_entry(key, value)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
