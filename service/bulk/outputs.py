"""Writes the vectors of a run: a folder of parquet files, or one .parquet, .npy or .safetensors file.

Each part is a file that is written aside and appears whole, so that a run which was killed has to compute only what is
missing. One file is made of the parts at the end. Parts of arrays are npy files, which need no pyarrow.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from models.checkpoints import safetensors
from models.checkpoints.safetensors import TensorSource
from service.bulk.inputs import Rows
from service.bulk.plan import BulkRun, Part
from service.bulk.report import PartReport, written
from service.embedding.requests import Output
from service.errors import StartError

if TYPE_CHECKING:
    from service.bulk.embedder import Embedder

EMBEDDING = "embedding"  # column of a table
TENSOR = "embeddings"  # in a safetensors file
ARRAYS = (".npy", ".safetensors")
Published = Callable[[Path], None]
PLAN_FILE = "_plan.json"  # readers of parquet folders skip names that begin with _


def is_file(output: Path) -> bool:
    """Return whether the name is that of one output file instead of a folder of parquet files."""
    return output.suffix in (".parquet", *ARRAYS)


def folder(output: Path) -> Path:
    """Return the folder that holds the parts until the output is complete."""
    return output.with_name(f"{output.name}.parts") if is_file(output) else output


def report_of(output: Path) -> Path:
    """Return the path of a run's report: beside a file, inside a folder."""
    return output.with_name(f"{output.name}.report.json") if is_file(output) else output / "_report.json"


class Parts(ABC):
    """Writes each part of a run as one file, and joins them.

    Args:
        output: the file or folder that the run writes.
        embedder: computes the vectors.
        published: called with each file that is complete.
    """

    suffix: str

    def __init__(self, run: BulkRun, output: Path, embedder: "Embedder", published: Published) -> None:
        self._output, self._folder, self._published = output, folder(output), published
        self._dtype, self._shape = embedder.dtype, (run.rows, embedder.columns)

    def finished(self, part: Part) -> bool:
        """Return whether a part is complete."""
        return self._path(part).exists() and self._reports(part).exists()

    @abstractmethod
    def write(self, part: Part, first: int, rows: Sequence[Rows], present: NDArray[np.bool_], vectors: Output) -> None:
        """Add rows to a part.

        Args:
            first: number of the first row in its file.
            rows: the rows as they were read.
            present: which of them have vectors.

        Raises:
            StartError: one has none, or a value that the output cannot hold.
        """

    def close(self, part: Part, rows: PartReport) -> None:
        """Write the report of a complete part, and give the part its final name."""
        self._close()
        rows.write(self._reports(part))
        self._published(self._reports(part))
        publish(self._aside(part), self._path(part))
        self._published(self._path(part))

    def report(self, run: BulkRun) -> dict[str, int]:
        """Write the report of the whole run beside its vectors; return how many rows are of each kind."""
        counts = written(run, {part: self._reports(part) for part in run.parts()}, report_of(self._output))
        self._published(report_of(self._output))
        return counts

    def merge(self, parts: Sequence[Part]) -> None:
        """Write the parts as one file and remove their folder."""
        aside = self._folder / "whole"
        self._join([self._path(part) for part in parts], aside)
        publish(aside, self._output)
        self._published(self._output)
        remove(self._folder)

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def _join(self, paths: Sequence[Path], aside: Path) -> None: ...

    def _path(self, part: Part) -> Path:
        return self._folder / f"part-{part.number:05}{self.suffix}"

    def _reports(self, part: Part) -> Path:
        return self._folder / f"_part-{part.number:05}.json"

    def _aside(self, part: Part) -> Path:
        return self._folder / f"_part-{part.number:05}.tmp"


class ArrayParts(Parts):
    """Writes npy files, joined into one .npy or .safetensors file."""

    suffix = ".npy"

    _file: IO[bytes] | None = None

    def write(self, part: Part, first: int, rows: Sequence[Rows], present: NDArray[np.bool_], vectors: Output) -> None:
        """Add rows to a part; each needs a vector."""
        if not present.all():
            raise StartError(
                f"{part.path}: row {first + int(np.argmin(present))} has no vector, and {self._output.suffix} cannot "
                "leave it out: write parquet, which holds a null there"
            )
        if self._file is None:
            self._file = self._aside(part).open("wb")
            shape = (part.rows, self._shape[1])
            header = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(self._file, header)
        self._file.write(np.ascontiguousarray(vectors.rows, self._dtype).data)

    def _close(self) -> None:
        assert self._file is not None
        self._file.close()
        self._file = None

    def _join(self, paths: Sequence[Path], aside: Path) -> None:
        arrays = (np.load(path, mmap_mode="r") for path in paths)
        if self._output.suffix == ".npy":
            whole, at = np.lib.format.open_memmap(aside, "w+", self._dtype, self._shape), 0
            for rows in arrays:
                whole[at : (at := at + len(rows))] = rows
            whole.flush()
        else:
            vectors = TensorSource(TENSOR, safetensors.NAMES[self._dtype], self._shape, arrays)
            safetensors.write(aside, [vectors])


def publish(aside: Path, path: Path) -> None:
    """Flush a complete file to disk and give it its final name."""
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    aside.rename(path)


def remove(where: Path) -> None:
    """Remove the folder of the parts, the plan last: without it the rest would belong to no run."""
    for path in sorted(where.iterdir(), key=lambda path: path.name == PLAN_FILE):
        path.unlink()
    where.rmdir()
