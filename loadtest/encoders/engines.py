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
from loadtest.processes import ROOT, Cores

Vectors = NDArray[np.float32]
EVALUATION = ROOT / "models/artifacts/texts/evaluation.txt"
"""The texts, one a line, over which the cards of int8 encoders state their cosines."""


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
        return statistics.median([theirs / ours for theirs, ours in pairs])

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


def alone(worker: RunningWorker, texts: Sequence[str]) -> list[Vectors]:
    """Return the vector of each text alone, float32 (width,)."""
    return [rows[0] for rows in worker.vectors(texts, [[index] for index in range(len(texts))])]


def arranged(worker: RunningWorker, texts: Sequence[str]) -> list[tuple[int, Vectors]]:
    """Return the number of a text and its vector, float32 (width,), for each place in each of `arrangements`."""
    batches = arrangements(texts)
    vectors = worker.vectors(texts, batches)
    return [pair for batch, rows in zip(batches, vectors, strict=True) for pair in zip(batch, rows, strict=True)]


def quality_of(
    evaluated: Sequence[Vectors],
    reference: Sequence[Vectors],
    singly: Sequence[Vectors],
    together: Sequence[tuple[int, Vectors]],
) -> Quality:
    """Return how vectors compare, float32 (width,) each.

    Args:
        evaluated, reference: of the same texts, each alone: the library's and the reference's.
        singly: of the texts that are arranged, each alone.
        together: the number of such a text and its vector from a batch.
    """
    cosines = [_cosine(ours, other) for ours, other in zip(evaluated, reference, strict=True)]
    differences = [float(np.abs(vector - singly[index]).max()) for index, vector in together]
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
        for contestant in self.contestants:
            progress(f"starting {contestant.name}")
            try:
                worker = stack.enter_context(started(contestant, logs, self.core))
                evaluated = alone(worker, EVALUATION.read_text(encoding="utf-8").splitlines())
                reference = reference or evaluated
                short = alone(worker, cases()[1].texts)
                quality = quality_of(evaluated, reference, short, arranged(worker, cases()[1].texts))
            except Missing as reason:
                if not reference:
                    raise
                results[contestant.name] = EngineResult(contestant.name, str(reason))
                continue
            entries[contestant.name] = _Entry(worker, quality)
        return entries
