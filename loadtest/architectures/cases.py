"""The models and the inputs that are measured. A text is its token ids in decimal: the models have no tokenizer."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.encoders.cases import Case

CONFIGS = Path(__file__).parent / "configs"
LENGTHS = (24, 512, 4096)
FIRST_ID, LAST_ID = 1000, 20_000  # in every vocabulary, far from special ids


@dataclass(frozen=True)
class Model:
    """A model to create.

    Attributes:
        name: of its config's file.
        config: that file.
        longest: tokens that it has positions for.
    """

    name: str
    config: Path
    longest: int


def models() -> list[Model]:
    """Return the models in the order of their sizes."""
    names = ("minilm-l6", "mpnet-base", "modernbert-base", "gemma3-270m", "qwen3-0.6b")
    return [_model(name) for name in names]


def _model(name: str) -> Model:
    config = CONFIGS / f"{name}.json"
    positions: int = json.loads(config.read_text(encoding="utf-8")).get("max_position_embeddings", 512)
    return Model(name, config, positions // 64 * 64)  # without the rows that some reserve


def text(rng: random.Random, tokens: int) -> str:
    """Return a text of `tokens` random ids."""
    return " ".join(str(rng.randint(FIRST_ID, LAST_ID)) for _ in range(tokens))


def cases(longest: int) -> tuple[Case, ...]:
    """Return the timed cases that a model of `longest` positions takes, the longest text last.

    Every run times the same texts.
    """
    rng = random.Random(16)
    ragged, short = [rng.randint(7, 182) for _ in range(32)], [rng.randint(17, 30) for _ in range(16)]
    single = [Case(f"S{tokens}", f"one text of {tokens} tokens", (text(rng, tokens),)) for tokens in LENGTHS]
    several = (
        _batch("R16", f"16 texts of 17 to 30 tokens, {sum(short)} together", rng, short),
        _batch("R32", f"32 texts of 7 to 182 tokens, {sum(ragged)} together", rng, ragged),
    )
    fitting = [case for case in single if tokens(case) <= longest]
    return (fitting[0], *several, *fitting[1:])


def _batch(name: str, about: str, rng: random.Random, lengths: Sequence[int]) -> Case:
    return Case(name, about, tuple(text(rng, length) for length in lengths))


def tokens(case: Case) -> int:
    """Return the tokens of all texts of a case."""
    return sum(len(one.split()) for one in case.texts)
