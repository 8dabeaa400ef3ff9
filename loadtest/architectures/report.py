"""What was measured of each model as a table, saved as JSON and markdown."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtest.architectures.cases import Model, cases, tokens
from loadtest.architectures.comparison import COMPARED, Result
from loadtest.architectures.prepare import LIKE_LENGTHS, Prepared
from loadtest.encoders.report import Table, print_table, ruled
from loadtest.process_memory import Footprint

NOTE = (
    "Random weights; float32 arithmetic, the same cores and threads for all, interleaved rounds. tokens/s: the "
    "medians; in brackets times as fast as Inlay, the median of the rounds. torch: transformers' AutoModel, one "
    f"padded batch with its mask; like lengths: batches of at most {LIKE_LENGTHS} padded tokens, of texts of like "
    "length, where there are several texts. load: seconds, imports left out, files in the page cache. MB (10^6 bytes): "
    "anonymous + mapped files / proportional set size / peak; loaded: after the model was opened; used: after every "
    "case, the longest text last, with the peak since loading. cosine: the least to Inlay's vectors, means "
    f"of all rows, over {' and '.join(COMPARED)}; torch in float32 does not round Gemma's scaled rows to bfloat16."
)


@dataclass(frozen=True)
class Section:
    """One model.

    Attributes:
        model: its sizes.
        prepared: what writing it took.
        results: Inlay's first.
    """

    model: Model
    prepared: Prepared
    results: Sequence[Result]

    @property
    def about(self) -> str:
        """What the table's title says."""
        ours = self.prepared
        return (
            f"{self.model.name}: {ours.megabytes:.0f} MB, created in {ours.create_seconds:.1f} s, "
            f"exported in {ours.export_seconds:.1f} s"
        )


def table(section: Section) -> Table:
    """Return a line for each library."""
    chosen = cases(section.model.longest)
    lines: Table = [("engine", *(case.name for case in chosen), "load", "loaded MB", "used MB", "cosine")]
    for result in section.results:
        if result.loaded is None:
            lines.append((result.name, *("",) * (len(chosen) + 3), f"missing: {result.missing}"))
            continue
        speeds = [_speed(result, section.results[0], case.name, tokens(case)) for case in chosen]
        cosine = f"{result.cosine:.6f}" if result.cosine is not None else f"missing: {result.missing}"
        memory = _memory(result.loaded), _memory(result.used)
        lines.append((result.name, *speeds, f"{result.load_seconds:.1f}", *memory, cosine))
    return lines


def _speed(result: Result, reference: Result, case: str, count: int) -> str:
    if (ours := result.timings.get(case)) is None:
        return ""
    theirs = reference.timings.get(case)
    paired = theirs and len(theirs.rounds_ms) == len(ours.rounds_ms)
    ratio = f" ({ours.ratio(theirs):.2f})" if theirs and paired and result is not reference else ""
    return f"{1000 * count / ours.median_ms:.0f}{ratio}"


def _memory(used: Footprint | None) -> str:
    if used is None:
        return ""
    return f"{used.anonymous:.0f} + {used.files:.0f} / {used.proportional:.0f} / {used.peak:.0f}"


def inputs(longest: int) -> str:
    """Return what the cases hold."""
    return "; ".join(f"{case.name}: {case.about}" for case in cases(longest)) + "."


def versions(sections: Sequence[Section]) -> dict[str, str]:
    """Return the versions of the libraries that Inlay's own environment does not have."""
    peers = (result.versions for section in sections for result in section.results[1:])
    return {name: version for found in peers for name, version in found.items() if name in ("torch", "transformers")}


def show(section: Section) -> None:
    """Print one model's table."""
    print(f"\n{section.about}")
    print_table(table(section))


def save(sections: Sequence[Section], facts: Mapping[str, str], target: Path) -> None:
    """Write JSON and markdown.

    Args:
        sections: all that was measured.
        facts: of the machine, the software and the run.
        target: path of both files, without suffix.
    """
    longest = max(section.model.longest for section in sections)
    text = ["# make architectures", "", *(f"- {key}: {value}" for key, value in facts.items())]
    text += ["", NOTE, "", inputs(longest)]
    for section in sections:
        text += ["", f"## {section.about}", "", *ruled(table(section))]
    target.with_suffix(".md").write_text("\n".join(text) + "\n", encoding="utf-8")
    document = {"facts": dict(facts), "note": NOTE, "cases": inputs(longest), "models": [*map(_figures, sections)]}
    target.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _figures(section: Section) -> dict[str, Any]:
    ours = section.prepared
    return {
        "name": section.model.name,
        "config": json.loads(section.model.config.read_text(encoding="utf-8")),
        "megabytes": round(ours.megabytes, 1),
        "create_seconds": round(ours.create_seconds, 2),
        "export_seconds": round(ours.export_seconds, 2),
        "tokens": {case.name: tokens(case) for case in cases(section.model.longest)},
        "engines": [asdict(result) for result in section.results],
    }
