"""The inputs of the comparison: how many texts of how many tokens, and in which company a text must not change.

The worker processes of every library read this module, so it imports the standard library and `workload` alone.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.workload import WORDS

SPECIAL = 2  # [CLS] and [SEP], which the tokenizer adds to every text; each of WORDS is one token
BATCH_TOKENS = 512  # the largest padded batch that any library is given
LONGEST = 512  # tokens that the demo model has positions for


@dataclass(frozen=True)
class Case:
    """Texts that are timed together.

    Attributes:
        name: what tables call it.
        about: what it holds.
        texts: in the caller's order.
    """

    name: str
    about: str
    texts: tuple[str, ...]


def text(rng: random.Random, tokens: int) -> str:
    """Return a text of exactly `tokens` tokens, special ones included."""
    return " ".join(rng.choices(WORDS, k=tokens - SPECIAL))


def lengths(count: int, shortest: int, longest: int, total: int) -> list[int]:
    """Return `count` lengths between two others that rise as a power and add up to `total`."""
    low, high = 0.01, 100.0  # exponents; the sum falls as they rise
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if sum(_power(count, shortest, longest, middle)) > total else (low, middle)
    rising = _power(count, shortest, longest, high)
    for missing in range(total - sum(rising)):  # what rounding left
        rising[count // 2 + missing] += 1
    return rising


def _power(count: int, shortest: int, longest: int, exponent: float) -> list[int]:
    return [round(shortest + (longest - shortest) * (index / (count - 1)) ** exponent) for index in range(count)]


def cases() -> tuple[Case, ...]:
    """Return the timed cases; every run times the same texts."""
    rng = random.Random(16)
    ragged = lengths(32, 5 + SPECIAL, 200 + SPECIAL, 2016)
    short = lengths(16, 5 + SPECIAL, 45 + SPECIAL, 376)
    for listed in (ragged, short):
        rng.shuffle(listed)
    return (
        Case("S1", "one text of 24 tokens", (text(rng, 24),)),
        Case("S16", "16 texts, 376 tokens", tuple(text(rng, tokens) for tokens in short)),
        Case("R32", "32 texts of 5 to 200 words, 2016 tokens", tuple(text(rng, tokens) for tokens in ragged)),
        Case("L16", "16 texts of 512 tokens", tuple(text(rng, LONGEST) for _ in range(16))),
    )


def arrangements(texts: Sequence[str]) -> list[list[int]]:
    """Return batches in which no text's vector may differ from that of the text alone, as indices of `texts`.

    Batches of 2, 5, 8 and 16, all of them reversed, the first with the longest, and the first four times.
    """
    everyone = list(range(len(texts)))
    batches = [everyone[start : start + size] for size in (2, 5, 8, 16) for start in range(0, len(texts), size)]
    longest = max(everyone, key=lambda index: len(texts[index]))
    batches = [batch for batch in batches if len(batch) > 1]
    return [*batches, everyone[::-1], [0, longest], [0, 0, 0, 0]]


def padded_batches(counts: Sequence[int], most: int = BATCH_TOKENS) -> list[list[int]]:
    """Return batches of texts of like length, as indices, longest first.

    Args:
        counts: tokens of each text.
        most: the largest number of texts times the longest of them; a longer text is alone.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(counts)), key=lambda index: -counts[index]):
        if batches and (len(batches[-1]) + 1) * counts[batches[-1][0]] <= most:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
