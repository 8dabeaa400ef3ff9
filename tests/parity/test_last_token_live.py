"""A tiny Qwen 3 embedder, exported and served, against sentence-transformers on the same folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from models.artifacts.export import export
from tests.last_token import TEXTS, ids_of, write_embedder
from tests.parity.conftest import Ledger
from tests.roads import EITHER, TEXT_ALONE, Roads, embed, exactly, roads_to
from tests.served import serving

pytestmark = pytest.mark.parity
NAME = "embedder"
TOLERANCE = 1e-6


@pytest.fixture(scope="module", params=["causal", "bidirectional"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp(request.param)
    changes = {} if request.param == "causal" else {"is_causal": False}
    export(write_embedder(place / "checkpoint", **changes), place / "store" / NAME)
    return place


@pytest.fixture(scope="module")
def judge(folder: Path) -> Any:
    return SentenceTransformer(str(folder / "checkpoint"), device="cpu")


@pytest.fixture(scope="module")
def roads(folder: Path) -> Iterator[Roads]:
    with serving(folder / "store") as running, roads_to(running, NAME) as clients:
        yield clients


def test_tokens_are_those_of_sentence_transformers(judge: Any) -> None:
    for text in TEXTS:
        [tokens] = judge.tokenize([text])["input_ids"].tolist()
        assert tokens == ids_of(text)


@pytest.mark.parametrize("name", EITHER | TEXT_ALONE)
def test_every_road_gives_the_vector_of_sentence_transformers(
    name: str, judge: Any, roads: Roads, ledger: Ledger
) -> None:
    expected = judge.encode(list(TEXTS[1:]))
    for text, vector in zip(TEXTS[1:], expected, strict=True):
        got = (EITHER | TEXT_ALONE)[name](roads, text)
        ledger.check("qwen3 embedder", "served vector", float(np.abs(got - vector).max()), TOLERANCE)


@pytest.mark.parametrize("prompt", [None, "query", "document"])
def test_prompts_are_those_of_sentence_transformers(
    prompt: str | None, judge: Any, roads: Roads, ledger: Ledger
) -> None:
    expected = judge.encode(list(TEXTS), prompt_name=prompt)
    options = {} if prompt is None else {"prompt_name": prompt}
    got = exactly(embed(roads, list(TEXTS), **options).json())
    ledger.check("qwen3 embedder", "prompts", float(np.abs(got - expected).max()), TOLERANCE)
