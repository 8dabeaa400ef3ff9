"""How the load tools judge: the line through samples against numpy, the version of an answer, the second version."""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from loadtest.process_memory import trend
from loadtest.swap_callers import POOLED, Book
from loadtest.variants import reversed_layers

RNG = np.random.default_rng(6)


def test_the_trend_is_the_line_of_least_squares() -> None:
    seconds = np.sort(RNG.uniform(0, 3600, 200))
    values = 300 + seconds * 0.004 + RNG.normal(0, 2, 200)
    found = trend(list(seconds), list(values))
    (slope, _), covariance = np.polyfit(seconds, values, 1, cov=True)
    hourly = 360_000 / values.mean()
    assert found is not None
    np.testing.assert_allclose(found.percent_an_hour, slope * hourly, atol=1e-3)
    np.testing.assert_allclose(found.error, covariance[0, 0] ** 0.5 * hourly, atol=1e-3)


def book() -> tuple[Book, dict[str, list[np.ndarray]]]:
    vectors = {name: list(RNG.normal(size=(3, 8)).astype(np.float32)) for name in ("a", "b")}
    return Book({name: [{POOLED: row} for row in rows] for name, rows in vectors.items()}), vectors


def test_an_answer_made_of_two_versions_is_of_neither() -> None:
    found, vectors = book()
    a, b = vectors["a"], vectors["b"]
    assert found.recognise([(0, {POOLED: a[0]}), (2, {POOLED: a[2]})]) == "a"
    assert found.recognise([(1, {POOLED: b[1] + np.float32(1e-6)})]) == "b"
    assert found.recognise([(0, {POOLED: a[0]}), (1, {POOLED: b[1]})]) is None
    assert found.recognise([(0, {POOLED: a[0] + np.float32(1e-3)})]) is None


def test_a_version_that_was_exchanged_before_the_question_is_stale() -> None:
    found, vectors = book()
    old, new = [[(0, {POOLED: vectors["a"][0]})]], [[(0, {POOLED: vectors["b"][0]})]]
    for versions in (("a",), ("a", "b"), ("b",)):
        found.serving(*versions)
    found.answered("x", 1, 0.1, old)
    found.answered("x", 0, 0.1, new)
    assert found.stale == 0
    found.answered("x", 2, 0.1, old)
    assert found.stale == 1


def test_the_second_version_has_the_layers_of_the_first_from_the_end(tmp_path: Path) -> None:
    names = ["embeddings.word_embeddings.weight", *(f"encoder.layer.{n}.x.weight" for n in range(3)), "pooler.bias"]
    tensors = {name: RNG.normal(size=(5, 4)).astype(np.float32) for name in names}
    (tmp_path / "first").mkdir()
    save_file(tensors, tmp_path / "first/model.safetensors", {"format": "pt"})
    reversed_layers(tmp_path / "first", tmp_path / "second")
    second = load_file(tmp_path / "second/model.safetensors")
    assert set(second) == set(tensors)
    np.testing.assert_array_equal(second[names[0]], np.roll(tensors[names[0]], 1, axis=0))
    for n in range(3):
        np.testing.assert_array_equal(second[f"encoder.layer.{n}.x.weight"], tensors[f"encoder.layer.{2 - n}.x.weight"])
    np.testing.assert_array_equal(second["pooler.bias"], tensors["pooler.bias"])
