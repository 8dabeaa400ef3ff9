"""Writes a positional Table to a file in the format of its suffix, a block at a time.

.npy           one array; several outputs of one shape are stacked, cos before sin
.safetensors   every output under its name, how it was made as metadata
.json          how it was made, and every value
"""

import json
import os
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models import VERSION
from models.checkpoints import safetensors
from models.checkpoints.hub import Progress, no_progress
from models.checkpoints.safetensors import TensorSource
from models.errors import BadEncoding
from models.positions.table import BLOCK_VALUES, DTYPES, Output, Table, rounded

_JSON_VALUES = 1 << 22

Write = Callable[[Table, Path, str, Progress], None]


def write(table: Table, path: Path, dtype: str = "float32", progress: Progress = no_progress) -> None:
    """Write a table; a failure or a stop leaves no partial file.

    Args:
        table: the table.
        path: its suffix is one of FORMATS.
        dtype: one of table.DTYPES, for float outputs.
        progress: receives the rows computed.

    Raises:
        BadEncoding: no format has the suffix or the dtype.
        OSError: a file cannot be written.
    """
    if path.suffix not in FORMATS:
        raise BadEncoding(f"{path} ends in {path.suffix or 'nothing'!r}; a table is written as {', '.join(FORMATS)}")
    if dtype not in DTYPES:
        raise BadEncoding(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        FORMATS[path.suffix](table, aside, dtype, progress)
        aside.replace(path)
    except OSError as error:
        if error.filename == str(aside):  # a name the caller does not know
            error.filename = str(path)
        raise
    finally:
        aside.unlink(missing_ok=True)


def blocks(output: Output, dtype: str) -> Iterator[NDArray[Any]]:
    """Yield the output's rows in blocks of about BLOCK_VALUES, rounded once."""
    rows = max(1, BLOCK_VALUES // output.width)
    for start in range(0, output.count, rows):
        values = output.rows(start, min(start + rows, output.count))
        yield rounded(values, dtype) if output.kind == "float" else values


def description(table: Table) -> dict[str, Any]:
    """Return how the values were made, JSON-ready."""
    made = {"scheme": table.scheme, "arithmetic": table.arithmetic, "tool": f"inlay {VERSION}"}
    return made | dict(table.facts) | {"notes": list(table.notes)}


def _counted(table: Table, dtype: str, progress: Progress) -> Iterator[tuple[str, Iterator[NDArray[Any]]]]:
    """Yield each output and its blocks, and report every block to `progress`."""
    total, done = sum(output.count for output in table.outputs.values()), 0

    def reported(output: Output) -> Iterator[NDArray[Any]]:
        nonlocal done
        for block in blocks(output, dtype):
            yield block
            done += len(block)
            progress("computing", done, total)

    for name, output in table.outputs.items():
        yield name, reported(output)


def _npy(table: Table, path: Path, dtype: str, progress: Progress) -> None:
    if dtype == "bfloat16":
        raise BadEncoding(".npy has no bfloat16: write .safetensors, or another dtype")
    shapes = {name: (output.shape, output.kind) for name, output in table.outputs.items()}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {list(shape)}" for name, (shape, _) in shapes.items())
        raise BadEncoding(f".npy holds one array and these have different shapes: {listed}; write .safetensors")
    shape, kind = next(iter(shapes.values()))
    element = np.dtype(DTYPES[dtype] if kind == "float" else kind)
    header = {"descr": np.lib.format.dtype_to_descr(element.newbyteorder("<")), "fortran_order": False}
    with path.open("wb") as file:
        whole = shape if len(shapes) == 1 else (len(shapes), *shape)
        np.lib.format.write_array_header_1_0(file, header | {"shape": whole})
        for block in chain.from_iterable(part for _, part in _counted(table, dtype, progress)):
            file.write(np.ascontiguousarray(block).view(np.uint8).data)


def _safetensors(table: Table, path: Path, dtype: str, progress: Progress) -> None:
    sources = []
    for name, part in _counted(table, dtype, progress):
        output = table.outputs[name]
        element = np.dtype(DTYPES[dtype] if output.kind == "float" else output.kind)
        sources.append(TensorSource(name, safetensors.NAMES[element], output.shape, part))
    metadata = {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in description(table).items()
    }
    safetensors.write(path, sources, metadata)


def _json(table: Table, path: Path, dtype: str, progress: Progress) -> None:
    if (values := sum(output.count * output.width for output in table.outputs.values())) > _JSON_VALUES:
        raise BadEncoding(f"{values:,} values are too many for .json (at most {_JSON_VALUES:,}): write .npy")
    outputs = {name: output.to_array(dtype).astype(float).tolist() for name, output in table.outputs.items()}
    path.write_text(json.dumps(description(table) | {"dtype": dtype} | outputs) + "\n", encoding="utf-8")


FORMATS: dict[str, Write] = {".npy": _npy, ".safetensors": _safetensors, ".json": _json}
