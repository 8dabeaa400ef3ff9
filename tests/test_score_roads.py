"""Pairs of texts and texts through every protocol that scores them: each gives the same float32 values.

They are judged by the head in numpy, over hidden states of /embed; parity holds both to sentence-transformers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from tests.score_models import CLASSIFIER, EMBEDDER, LABELS, RANKER
from tests.score_roads import LABELS as LABEL_ROADS
from tests.score_roads import RANKINGS, ScoreRoads, documents, score_roads_to, scored
from tests.served import serving

QUERY, TEXTS = "a b", ("c", "d e f g", "", "a b c", "j " * 40, "hello world", "unknown word")
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def rankers(score_store: Path) -> Iterator[ScoreRoads]:
    with serving(score_store, default_model=RANKER) as running, score_roads_to(running, RANKER) as roads:
        yield roads


@pytest.fixture(scope="module")
def classifiers(score_store: Path) -> Iterator[ScoreRoads]:
    with serving(score_store, default_model=CLASSIFIER) as running, score_roads_to(running, CLASSIFIER) as roads:
        yield roads


def logits(roads: ScoreRoads, store: Path, inputs: Any) -> NDArray[np.float64]:
    """BertForSequenceClassification's: the tanh of a dense layer over the first token, and another dense layer."""
    weights = load_file(store.parent / "checkpoints" / roads.model / "model.safetensors")
    states = roads.post("/embed", {"inputs": inputs, "outputs": "last_hidden_state"})["outputs"]["last_hidden_state"]
    first = np.array([rows[0] for rows in states])
    for name, activation in (("bert.pooler.dense", np.tanh), ("classifier", lambda values: values)):
        first = activation(first @ weights[f"{name}.weight"].astype(np.float64).T + weights[f"{name}.bias"])
    return first


@pytest.mark.parametrize("name", RANKINGS)
def test_every_road_gives_pairs_the_same_scores(name: str, rankers: ScoreRoads, score_store: Path) -> None:
    expected = 1 / (1 + np.exp(-logits(rankers, score_store, [[QUERY, text] for text in TEXTS])[:, 0]))
    got = RANKINGS[name](rankers, QUERY, TEXTS)
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(got, expected, atol=TOLERANCE)
    np.testing.assert_array_equal(got, RANKINGS["/rerank, texts"](rankers, QUERY, TEXTS))


@pytest.mark.parametrize("name", LABEL_ROADS)
def test_every_road_gives_labels_the_same_scores(name: str, classifiers: ScoreRoads, score_store: Path) -> None:
    powers = np.exp(logits(classifiers, score_store, ["d e f"])[0])
    got = LABEL_ROADS[name](classifiers, "d e f", LABELS)
    assert got == pytest.approx(dict(zip(LABELS, powers / powers.sum(), strict=True)), abs=TOLERANCE)
    assert got == LABEL_ROADS["/predict"](classifiers, "d e f", LABELS)


@pytest.mark.parametrize("name", ["/score", "/v1/rerank", "/v2/rerank"])
def test_sentence_vectors_are_scored_by_their_cosine(name: str, rankers: ScoreRoads) -> None:
    road = scored(name, "text_1", "text_2") if name == "/score" else documents(name)
    source, *others = np.array(rankers.post("/embed", {"inputs": [QUERY, *TEXTS], "model": EMBEDDER}))
    embedder = ScoreRoads(EMBEDDER, rankers.http, rankers.oip, rankers.rerank, rankers.predict)
    np.testing.assert_allclose(road(embedder, QUERY, TEXTS), np.array(others) @ source, atol=TOLERANCE)


def test_a_score_does_not_depend_on_the_other_texts(rankers: ScoreRoads) -> None:
    together = RANKINGS["/rerank, texts"](rankers, QUERY, TEXTS)
    alone = [RANKINGS["/rerank, texts"](rankers, QUERY, [text])[0] for text in TEXTS]
    assert together.tolist() == alone
