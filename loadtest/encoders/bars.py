"""What the comparison is to show, each bar with what was measured: met, NOT met, or what is missing."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from loadtest.bench_report import Row
from loadtest.encoders.contestants import INLAY, INLAY_INT8, INLAY_OPENVINO
from loadtest.encoders.engines import EngineResult
from loadtest.encoders.over_http import LAYOUT
from loadtest.servers import INLAY as SERVER

SPEEDS = {
    INLAY_INT8: {"S1": 1.8, "S16": 1.8, "R32": 1.6},
    INLAY_OPENVINO: {"S1": 0.95, "S16": 2.0, "R32": 2.0},
}
"""The least ratio to Inlay's fp32 encoder, by form and case."""
LEAST_COSINE = {INLAY_INT8: 0.99, INLAY_OPENVINO: 0.9999}
MEAN_COSINE = {INLAY_INT8: 0.998}
OF_BEST_PEER = 1.2  # at 32 connections
OF_BEST_LAYOUT = 0.95
OF_BEST_FORM = 1.2  # of the input layer
MOST_WORDS = 60  # characters of the reason why a bar was not measured
OWN_FORM = "Inlay"


@dataclass(frozen=True)
class Bar:
    """One bar; `measured` None: what is said in `why` kept it from being measured."""

    about: str
    bound: float
    measured: float | None
    why: str = ""
    at_most: bool = False

    @property
    def verdict(self) -> str:
        """Say in words whether it is met."""
        if self.measured is None:
            return f"missing: {self.why[:MOST_WORDS]}"
        met = self.measured <= self.bound if self.at_most else self.measured >= self.bound
        return "met" if met else "NOT met"


def engine_bars(results: Sequence[EngineResult]) -> Iterator[Bar]:
    """Return the bars of Inlay's faster encoders."""
    by_name = {result.name: result for result in results}
    for name, speeds in SPEEDS.items():
        result = by_name.get(name, EngineResult(name, "it was not asked for"))
        why = result.missing or ""
        for case, least in speeds.items():
            yield Bar(f"{name}, {case}: times fp32", least, _ratio(result, by_name[INLAY], case), why)
        quality = result.quality
        yield Bar(f"{name}: least cosine to fp32", LEAST_COSINE[name], quality.least_cosine if quality else None, why)
        if name in MEAN_COSINE:
            yield Bar(f"{name}: mean cosine to fp32", MEAN_COSINE[name], quality.mean_cosine if quality else None, why)
        yield Bar(f"{name}: vectors that their batch changes", 0, quality.differ if quality else None, why, True)


def _ratio(result: EngineResult, reference: EngineResult, case: str) -> float | None:
    return result.timings[case].ratio(reference.timings[case]) if case in result.timings else None


def http_bars(rows: Sequence[Row], missing: Mapping[str, str]) -> Iterator[Bar]:
    """Return the bars of texts over HTTP."""
    why = "no other server took part" + (f" ({'; '.join(sorted(missing))} did not start)" if missing else "")
    for row in rows:
        layouts = {name: _share(row, name) for name in row.samples if name.startswith(LAYOUT)}
        ours = (SERVER, INLAY_INT8, INLAY_OPENVINO, *layouts)
        peers = {name: _share(row, name) for name in row.samples if name not in ours}
        best = min(layouts, key=lambda name: layouts[name], default=None)
        about = f"HTTP, {row.connections} connection{'s' if row.connections > 1 else ''}"
        if best:
            yield Bar(f"{about}: of Inlay's best layout ({best})", OF_BEST_LAYOUT, min(1.0, layouts[best]))
        rival = min(peers, key=lambda name: peers[name], default=None)
        if row.connections == max(each.connections for each in rows):
            name = f" ({rival})" if rival else ""
            yield Bar(f"{about}: times the best peer{name}", OF_BEST_PEER, peers[rival] if rival else None, why)


def _share(row: Row, name: str) -> float:
    """Return Inlay's requests/s over another server's, the median of the rounds."""
    pairs = zip(row.samples[SERVER], row.samples[name], strict=True)
    return statistics.median([ours.per_second / other.per_second for ours, other in pairs])


def input_layer_bars(taken: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[Bar]:
    """Return the bars of the input layer, by the fastest runs, which other processes disturb least.

    Args:
        taken: by tokens and form, the median and the fastest run.
    """
    for tokens, forms in taken.items():
        best = min(forms, key=lambda name: forms[name][1])
        ratio = forms[OWN_FORM][1] / forms[best][1]
        yield Bar(
            f"input layer, {tokens} tokens: time over the best form's ({best})", OF_BEST_FORM, ratio, at_most=True
        )
