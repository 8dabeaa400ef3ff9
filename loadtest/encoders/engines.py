"""The libraries beside one another in one run: interleaved rounds of every case, on one core, one thread each."""

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadtest.bench import progress
from loadtest.encoders.cases import Case, arrangements, cases
from loadtest.encoders.workers import Contestant, Missing, RunningWorker, started
from loadtest.processes import Cores

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Quality:
    """How near a library's vectors are to those of the reference, and whether a text's batch changes its bits.

    Attributes:
        least_cosine, mean_cosine: to the reference, each text alone.
        compared: vectors that were compared with that of the same text alone.
        differ: how many of them differ in a bit.
        largest: the largest difference of a value.
    """

    least_cosine: float
    mean_cosine: float
    compared: int
    differ: int
    largest: float


@dataclass(frozen=True)
class Timing:
    """One case of one library.

    Attributes:
        rounds_ms: the median call of each round.
        fastest_ms: the fastest call of all rounds.
    """

    rounds_ms: tuple[float, ...]
    fastest_ms: float

    @property
    def median_ms(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds_ms)

    def ratio(self, reference: "Timing") -> float:
        """Return how many times as fast as the reference, the median of the rounds."""
        pairs = zip(reference.rounds_ms, self.rounds_ms, strict=True)
        return statistics.median([theirs / own for theirs, own in pairs])

    def ratio_of_fastest(self, reference: "Timing") -> float:
        """Return the same of the fastest calls, which other processes disturb least."""
        return reference.fastest_ms / self.fastest_ms


@dataclass(frozen=True)
class EngineResult:
    """What was measured of one library; `missing`: why it took no part."""

    name: str
    missing: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    quality: Quality | None = None
    timings: Mapping[str, Timing] = field(default_factory=dict)


@dataclass
class _Entry:
    """A library that takes part, and what is known of it so far; times in seconds."""

    worker: RunningWorker
    quality: Quality
    medians: dict[str, list[float]] = field(default_factory=dict)
    fastest: dict[str, float] = field(default_factory=dict)

    def note(self, case: Case, seconds: Sequence[float]) -> None:
        """Add the calls of one round."""
        self.medians.setdefault(case.name, []).append(statistics.median(seconds))
        self.fastest[case.name] = min(*seconds, self.fastest.get(case.name, np.inf))

    def result(self, name: str) -> EngineResult:
        """Return all of it in milliseconds."""
        timings = {
            case: Timing(tuple([1000 * one for one in medians]), 1000 * self.fastest[case])
            for case, medians in self.medians.items()
        }
        return EngineResult(name, None, self.worker.versions, self.quality, timings)


def quality_of(
    alone: Sequence[Vectors], reference: Sequence[Vectors], together: Sequence[tuple[int, Vectors]]
) -> Quality:
    """Return how vectors compare.

    Args:
        alone, reference: the unit vector of each text alone, float32 (1, width): the library's and the reference's.
        together: the number of a text and its vector from a batch, float32 (width,).
    """
    cosines = [_cosine(own[0], other[0]) for own, other in zip(alone, reference, strict=True)]
    differences = [float(np.abs(vector - alone[index][0]).max()) for index, vector in together]
    return Quality(
        min(cosines),
        statistics.fmean(cosines),
        len(differences),
        sum(difference > 0 for difference in differences),
        max(differences),
    )


def _cosine(one: Vectors, other: Vectors) -> float:
    one, other = one.astype(np.float64), other.astype(np.float64)
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@dataclass(frozen=True)
class Comparison:
    """The libraries to compare, the reference first, and how.

    Attributes:
        contestants: the first is the reference, which must take part.
        core: the one that all workers share, one at a time.
        rounds: interleaved; in each every library gets every case.
        seconds: of each turn of a case; a call that takes longer is made once.
    """

    contestants: Sequence[Contestant]
    core: Cores
    rounds: int
    seconds: float

    def run(self, logs: Path) -> list[EngineResult]:
        """Start every worker, compare the vectors, measure all rounds; a library that fails is left out.

        Raises:
            Missing: the reference takes no part.
        """
        results: dict[str, EngineResult] = {}
        with contextlib.ExitStack() as stack:
            entries = self._entries(stack, logs, results)
            for number in range(self.rounds):
                for case in cases():
                    progress(f"round {number + 1}/{self.rounds}: {case.about}")
                    self._turn(case, entries, results)
            progress("")
            results |= {name: entry.result(name) for name, entry in entries.items()}
        return [results[contestant.name] for contestant in self.contestants]

    def _turn(self, case: Case, entries: dict[str, _Entry], results: dict[str, EngineResult]) -> None:
        for name, entry in list(entries.items()):
            try:
                entry.note(case, entry.worker.seconds(case.texts, self.seconds))
            except Missing as reason:
                results[name] = EngineResult(name, str(reason))
                del entries[name]

    def _entries(self, stack: contextlib.ExitStack, logs: Path, results: dict[str, EngineResult]) -> dict[str, _Entry]:
        entries: dict[str, _Entry] = {}
        reference: list[Vectors] = []
        short = cases()[1].texts
        texts = [*short, *(text for case in cases() for text in case.texts if case.name == "R32")]
        for contestant in self.contestants:
            progress(f"starting {contestant.name}")
            try:
                worker = stack.enter_context(started(contestant, logs, self.core))
                alone = worker.vectors(texts, [[index] for index in range(len(texts))])
                reference = reference or alone
                batches = arrangements(short)
                vectors = worker.vectors(short, batches)
            except Missing as reason:
                if not reference:
                    raise
                results[contestant.name] = EngineResult(contestant.name, str(reason))
                continue
            together = [
                pair for batch, rows in zip(batches, vectors, strict=True) for pair in zip(batch, rows, strict=True)
            ]
            entries[contestant.name] = _Entry(worker, quality_of(alone, reference, together))
        return entries
