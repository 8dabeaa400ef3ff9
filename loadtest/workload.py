"""Texts and token ids of a realistic mix of lengths, as callers of an embedding service send them."""

import math
import random
from collections.abc import Sequence

MEDIAN_TOKENS = 17
MEAN_TOKENS = 23
LONGEST = 181
CLS, SEP = 101, 102  # of BERT's uncased vocabulary
FIRST_WORD, LAST_WORD = 1996, 29611  # whole words of that vocabulary, far from special tokens

WORD_LIST = (
    "the of and in to was he is as for on with that it his by at from her she you had an were but be this are not my "
    "they one which or have him me first all also their has up who out been when after there into new two its time "
    "would no what about said we over then other so more can if like back them only some could where just during "
    "before do made school through than now years most world may between down well three year while will later city "
    "under around did such being used state people part know against your many second university both national these "
    "known off way until how even get head team american because war life family south high another"
)
WORDS = WORD_LIST.split()
FOREIGN = (
    "Der Hund schläft im Garten und träumt von Würsten.",
    "Où se trouve la bibliothèque, s'il vous plaît ?",
    "今日はとても天気がいいですね。",
    "Привет, как твои дела сегодня?",
    "El niño comió la paella con su abuela.",
)
FOREIGN_SHARE = 0.05


def token_count(rng: random.Random) -> int:
    """Return the tokens of an input with special ones, 3 to LONGEST: log-normal, median 17, mean 23, p95 about 60."""
    sigma = math.sqrt(2 * math.log(MEAN_TOKENS / MEDIAN_TOKENS))
    return max(3, min(LONGEST, round(rng.lognormvariate(math.log(MEDIAN_TOKENS), sigma))))


def ids(rng: random.Random, count: int) -> list[int]:
    """Return `count` ids of BERT's vocabulary between its two special tokens; `count` is 2 or more."""
    return [CLS, *(rng.randint(FIRST_WORD, LAST_WORD) for _ in range(count - 2)), SEP]


def text(rng: random.Random, count: int) -> str:
    """Return a text of about `count` tokens once its two special ones are added."""
    return " ".join(rng.choices(WORDS, k=max(1, count - 2)))


def reordered(words: str, count: int) -> list[str]:
    """Return `count` texts of the same words in other orders, so of the same length and cost.

    A server may compute equal texts that are in flight once, so whoever measures encoders sends different ones.
    """
    rng, listed = random.Random(count), words.split()
    return [" ".join(rng.sample(listed, len(listed))) for _ in range(count)]


def mixed_ids(rng: random.Random) -> list[int]:
    """Return ids of a length drawn from the mix."""
    return ids(rng, token_count(rng))


def mixed_text(rng: random.Random) -> str:
    """Return a text of a length drawn from the mix; one in twenty is not English."""
    return rng.choice(FOREIGN) if rng.random() < FOREIGN_SHARE else text(rng, token_count(rng))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of an ordered, non-empty sequence lies, by nearest rank."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
