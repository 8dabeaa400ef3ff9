"""One model in Inlay and in torch, in one run: loading, memory, and interleaved rounds of every case."""

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from loadtest.architectures.cases import Model, cases, tokens
from loadtest.bench import progress
from loadtest.encoders.cases import Case
from loadtest.encoders.engines import Timing
from loadtest.encoders.workers import Contestant, Missing, RunningWorker, started
from loadtest.process_memory import Footprint, footprint, reset_peak
from loadtest.processes import Cores

COMPARED = ("R16", "S512")  # cases whose vectors are compared
MOST_SECONDS = 60  # of one call; a longer one is left out
GROWTH = 1.5  # how much more than in proportion a text of eight times the tokens may take: attention


@dataclass(frozen=True)
class Contender:
    """A library with one model.

    Attributes:
        contestant: how its worker is started.
        batches_only: it differs from another where several texts are run together, so other cases are left out.
    """

    contestant: Contestant
    batches_only: bool = False


@dataclass(frozen=True)
class Result:
    """What was measured of one library with one model; `missing`: why it took no part, or no longer.

    Attributes:
        load_seconds: opening the model, imports left out, its files in the page cache.
        loaded: its memory then; the peak is that of loading.
        used: its memory after every case; the peak is that of the cases.
        cosine: the least to the first library's vectors, over the texts of COMPARED.
        timings: by case; a case that would have taken too long is left out.
    """

    name: str
    missing: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    load_seconds: float = 0.0
    loaded: Footprint | None = None
    used: Footprint | None = None
    cosine: float | None = None
    timings: dict[str, Timing] = field(default_factory=dict)


def expected_seconds(case: Case, fastest: Mapping[str, float]) -> float:
    """Return what a call with one text may take, by the longest that was timed; 0 for several texts.

    Args:
        case: not timed yet.
        fastest: seconds of the cases that were.
    """
    single = [int(name[1:]) for name in fastest if name.startswith("S")]
    if len(case.texts) > 1 or not single:
        return 0.0
    return GROWTH * fastest[f"S{max(single)}"] * tokens(case) / max(single)


@dataclass
class _Entry:
    """A library that takes part; times in seconds."""

    worker: RunningWorker
    contender: Contender
    loaded: Footprint
    missing: str | None = None
    cosine: float | None = None
    used: Footprint | None = None
    medians: dict[str, list[float]] = field(default_factory=dict)
    fastest: dict[str, float] = field(default_factory=dict)

    def takes(self, case: Case) -> bool:
        """Return whether the case is run: it tells something, and is not expected to take too long."""
        if self.missing or (self.contender.batches_only and len(case.texts) == 1):
            return False
        return case.name in self.fastest or expected_seconds(case, self.fastest) <= MOST_SECONDS

    def run(self, case: Case, seconds: float) -> None:
        """Time a case for a round."""
        try:
            taken = self.worker.seconds(case.texts, seconds)
        except Missing as reason:
            self.missing = str(reason)
            return
        self.medians.setdefault(case.name, []).append(statistics.median(taken))
        self.fastest[case.name] = min(*taken, self.fastest.get(case.name, np.inf))

    def result(self) -> Result:
        """Return all of it, in milliseconds."""
        timings = {
            name: Timing(tuple([1000 * one for one in medians]), 1000 * self.fastest[name])
            for name, medians in self.medians.items()
        }
        worker, name = self.worker, self.contender.contestant.name
        measured = (worker.load_seconds, self.loaded, self.used, self.cosine, timings)
        return Result(name, self.missing, worker.versions, *measured)


def compare(
    model: Model, contenders: Sequence[Contender], cores: Cores, rounds: int, seconds: float, logs: Path
) -> list[Result]:
    """Return the figures of every library with one model, the first being what cosines refer to.

    Args:
        contenders: with their options.
        cores: shared by all workers, one of which works at a time.
        rounds: interleaved; in each every library gets every case.
        seconds: of each turn of a case; a call that takes longer is made once.
        logs: folder of what libraries print.
    """
    results: dict[str, Result] = {}
    entries: list[_Entry] = []
    with contextlib.ExitStack() as stack:
        for contender in contenders:
            name = contender.contestant.name
            progress(f"{model.name}: starting {name}")
            try:
                worker = stack.enter_context(started(contender.contestant, logs, cores))
            except Missing as reason:
                results[name] = Result(name, str(reason))
                continue
            entries.append(_Entry(worker, contender, footprint(worker.pid)))
            reset_peak(worker.pid)
        _measure(model, entries, rounds, seconds)
        results |= {entry.contender.contestant.name: entry.result() for entry in entries}
    progress("")
    return [results[contender.contestant.name] for contender in contenders]


def _measure(model: Model, entries: Sequence[_Entry], rounds: int, seconds: float) -> None:
    chosen = cases(model.longest)
    for number in range(rounds):
        for case in chosen:
            progress(f"{model.name}: round {number + 1}/{rounds}: {case.about}")
            for entry in entries:
                if entry.takes(case):
                    entry.run(case, seconds)
    for entry in entries:
        entry.used = footprint(entry.worker.pid)
    _compare_vectors(entries, [case.texts for case in chosen if case.name in COMPARED])


def _compare_vectors(entries: Sequence[_Entry], batches: Sequence[Sequence[str]]) -> None:
    """Note each library's least cosine to the first, over the texts of some batches."""
    reference: list[np.ndarray] = []
    for entry in entries:
        if entry.missing:
            continue
        try:
            vectors = [
                row.astype(np.float64)
                for texts in batches
                for row in entry.worker.vectors(texts, [list(range(len(texts)))])[0]
            ]
        except Missing as reason:
            entry.missing = str(reason)
            continue
        reference = reference or vectors
        entry.cosine = min(
            float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))
            for one, other in zip(vectors, reference, strict=True)
        )
