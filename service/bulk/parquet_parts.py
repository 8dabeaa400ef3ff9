"""Writes vectors as parquet with pyarrow, which the extra `bulk` installs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from service.bulk import arrow_files, remote
from service.bulk.inputs import ARROW, Rows, json_batches, kind
from service.bulk.outputs import EMBEDDING, Parts, Published
from service.bulk.plan import BulkRun, Part
from service.embedding.requests import Output
from service.errors import StartError

if TYPE_CHECKING:
    from service.bulk.embedder import Embedder


class ParquetParts(Parts):
    """Writes parquet files: a folder of them, or one that they are joined into."""

    suffix = ".parquet"

    def __init__(self, run: BulkRun, output: Path, embedder: "Embedder", published: Published) -> None:
        super().__init__(run, output, embedder, published)
        options = run.options
        self._vector = pa.list_(pa.from_numpy_dtype(self._dtype), self._shape[1])
        vectors = self._vector if embedder.kind.pooled else pa.large_list(self._vector)
        if embedder.kind.sparse:
            values = pa.list_(pa.from_numpy_dtype(self._dtype))
            vectors = pa.struct({"indices": pa.list_(pa.int32()), "values": values})
        self._name = embedder.output if embedder.classifies else EMBEDDING
        kept = _fields([remote.path_of(file.path) for file in run.files], options.columns.kept)
        self._kept = [field.name for field in kept]
        facts = {
            "model": options.model,
            "version": options.version,
            "output": embedder.output,
            "dtype": options.embed.dtype,
            "width": embedder.width,
        }
        self._schema = pa.schema([*kept, pa.field(self._name, vectors)], {"inlay": json.dumps(facts, sort_keys=True)})
        self._writer: pq.ParquetWriter | None = None

    def write(self, part: Part, first: int, rows: Sequence[Rows], present: NDArray[np.bool_], vectors: Output) -> None:
        """Add rows to a part; a text that is missing has a null."""
        if self._writer is None:
            self._writer = self._open(self._aside(part))
        try:
            copied = [
                pa.chunked_array([_array(piece.kept[place], self._schema.field(place).type) for piece in rows])
                for place in range(len(self._kept))
            ]
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise StartError(f"{part.path}: a value to keep is not like those before: {error}") from error
        table = pa.Table.from_arrays([*copied, self._column(present, vectors)], schema=self._schema)
        self._writer.write_table(table.combine_chunks())

    def _close(self) -> None:
        assert self._writer is not None
        self._writer.close()
        self._writer = None

    def _join(self, paths: Sequence[Path], aside: Path) -> None:
        writer = self._open(aside)
        for path in paths:
            with pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group, use_threads=False).cast(self._schema))
        writer.close()

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


def _fields(files: Sequence[Path], names: Sequence[str]) -> list[pa.Field]:
    """Return the columns that are copied: as the first file says, or of JSON lines as all their values need."""
    format = kind(files[0]) or ""
    if not names:
        return []
    if format in ARROW:
        schema = arrow_files.schema(files[0], format)
        return [schema.field(name) for name in names]
    if format != "json":
        return [pa.field(name, pa.string()) for name in names]
    fields = {name: pa.field(name, pa.null()) for name in names}
    for batch in json_batches(files):
        for name in batch.keys() & fields.keys():
            try:
                found = pa.schema([(name, pa.array(batch[name]).type)])
                before = pa.schema([fields[name]])
                fields[name] = pa.unify_schemas([before, found], promote_options="permissive").field(0)
            except (pa.ArrowException, OverflowError) as error:
                raise StartError(f"column {name!r} to keep has values of several types: {error}") from error
    return list(fields.values())


def _array(values: "Sequence[object] | pa.Array", type_: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, type_)
