"""How long one core of a replica takes: times fitted to measured requests.

A batch keeps its core busy for a run (a fixed part, one for each text, one for each token and one for the square of
each text's tokens, which attention takes) and for the requests it answers (parsing, tokenizing, answering).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadtest.processes import RESULTS

FILE = RESULTS / "fleet_service_times.json"


class Point(NamedTuple):
    """A measured request: the tokens of its texts and, in seconds, its latency, processor time and run."""

    tokens: tuple[int, ...]
    wall: float
    processor: float
    run: float


@dataclass(frozen=True)
class ServiceTimes:
    """Seconds of one core.

    Attributes:
        run: of a batch.
        text: of each text of a batch.
        token: of each token.
        square: of the square of the tokens of each text.
        request: of each request, outside runs.
        request_token: of each of its tokens, outside runs.
    """

    run: float
    text: float
    token: float
    square: float
    request: float
    request_token: float

    def batch_seconds(self, tokens: Sequence[int]) -> float:
        """Return the seconds of one run over texts of these tokens."""
        squares = sum([count * count for count in tokens])
        return self.run + self.text * len(tokens) + self.token * sum(tokens) + self.square * squares

    def request_seconds(self, tokens: Sequence[int]) -> float:
        """Return the seconds that one request takes outside runs."""
        return self.request + self.request_token * sum(tokens)


def load(file: Path = FILE) -> tuple[ServiceTimes, dict[str, Any]]:
    """Return the fitted times and all that was measured with them."""
    document = json.loads(file.read_text(encoding="utf-8"))
    return ServiceTimes(**document["fit"]), document


def fit(points: Sequence[Point]) -> dict[str, Any]:
    """Return the fitted times in seconds, each point with its error, and the mean and the largest error."""
    runs = [[1, len(p.tokens), sum(p.tokens), sum([n * n for n in p.tokens])] for p in points]
    outside = [[1, sum(p.tokens)] for p in points]
    names = ("run", "text", "token", "square", "request", "request_token")
    run_times = np.array([p.run for p in points])
    others = np.array([max(0.0, p.processor - p.run) for p in points])
    totals = run_times + others
    found = [*_least_squares(np.array(runs, float), run_times, totals)]
    found += [*_least_squares(np.array(outside, float), others, totals)]
    times = ServiceTimes(**dict(zip(names, map(float, found), strict=True)))
    rows = []
    for point in points:
        fitted = times.batch_seconds(point.tokens) + times.request_seconds(point.tokens)
        rows.append({**point._asdict(), "fitted": fitted, "error": fitted / point.processor - 1})
    errors = np.abs([row["error"] for row in rows])
    return {
        "fit": asdict(times),
        "errors": {"mean": round(float(errors.mean()), 3), "largest": round(float(errors.max()), 3)},
        "points": [{key: round(v, 7) if isinstance(v, float) else v for key, v in row.items()} for row in rows],
    }


def _least_squares(columns: NDArray[np.float64], seconds: NDArray[np.float64], scale: NDArray[np.float64]) -> Any:
    """Return the coefficients, none negative, that give the least errors relative to `scale`."""
    weighted, target = columns / scale[:, None], seconds / scale
    kept = list(range(columns.shape[1]))
    while True:  # drop the most negative one until none is
        found = np.linalg.lstsq(weighted[:, kept], target, rcond=None)[0]
        if (found >= 0).all():
            result = np.zeros(columns.shape[1])
            result[kept] = found
            return result
        kept.pop(int(found.argmin()))
