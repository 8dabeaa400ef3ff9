"""Static embeddings against Model2Vec and sentence-transformers, on random texts, tables, weights and mappings."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.artifacts.export import export
from service.embedding.pipeline import EmbeddingPipeline
from service.embedding.requests import Text
from service.observability.metrics import Metrics
from service.registry.registry import open_registry
from service.settings import Settings
from tests.parity.conftest import Ledger
from tests.static_golden import difference

pytestmark = pytest.mark.parity
pytest.importorskip("model2vec", reason="NOT SHOWN: static embeddings against model2vec, which is not installed")

from model2vec import StaticModel  # noqa: E402  # after the line that asks for it
from sentence_transformers import SentenceTransformer  # noqa: E402

from tests.embed_requests import embed_request  # noqa: E402
from tests.golden import make_static  # noqa: E402

WORDS = (*make_static.WORDS, *make_static.SPECIALS, "xyzzy", "harbours", "stones", "é", "河", "🍕", "the market", "\n")
MODEL2VEC = make_static.MODEL2VEC
STATIC = make_static.SENTENCE_TRANSFORMERS


def random_texts(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [
        draw.choice((" ", " ", "", ", ")).join(draw.choices(WORDS, k=draw.choice((0, 1, 3, 8, 30, 900))))
        for _ in range(count)
    ]


def served(folder: Path, store: Path, texts: list[str]) -> Any:
    export(folder, store / "static")
    chosen = Settings(store=store, device="cpu")
    pipeline = EmbeddingPipeline(open_registry(chosen, Metrics()), chosen)
    request = embed_request([Text(text) for text in texts], truncate=True)
    return asyncio.run(pipeline.embed(request)).outputs[0].rows


@pytest.mark.parametrize("name", MODEL2VEC)
def test_random_texts_give_the_vectors_of_model2vec(name: str, tmp_path: Path, ledger: Ledger) -> None:
    make: Callable[[], Any] = MODEL2VEC[name]
    make().save_pretrained(tmp_path / "x")
    texts = random_texts(300, seed=len(name))
    expected = StaticModel.from_pretrained(tmp_path / "x").encode(texts).astype(np.float64)
    got = served(tmp_path / "x", tmp_path / "store", texts)
    halves = name.endswith("float16")  # model2vec rounds the mean and the steps before it to float16
    ledger.check("model2vec", name, difference(got, expected), 6e-3 if halves else 1e-5)


@pytest.mark.parametrize("name", STATIC)
def test_random_texts_give_the_vectors_of_sentence_transformers(name: str, tmp_path: Path, ledger: Ledger) -> None:
    make: Callable[[], Any] = STATIC[name]
    make().save(str(tmp_path / "x"), create_model_card=False)
    texts = random_texts(300, seed=len(name))
    expected = SentenceTransformer(str(tmp_path / "x"), device="cpu").encode(texts).astype(np.float64)
    got = served(tmp_path / "x", tmp_path / "store", texts)
    ledger.check("static_embedding", name, difference(got, expected), 1e-5)


WORD_TEXTS = (
    [
        "Hello, WORLD! the harbour's 'market' U.S. u.s. New-York.",
        "",
        "the of",
        "xyzzy",
        "ΟΔΟΣ οδος İstanbul",
        "...",
        "a\x1cb",
    ],
    "Stones,  Of the (Harbour) -- 12\u3000MARKET!? PADDING_TOKEN market market",
)


@pytest.mark.parametrize("lower", [False, True])
def test_texts_of_word_vectors_are_read_as_words(lower: bool, tmp_path: Path, ledger: Ledger) -> None:
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, WordEmbeddings
    from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer

    words = ["PADDING_TOKEN", "hello", "world", "Harbour", "harbour's", "market", "U.S.", "u.s", "οδος", "stones", "12"]
    words += ["New-York", ",", "'market'", "i̇stanbul", "a", "b", "(Harbour"]
    table = np.random.default_rng(3).normal(size=(len(words), 12)).astype(np.float32)
    first = WordEmbeddings(WhitespaceTokenizer(words, ["the", "of", "a", "!"], lower), table, max_seq_length=40)
    SentenceTransformer(modules=[first, Pooling(12), *[Normalize()] * lower], device="cpu").save(
        str(tmp_path / "x"), create_model_card=False
    )
    draw = random.Random(5)
    pool = [*words, *(word.upper() for word in words), "the", "Of", "xyzzy", "(market)", "«market»", "…", "stones."]
    made = [draw.choice((" ", "\n", "  ")).join(draw.choices(pool, k=draw.choice((1, 3, 30, 200)))) for _ in range(200)]
    texts = [*WORD_TEXTS[0], WORD_TEXTS[1], *made]
    expected = SentenceTransformer(str(tmp_path / "x"), device="cpu").encode(texts).astype(np.float64)
    got = served(tmp_path / "x", tmp_path / "store", texts)
    ledger.check("word_embeddings", "lowercased" if lower else "as written", difference(got, expected), 1e-5)
