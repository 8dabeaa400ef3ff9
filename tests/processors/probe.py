"""Embeds the golden texts of the demo model in float32 and int8, and saves the vectors.

    python -m tests.processors.probe FILE.npz FOLDER...

Each FOLDER holds both exported models; those that are missing are made.
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.artifacts.export import export
from models.artifacts.int8_encoder import Int8Options
from tests.minilm_golden import cases, checkpoint
from tests.onnx_sessions import open_session

PRECISIONS = {"float32": None, "int8": Int8Options()}


def vectors(model: Path) -> NDArray[np.float32]:
    """Return the normalised mean of each golden text's rows, one text a run."""
    session, means = open_session(model / "encoder.onnx"), []
    for case in cases():
        if not case.is_ids and not any(case.token_type_ids):
            ids = np.array(case.input_ids)
            feeds = {"ids": ids, "types": np.zeros_like(ids), "positions": np.arange(len(ids))}
            rows = session.run(None, feeds | {"mask": np.ones(len(ids), bool), "lengths": np.array([len(ids)])})[0]
            means.append(np.asarray(rows).mean(axis=0, dtype=np.float64))
    return np.array([mean / np.linalg.norm(mean) for mean in means], np.float32)


def golden() -> NDArray[np.float64]:
    """Return the vectors of sentence-transformers."""
    return np.array([case.unit for case in cases() if not case.is_ids and not any(case.token_type_ids)])


if __name__ == "__main__":
    found = {}
    for folder in map(Path, sys.argv[2:]):
        for precision, options in PRECISIONS.items():
            if not (folder / precision).exists():
                export(checkpoint(), folder / precision, int8=options)
            found[f"{folder.name} {precision}"] = vectors(folder / precision)
    np.savez(sys.argv[1], **found)
