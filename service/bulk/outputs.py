"""Writes the vectors of a run: a folder of parquet files, or one .parquet, .npy or .safetensors file.

Each part is a parquet file that is written aside and appears whole, so that a run which was killed has to compute only
what is missing. One file is made of the parts at the end.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from models.checkpoints import safetensors
from models.checkpoints.safetensors import TensorSource
from service.bulk import inputs
from service.bulk.plan import BulkRun, Part
from service.embedding.quantization import NUMPY_DTYPES, columns
from service.embedding.requests import Output
from service.errors import StartError

if TYPE_CHECKING:
    from service.bulk.embedder import Embedder

EMBEDDING = "embedding"  # column of a table
TENSOR = "embeddings"  # in a safetensors file
RANGES = "ranges"
ARRAYS = (".npy", ".safetensors")
PLAN_FILE = "_plan.json"  # readers of parquet folders skip names that begin with _
FLOATS = {"float32": np.float32, "float16": np.float16}


def is_file(output: Path) -> bool:
    """Return whether the name is that of one output file instead of a folder of parquet files."""
    return output.suffix in (".parquet", *ARRAYS)


def folder(output: Path) -> Path:
    """Return the folder that holds the parts until the output is complete."""
    return output.with_name(f"{output.name}.parts") if is_file(output) else output


class ParquetParts:
    """Writes each part of a run as one parquet file, and joins them.

    Args:
        output: the file or folder that the run writes.
        embedder: computes the vectors.
    """

    def __init__(self, run: BulkRun, output: Path, embedder: "Embedder") -> None:
        options = run.options
        self._output, self._folder = output, folder(output)
        self._limits = np.array(run.ranges, np.float32) if run.ranges else None
        self._dtype = np.dtype((FLOATS | NUMPY_DTYPES)[options.dtype])
        self._shape = (run.rows, columns(options.dtype, embedder.width))
        self._vector = pa.list_(pa.from_numpy_dtype(self._dtype), self._shape[1])
        vectors = self._vector if embedder.kind.pooled else pa.large_list(self._vector)
        if embedder.kind.sparse:
            values = pa.list_(pa.from_numpy_dtype(self._dtype))
            vectors = pa.struct({"indices": pa.list_(pa.int32()), "values": values})
        self._name = embedder.output if embedder.classifies else EMBEDDING
        kept = inputs.kept_schema(Path(run.files[0].path), options.columns)
        self._kept = [field.name for field in kept]
        facts = {
            "model": options.model,
            "version": options.version,
            "output": embedder.output,
            "dtype": options.dtype,
            "width": embedder.width,
            **({RANGES: run.ranges} if run.ranges else {}),
        }
        self._schema = pa.schema([*kept, pa.field(self._name, vectors)], {"inlay": json.dumps(facts, sort_keys=True)})
        self._writer: pq.ParquetWriter | None = None

    def finished(self, part: Part) -> bool:
        """Return whether a part is complete."""
        return self._path(part).exists()

    def write(self, part: Part, first: int, table: pa.Table, present: NDArray[np.bool_], vectors: Output) -> None:
        """Add rows to a part.

        Args:
            first: number of the first row in its file.
            table: the rows as they were read.
            present: which of them have vectors.

        Raises:
            StartError: one has none, and the output cannot say so.
        """
        if self._output.suffix in ARRAYS and not present.all():
            raise StartError(
                f"{part.path}: row {first + int(np.argmin(present))} has no text, and {self._output.suffix} cannot "
                "leave its vector out: write parquet, which holds a null there"
            )
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

    def merge(self, parts: Sequence[Part]) -> None:
        """Write the parts as one file and remove their folder."""
        aside = self._folder / "whole"
        if self._output.suffix == ".npy":
            array = np.lib.format.open_memmap(aside, "w+", self._dtype, self._shape)
            at = 0
            for rows in self._arrays(parts):
                array[at : (at := at + len(rows))] = rows
            array.flush()
            if self._limits is not None:
                np.save(self._output.with_name(f"{self._output.stem}.{RANGES}.npy"), self._limits)
        elif self._output.suffix == ".safetensors":
            vectors = TensorSource(TENSOR, safetensors.NAMES[self._dtype], self._shape, self._arrays(parts))
            limits = [] if self._limits is None else [TensorSource(RANGES, "F32", self._limits.shape, [self._limits])]
            safetensors.write(aside, [*limits, vectors])
        else:
            writer = self._open(aside)
            for part in parts:
                with pq.ParquetFile(self._path(part)) as file:
                    for group in range(file.num_row_groups):
                        writer.write_table(file.read_row_group(group, use_threads=False).cast(self._schema))
            writer.close()
        publish(aside, self._output)
        remove(self._folder)

    def _arrays(self, parts: Sequence[Part]) -> Iterator[NDArray[Any]]:
        """Yield the vectors of each part."""
        for part in parts:
            column = pq.read_table(self._path(part), columns=[self._name]).column(0).combine_chunks()
            yield column.flatten().to_numpy(zero_copy_only=False).reshape(-1, self._shape[1])

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
        lengths = np.zeros(len(present), np.int64)
        lengths[present] = vectors.lengths
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        if vectors.indices is not None:
            lists = [
                pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), part)
                for part in (pa.array(vectors.indices), flat)
            ]
            return pa.StructArray.from_arrays(lists, names=["indices", "values"], mask=pa.array(~present))
        rows = pa.FixedSizeListArray.from_arrays(flat, type=self._vector)
        if not vectors.pooled:
            return pa.LargeListArray.from_arrays(pa.array(offsets, mask=np.append(~present, False)), rows)
        return rows if present.all() else rows.take(pa.array(offsets[1:] - 1, mask=~present))

    def _path(self, part: Part) -> Path:
        return self._folder / f"part-{part.number:05}.parquet"

    def _aside(self, part: Part) -> Path:
        return self._folder / f"_part-{part.number:05}.tmp"


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
