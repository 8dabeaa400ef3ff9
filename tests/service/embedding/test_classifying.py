"""What makes scores of a classifier's logits."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from models.recipes.heads import Classifier
from service.embedding.ranking import ACTIVATIONS, Labelled, label_activation

LOGITS = np.array([[800.0, -800.0, 0.0], [1.0, 2.0, 3.0]])


@pytest.mark.parametrize(
    ("labels", "problem_type", "activation"),
    [
        (1, None, "sigmoid"),
        (3, None, "softmax"),
        (3, "single_label_classification", "softmax"),
        (3, "multi_label_classification", "sigmoid"),
    ],
)
def test_labels_are_activated_by_their_number_and_the_problem(
    labels: int, problem_type: str | None, activation: str
) -> None:
    classifier: Any = SimpleNamespace(labels=("a",) * labels, problem_type=problem_type)
    assert label_activation(cast(Classifier, classifier)) == activation


def test_activations_of_large_logits_are_finite() -> None:
    np.testing.assert_array_equal(ACTIVATIONS["sigmoid"](LOGITS)[0], [1.0, 0.0, 0.5])
    np.testing.assert_array_equal(ACTIVATIONS["softmax"](LOGITS)[0], [1.0, 0.0, 0.0])
    np.testing.assert_allclose(ACTIVATIONS["softmax"](LOGITS)[1], np.exp(LOGITS[1]) / np.exp(LOGITS[1]).sum())


def test_equal_labels_keep_their_order() -> None:
    result: Any = None
    assert Labelled(np.array([[0.25, 0.5, 0.25]]), ("a", "b", "c"), result).best_first(0) == [
        ("b", 0.5),
        ("a", 0.25),
        ("c", 0.25),
    ]
