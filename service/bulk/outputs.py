"""Writes the vectors of a run: a folder of parquet files, or one .parquet, .npy or .safetensors file.

A part is written aside and appears whole, so that a run which was killed has to compute only what is missing.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from service.bulk.plan import Part
from service.embedding.requests import Output
from service.errors import StartError
from service.http.formats import npy_header, safetensors_header

EMBEDDING = "embedding"  # column of a table
TENSOR = "embeddings"  # in a safetensors file
RANGES = "ranges"
ARRAYS = (".npy", ".safetensors")
PLAN_FILE = "_plan.json"  # readers of parquet folders skip names that begin with _


def is_file(output: Path) -> bool:
    """Return whether the name is that of one output file instead of a folder of parquet files."""
    return output.suffix in (".parquet", *ARRAYS)


def folder(output: Path) -> Path:
    """Return the folder that holds the parts until the output is complete."""
    return output.with_name(f"{output.name}.parts") if is_file(output) else output


class ParquetParts:
    """Writes each part as one parquet file in a folder.

    Args:
        where: the folder.
        kept: types of the columns that are copied.
        stored: dtype and columns of a vector.
        pooled: one vector a text; False: one a token.
        metadata: kept in each file.
        sparse: a struct of indices and values a text.
        name: name of the column of vectors.
    """

    def __init__(
        self,
        where: Path,
        kept: pa.Schema,
        stored: tuple[Any, int],
        pooled: bool,
        metadata: Mapping[str, Any],
        sparse: bool = False,
        name: str = EMBEDDING,
    ) -> None:
        self._folder = where
        dtype, columns = stored
        self._vector = pa.list_(pa.from_numpy_dtype(dtype), columns)
        self._pooled = pooled
        vectors = self._vector if pooled else pa.large_list(self._vector)
        if sparse:
            values = pa.list_(pa.from_numpy_dtype(dtype))
            vectors = pa.struct({"indices": pa.list_(pa.int32()), "values": values})
        column = pa.field(name, vectors)
        self._schema = pa.schema([*kept, column], {"inlay": json.dumps(metadata, sort_keys=True)})
        self._kept = [field.name for field in kept]
        self._writer: pq.ParquetWriter | None = None

    def finished(self, part: Part) -> bool:
        """Return whether a part is complete."""
        return self._path(part).exists()

    def write(self, part: Part, table: pa.Table, present: NDArray[np.bool_], vectors: Output) -> None:
        """Add rows to a part.

        Args:
            table: the rows as they were read.
            present: which of them have vectors.
        """
        if self._writer is None:
            self._writer = self._open(self._aside(part))
        column = self._column(present, vectors)
        copied = [table.column(name) for name in self._kept]
        self._writer.write_table(pa.Table.from_arrays([*copied, column], schema=self._schema).combine_chunks())

    def close(self, part: Part) -> None:
        """Give a complete part its final name."""
        assert self._writer is not None
        self._writer.close()
        self._writer = None
        publish(self._aside(part), self._path(part))

    def merge(self, parts: Sequence[Part], output: Path) -> None:
        """Write the parts as one file and remove their folder."""
        aside = self._folder / "whole"
        writer = self._open(aside)
        for part in parts:
            with pq.ParquetFile(self._path(part)) as file:
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group, use_threads=False).cast(self._schema))
        writer.close()
        publish(aside, output)
        remove(self._folder)

    def _open(self, path: Path) -> pq.ParquetWriter:
        texts = self._kept
        return pq.ParquetWriter(
            path,
            self._schema,
            compression={name: "zstd" for name in texts} or "none",
            use_dictionary=texts or False,
            write_statistics=texts or False,  # the least and largest value of vectors help no reader
        )

    def _column(self, present: NDArray[np.bool_], vectors: Output) -> pa.Array:
        flat = pa.array(vectors.rows.reshape(-1), self._vector.value_type)
        if vectors.indices is not None:
            return self._structs(present, vectors.indices, flat, vectors.lengths)
        rows = pa.FixedSizeListArray.from_arrays(flat, type=self._vector)
        if vectors.pooled:
            if present.all():
                return rows
            places = np.where(present, np.cumsum(present) - 1, 0)
            return rows.take(pa.array(places, mask=~present))
        lengths = np.zeros(len(present), np.int64)
        lengths[present] = vectors.lengths
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), mask=np.append(~present, False))
        return pa.LargeListArray.from_arrays(offsets, rows)

    def _structs(self, present: NDArray[np.bool_], indices: NDArray[np.int32], values: pa.Array, counts: Any) -> Any:
        lengths = np.zeros(len(present), np.int64)
        lengths[present] = counts
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        lists = [pa.ListArray.from_arrays(offsets, part) for part in (pa.array(indices), values)]
        return pa.StructArray.from_arrays(lists, names=["indices", "values"], mask=pa.array(~present))

    def _path(self, part: Part) -> Path:
        return self._folder / f"part-{part.number:05}.parquet"

    def _aside(self, part: Part) -> Path:
        return self._folder / f"_part-{part.number:05}.tmp"


class ArrayFile:
    """Writes all vectors into one array file, each part at its offset.

    Args:
        output: the file, which is written in `where` and renamed.
        where: a folder.
        rows: rows of all parts.
        stored: dtype and columns of a vector.
        limits: ranges of int8 and uint8 vectors, which are stored too.
    """

    def __init__(
        self, output: Path, where: Path, rows: int, stored: tuple[Any, int], limits: NDArray[np.float32] | None
    ) -> None:
        dtype, columns = stored
        self._output, self._folder = output, where
        self._limits = limits
        self._shape, self._dtype = (rows, columns), np.dtype(dtype)
        self._data = where / "data"
        self._header = npy_header(self._shape, self._dtype) if output.suffix == ".npy" else self._safetensors()
        self._file = os.open(self._data, os.O_RDWR | os.O_CREAT, 0o666)
        os.pwrite(self._file, self._header, 0)
        os.truncate(self._file, len(self._header) + rows * columns * self._dtype.itemsize)
        self._written = 0

    def finished(self, part: Part) -> bool:
        """Return whether a part is complete."""
        return self._mark(part).exists()

    def write(self, part: Part, table: pa.Table, present: NDArray[np.bool_], vectors: Output) -> None:
        """Add rows to a part.

        Raises:
            StartError: a text is missing.
        """
        if not present.all():
            raise StartError(
                f"{part.path}: row {part.start + self._written + int(np.argmin(present))} has no text, and "
                f"{self._output.suffix} cannot leave its vector out: write parquet, which holds a null there"
            )
        row = self._dtype.itemsize * self._shape[1]
        data = np.ascontiguousarray(vectors.rows).data.cast("B")
        place = len(self._header) + (part.offset + self._written) * row
        while data:
            written = os.pwrite(self._file, data, place)
            data, place = data[written:], place + written
        self._written += len(vectors.rows)

    def close(self, part: Part) -> None:
        """Record that a part is complete."""
        os.fdatasync(self._file)
        self._mark(part).touch()
        self._written = 0

    def merge(self, parts: Sequence[Part], output: Path) -> None:
        """Give the file its final name and remove the folder."""
        os.close(self._file)
        if self._limits is not None and output.suffix == ".npy":
            np.save(output.with_name(f"{output.stem}.{RANGES}.npy"), self._limits)
        publish(self._data, output)
        remove(self._folder)

    def _mark(self, part: Part) -> Path:
        return self._folder / f"part-{part.number:05}.done"

    def _safetensors(self) -> bytes:
        shapes = {TENSOR: (self._dtype, self._shape)}
        if self._limits is None:
            return safetensors_header(shapes, {})
        return (
            safetensors_header({RANGES: (self._limits.dtype, self._limits.shape)} | shapes, {}) + self._limits.tobytes()
        )


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
