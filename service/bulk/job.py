"""Computes parts of a bulk run: reads windows of texts, computes their vectors on all cores, writes them."""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.bulk import inputs
from service.bulk.embedder import Embedder, Tasks
from service.bulk.inputs import WINDOW_CHARACTERS, WINDOW_ROWS, Rows
from service.bulk.outputs import ARRAYS, ArrayParts, Parts, Published
from service.bulk.plan import BulkRun, Part
from service.bulk.report import PartReport, Row
from service.errors import InlayError, StartError

TOKEN_BYTES = 1 << 27  # bytes of one window's vectors, if each token has one
WINDOWS_AHEAD = 2  # windows being computed while one is written
Progress = Callable[[int], None]


class Window(NamedTuple):
    """Rows that are being computed.

    Args:
        first: the number of its first row in the file.
        present: which rows have texts.
    """

    part: Part
    first: int
    rows: list[Rows]
    present: NDArray[np.bool_]
    tasks: Tasks


class PartComputer:
    """Computes parts of a run in one process.

    Args:
        plan: plan of the run.
        output: path that the run writes.
        embedder: embedder that computes the plan's output.
        published: called with each file that is complete.
    """

    def __init__(
        self, plan: BulkRun, output: Path, embedder: Embedder, published: Published = lambda path: None
    ) -> None:
        self._embedder = embedder
        most = WINDOW_CHARACTERS
        if not embedder.kind.pooled:  # each character may be a token
            most = min(most, TOKEN_BYTES // (4 * embedder.width))
        rows = min(WINDOW_ROWS, most)
        if embedder.kind.sparse and embedder.kind.input_bytes:
            rows = max(1, min(rows, TOKEN_BYTES // embedder.kind.input_bytes))
        self._reader = inputs.Reader(plan.options.columns, rows, most)
        self.target = _parts(plan, output, embedder, published)
        self._report = PartReport()  # of the part that is being written

    def run(self, parts: Sequence[Part], progress: Progress) -> None:
        """Compute parts one after the other.

        Args:
            progress: called with the number of rows that were written.

        Raises:
            StartError: a row cannot be read, or has no vector.
        """
        ahead: deque[Window] = deque()
        last: Part | None = None

        def close(part: Part) -> None:
            self.target.close(part, self._report)
            self._report = PartReport()

        def finish(keep: int) -> None:
            nonlocal last
            while len(ahead) > keep:
                window = ahead.popleft()
                if last is not None and last != window.part:
                    close(last)
                self._finish(window)
                last = window.part
                progress(len(window.present))

        try:
            for part in parts:
                first = part.start
                for rows in self._reader.windows(part.path, part.start, part.rows):
                    ahead.append(self._begin(part, first, rows))
                    first += sum(len(piece) for piece in rows)
                    finish(WINDOWS_AHEAD)
            finish(0)
        finally:
            for window in ahead:
                self._embedder.cancel(window.tasks)
        if last is not None:
            close(last)

    def _begin(self, part: Part, first: int, rows: list[Rows]) -> Window:
        texts = [text for piece in rows for text in zip(*piece.texts, strict=True)]
        present = np.array([None not in text for text in texts], np.bool_)
        columns = list(zip(*(text for text in texts if None not in text), strict=True)) or [()] * len(rows[0].texts)
        return Window(part, first, rows, present, self._embedder.submit(*columns))

    def _finish(self, window: Window) -> None:
        read = np.flatnonzero(window.present) + window.first  # the row of each text
        try:
            output, _, cut, failed = self._embedder.collect(window.tasks)
        except InlayError as error:
            raise StartError(f"{window.part.path}: the text of row {read[error.index]} {error.received}") from error
        self._report.add(Row("empty", int(row) + window.first) for row in np.flatnonzero(~window.present))
        self._report.add(Row("cut", int(read[number])) for number in cut)
        self._report.add(Row("failed", int(read[number]), why) for number, why in failed.items())
        window.present[read[list(failed)] - window.first] = False
        self.target.write(window.part, window.first, window.rows, window.present, output)


def _parts(plan: BulkRun, output: Path, embedder: Embedder, published: Published) -> Parts:
    """Return what writes the parts of a run to an output."""
    if output.suffix in ARRAYS:
        return ArrayParts(plan, output, embedder, published)
    from service.bulk.parquet_parts import ParquetParts

    return ParquetParts(plan, output, embedder, published)
