"""The report of a run: which rows were cut, had no text, or were refused; kept as JSON beside the vectors."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from service.bulk.plan import BulkRun, Part

MOST_ROWS = 1000  # that a report names of each kind; it counts all
KINDS = ("cut", "empty", "failed")


class Row(NamedTuple):
    """A row that is reported.

    Args:
        kind: cut: longer than the model reads; empty: without text; failed: refused, with the reason.
        row: its number in the file, from 0.
    """

    kind: str
    row: int
    reason: str | None = None


class PartReport:
    """Counts the rows of a part as they are written."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.rows: list[Row] = []

    def add(self, rows: Iterable[Row]) -> None:
        """Count rows, and name the first."""
        for row in rows:
            self.counts[row.kind] += 1
            if self.counts[row.kind] <= MOST_ROWS:
                self.rows.append(row)

    def write(self, path: Path) -> None:
        """Write the report, without which the part is not complete."""
        path.write_text(json.dumps({"counts": self.counts, "rows": self.rows}), encoding="utf-8")


def written(run: BulkRun, parts: Mapping[Part, Path], path: Path) -> dict[str, int]:
    """Join the reports of the parts in one file; return the counts."""
    counts: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
    named: dict[str, list[dict[str, str | int]]] = {kind: [] for kind in KINDS}
    for part, source in parts.items():
        read = json.loads(source.read_text(encoding="utf-8"))
        counts.update(read["counts"])
        for kind, row, reason in read["rows"]:
            if len(named[kind]) < MOST_ROWS:
                named[kind].append({"file": str(part.path), "row": row} | ({"reason": reason} if reason else {}))
    rows = {"rows": run.rows, "vectors": run.rows - counts["empty"] - counts["failed"]}
    kinds = {kind: {"count": counts[kind], "rows": named[kind]} for kind in KINDS}
    whole = {"model": run.options.model, "version": run.options.version} | rows | kinds
    path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return dict(counts)
