"""The demo model against sentence-transformers, and its tokenisation against AutoTokenizer, on random text."""

import asyncio
import random
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from service.embedding.pipeline import EmbeddingPipeline
from service.embedding.requests import Cut, Direction, Text
from service.embedding.tokenize.tokenizer import Tokenizer
from service.observability.metrics import Metrics
from service.registry.registry import open_registry
from service.settings import Settings
from tests.embed_requests import embed_request
from tests.minilm_golden import checkpoint
from tests.parity.conftest import Ledger

pytestmark = pytest.mark.parity

# First and last code point of the scripts that random texts are drawn from.
SCRIPTS = (
    (0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5FF), (0x600, 0x6FF),
    (0x900, 0x97F), (0xE00, 0xE7F), (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x3040, 0x30FF), (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3), (0xFF00, 0xFFEF), (0x1F300, 0x1FAFF), (0x00, 0x1F),
)  # fmt: skip
WORDS = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "house",
    "market",
    "engines",
    "violin",
    "copper",
    "3.14",
    "don't",
    "[MASK]",
    "C++",
)


def random_text(draw: random.Random) -> str:
    words = [
        draw.choice(WORDS) if draw.random() < 0.7 else _word(draw) for _ in range(draw.choice((1, 4, 12, 40, 300)))
    ]
    return draw.choice((" ", " ", "", "\n")).join(words)


def _word(draw: random.Random) -> str:
    first, last = draw.choice(SCRIPTS)
    return "".join(chr(draw.randint(first, last)) for _ in range(draw.randint(1, 9)))


@pytest.fixture(scope="module")
def pipeline(minilm_store: Path) -> EmbeddingPipeline:
    chosen = Settings(store=minilm_store, device="cpu")
    return EmbeddingPipeline(open_registry(chosen, Metrics()), chosen)


@pytest.fixture(scope="module")
def sentences() -> SentenceTransformer:
    return SentenceTransformer(str(checkpoint()), device="cpu")


def embed(pipeline: EmbeddingPipeline, texts: list[Text], **fields: Any) -> Any:
    return asyncio.run(pipeline.embed(embed_request(texts, **fields))).outputs[0].rows


def test_random_texts_give_the_vectors_of_sentence_transformers(
    pipeline: EmbeddingPipeline, sentences: SentenceTransformer, ledger: Ledger
) -> None:
    draw = random.Random(20)
    texts = [random_text(draw) for _ in range(300)]
    got = embed(pipeline, [Text(text) for text in texts])
    ledger.check("minilm", "300 texts, unit vectors", float(np.abs(got - sentences.encode(texts)).max()), 1e-6)


def test_random_pairs_give_the_vectors_of_sentence_transformers(
    pipeline: EmbeddingPipeline, sentences: SentenceTransformer, ledger: Ledger
) -> None:
    draw = random.Random(21)
    pairs = [(random_text(draw), random_text(draw)) for _ in range(60)]
    got = embed(pipeline, [Text(*pair) for pair in pairs])
    ledger.check("minilm", "60 pairs, unit vectors", float(np.abs(got - sentences.encode(pairs)).max()), 1e-6)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(checkpoint() / "tokenizer.json")


@cache
def transformers_tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


ANY_TEXT = st.text(max_size=80) | st.text(alphabet="abc ,.[]SEPMASK\t\n#'", max_size=80)


@settings(max_examples=800, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(first=ANY_TEXT, second=st.none() | ANY_TEXT, most=st.integers(3, 40), side=st.sampled_from(["left", "right"]))
def test_texts_and_pairs_give_the_ids_of_transformers(
    first: str, second: str | None, most: int, side: Direction
) -> None:
    judge = transformers_tokenizer(checkpoint())
    judge.truncation_side = side
    texts = [[first]] if second is None else [[first], [second]]
    expected = judge(*texts, truncation="longest_first", max_length=most)
    got = tokenizer().encode({0: Text(first, second)}, Cut(True, side, most=most))[0]
    assert got.types is not None
    assert got.ids.tolist() == expected["input_ids"][0]
    assert got.types.tolist() == expected["token_type_ids"][0]
