"""What users send to an embedding service: kinds of requests by their shares, the lengths of their texts, and routes.

The locustfile sends it, and loadtest.fleet simulates it. Texts are random words, each one token of the demo model.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from loadtest import workload

SPECIAL_TOKENS = 2  # that the tokenizer adds to a text
MOST_TOKENS = 256  # of a text of the demo model; longer texts are truncated
SPREAD = 0.5  # of the log-normal lengths: nine in ten lie between 0.44 and 2.3 times the median


@dataclass(frozen=True)
class Kind:
    """One kind of request.

    Attributes:
        share: of all requests.
        texts: the fewest and the most in a request; 0 for requests that no model computes.
        tokens: the least and the most of a text, special tokens not counted.
    """

    share: float
    texts: tuple[int, int]
    tokens: tuple[int, int]


QUERY, QUERIES, PASSAGE, PASSAGES, DOCUMENT, IDS, TABLE = (
    *("query", "queries", "passage", "passages", "document", "ids", "table"),
)
KINDS = {
    QUERY: Kind(0.50, (1, 1), (5, 20)),
    QUERIES: Kind(0.08, (2, 8), (5, 20)),
    PASSAGE: Kind(0.16, (1, 1), (60, 300)),
    PASSAGES: Kind(0.12, (2, 16), (60, 300)),
    DOCUMENT: Kind(0.06, (1, 1), (400, 1200)),  # above the limit: the server computes MOST_TOKENS of them
    IDS: Kind(0.05, (1, 1), (5, 60)),
    TABLE: Kind(0.03, (0, 0), (0, 0)),
}

Draw = Callable[[random.Random], str]


class Drawn(NamedTuple):
    """One request: its kind and the tokens of each of its texts, without special ones."""

    kind: str
    tokens: tuple[int, ...]

    @property
    def costs(self) -> tuple[int, ...]:
        """The tokens that a server computes for each text."""
        return tuple([min(count + SPECIAL_TOKENS, MOST_TOKENS) for count in self.tokens])


def draw(rng: random.Random) -> Drawn:
    """Return a request drawn from the mix."""
    name = rng.choices(list(KINDS), [kind.share for kind in KINDS.values()])[0]
    kind = KINDS[name]
    count = _between(rng, *kind.texts) if kind.texts[1] else 0
    return Drawn(name, tuple([_between(rng, *kind.tokens) for _ in range(count)]))


def _between(rng: random.Random, least: int, most: int) -> int:
    """Return a whole number from a log-normal distribution, cut to its bounds."""
    return max(least, min(most, round(math.sqrt(least * most) * rng.lognormvariate(0, SPREAD))))


def text(rng: random.Random, tokens: int) -> str:
    """Return a text of this many tokens, special ones not counted."""
    return workload.text(rng, tokens + SPECIAL_TOKENS)


def ids(rng: random.Random, tokens: int) -> list[int]:
    """Return this many ids of the demo model's vocabulary between its two special ones."""
    return workload.ids(rng, tokens + SPECIAL_TOKENS)


def _ramp(part: float) -> float:
    return min(1.0, 0.1 * (int(part * 10) + 1))


def _spike(part: float) -> float:
    return 1.0 if 0.4 <= part < 0.6 else 0.2


def _soak(part: float) -> float:
    return 0.25 if part < 0.05 else 0.5


CURVES = {"ramp": _ramp, "spike": _spike, "soak": _soak}
"""The users present, as a share of the most, by the part of the run that has passed: ten equal steps up to the most; a
fifth of them, with all for a fifth of the run; half of them, after a twentieth of the run with a quarter."""
