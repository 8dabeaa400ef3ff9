"""One sentence through every protocol and format: each gives the same float32 values, bit for bit.

The values themselves are judged by sentence-transformers (golden/minilm.*).
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from proto import tei_pb2 as tei
from tests.minilm_golden import cases
from tests.roads import EITHER, MEAN_ALONE, TEXT_ALONE, Road, Roads, Vector, embed, exactly, raw, roads_to
from tests.served import Served, serving

CASE = next(case for case in cases() if case.name == "fox")
TEXT, IDS = CASE.input, CASE.input_ids
UNIT = 1e-6
HIDDEN = 5e-6


@pytest.fixture(scope="module")
def served(minilm_store: Path) -> Iterator[Served]:
    with serving(minilm_store) as running:
        yield running


@pytest.fixture(scope="module")
def roads(served: Served) -> Iterator[Roads]:
    with roads_to(served, "minilm") as running:
        yield running


ALL = [(name, road, kind) for name, road in EITHER.items() for kind in ("text", "ids")]
ALL += [(name, road, "text") for name, road in (TEXT_ALONE | MEAN_ALONE).items()]


@pytest.fixture(scope="module")
def vector(roads: Roads) -> Vector:
    """The raw bytes of /embed for the text."""
    return raw(embed(roads, [TEXT], "application/octet-stream").content)


def test_embed_gives_what_sentence_transformers_gives(vector: Vector) -> None:
    assert np.abs(vector - CASE.unit).max() <= UNIT


@pytest.mark.parametrize(("name", "road", "kind"), ALL, ids=[f"{name}, {kind}" for name, _, kind in ALL])
def test_every_road_gives_the_same_float32_values(
    roads: Roads, vector: Vector, name: str, road: Road, kind: str
) -> None:
    got = road(roads, TEXT if kind == "text" else IDS)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, vector)


def test_mean_of_embed_all_is_the_unnormalized_vector(roads: Roads) -> None:
    [rows] = roads.post("/embed_all", {"inputs": TEXT}).json()
    [streamed] = roads.tei.EmbedAllStream(iter([tei.EmbedAllRequest(inputs=TEXT)]))
    np.testing.assert_array_equal(exactly([row.embeddings for row in streamed.token_embeddings]), exactly(rows))
    [pooled] = embed(roads, [TEXT], normalize=False).json()
    mean = exactly(rows).astype(np.float64).mean(axis=0)
    assert np.abs(mean - pooled).max() <= UNIT
    assert np.abs(mean - CASE.arrays["pooled"]).max() <= HIDDEN


def test_similarity_is_the_product_of_the_vectors(roads: Roads, vector: Vector) -> None:
    others = [TEXT, "Der schnelle braune Fuchs", "interest rates"]
    body = {"inputs": {"source_sentence": TEXT, "sentences": others}}
    expected = np.array(embed(roads, others).json()) @ vector.astype(np.float64)
    for path in ("/similarity", "/"):
        assert np.abs(np.array(roads.post(path, body).json()) - expected).max() <= UNIT
