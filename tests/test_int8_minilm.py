"""The demo model with an int8 encoder, judged by sentence-transformers; a text's bits do not depend on its batch."""

from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from models.artifacts.export import export
from models.artifacts.int8_encoder import Int8Options
from tests.minilm_golden import cases, checkpoint
from tests.onnx_sessions import open_session
from tests.sweeps import sampled

ARRANGEMENTS = 50  # random batches of one seed; tests/models/graphs/test_attention.py has 10 000 of a small model
Texts = list[NDArray[np.int64]]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> onnxruntime.InferenceSession:
    folder = tmp_path_factory.mktemp("int8") / "out"
    card = export(checkpoint(), folder, int8=Int8Options())
    assert card.quantized
    assert card.quantized.min_cosine >= 0.99
    assert card.quantized.mean_cosine >= 0.998
    return open_session(folder / "encoder.onnx")


def hidden(session: onnxruntime.InferenceSession, texts: Texts) -> list[NDArray[np.float32]]:
    """Return the rows of each text of a batch."""
    ids, lengths = np.concatenate(texts), [len(text) for text in texts]
    feeds: dict[str, Any] = {"ids": ids, "types": np.zeros_like(ids), "mask": np.ones(len(ids), bool)}
    feeds |= {"positions": np.concatenate([np.arange(length) for length in lengths]), "lengths": np.array(lengths)}
    rows: Any = session.run(None, feeds)[0]
    return np.split(rows, np.cumsum(lengths)[:-1])


def test_vectors_point_where_sentence_transformers_do(session: onnxruntime.InferenceSession) -> None:
    cosines = []
    for case in cases():
        if not case.is_ids and not any(case.token_type_ids):
            vector = hidden(session, [np.array(case.input_ids)])[0].mean(axis=0, dtype=np.float64)
            cosines.append(float(vector @ case.unit / np.linalg.norm(vector)))
    assert len(cosines) > 30
    assert np.mean(cosines) >= 0.998
    assert min(cosines) >= 0.99


@pytest.fixture(scope="module")
def texts(session: onnxruntime.InferenceSession) -> tuple[Texts, list[NDArray[np.float32]]]:
    """Random texts of 1 to 60 tokens, and the rows of each alone."""
    random = np.random.default_rng(6)
    texts: Texts = [random.integers(1000, 30000, length) for length in range(1, 61)]
    return texts, [hidden(session, [text])[0] for text in texts]


@pytest.mark.parametrize("seed", sampled(range(20), 10))
def test_no_neighbour_changes_the_bits_of_a_text(
    seed: int, session: onnxruntime.InferenceSession, texts: tuple[Texts, list[NDArray[np.float32]]]
) -> None:
    own, alone = texts
    random = np.random.default_rng(seed)
    for _ in range(ARRANGEMENTS):
        longest = int(random.choice([8, 20, 60]))
        chosen = random.integers(0, longest, random.integers(2, 1 + 300 // longest))
        for number, rows in zip(chosen, hidden(session, [own[number] for number in chosen]), strict=True):
            np.testing.assert_array_equal(rows, alone[number])
