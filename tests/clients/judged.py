"""Texts whose vectors sentence-transformers computed (golden/minilm.*), and how near a client must come to them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.minilm_golden import Case, cases

MODEL = "all-MiniLM-L6-v2"
WIDTH = 384
UNIT = 1e-6

GOLDEN = {case.name: case for case in cases()}
TEXTS = [GOLDEN[name] for name in ("hello", "fox")]
INPUTS = [case.input for case in TEXTS]
IDS = [case.input_ids for case in TEXTS]
TOKENS = sum(map(len, IDS))


def assert_vectors(got: Any, expected: Sequence[Case] = TEXTS, *, tolerance: float = UNIT) -> None:
    """`got` [n, 384] are the unit vectors of these cases."""
    vectors = np.asarray(got, np.float64)
    assert vectors.shape == (len(expected), WIDTH)
    assert furthest(vectors, np.array([case.unit for case in expected])) <= tolerance


def assert_half(got: NDArray[Any], expected: Sequence[Case] = TEXTS) -> None:
    """`got` are these unit vectors in half precision: at most one step of float16 off."""
    assert got.dtype == np.float16
    units = np.array([case.unit for case in expected])
    assert np.abs(got.astype(np.float64) - units).max() <= np.abs(np.spacing(units.astype(np.float16))).max()


def assert_rows(got: Any, case: Case) -> None:
    """`got` [tokens, 384] holds the last hidden rows that were stored of this case."""
    rows = np.asarray(got, np.float64)
    assert rows.shape == (len(case.input_ids), WIDTH)
    assert furthest(rows[case.rows], case.arrays["last_hidden_state"]) <= 5 * UNIT


def similarities(source: Case, others: Sequence[Case]) -> list[float]:
    """Cosines of the golden vectors."""
    return [float(source.unit @ other.unit) for other in others]


def furthest(got: NDArray[Any], expected: NDArray[Any]) -> float:
    return float(np.abs(got - expected).max(initial=0))
