"""How loadtest.swap attributes answers to versions, and the second version that it creates."""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from loadtest.model_variants import reversed_layers
from loadtest.swap_clients import POOLED, AnswerLog

RNG = np.random.default_rng(6)


def answer_log() -> tuple[AnswerLog, dict[str, list[np.ndarray]]]:
    vectors = {name: list(RNG.normal(size=(3, 8)).astype(np.float32)) for name in ("a", "b")}
    return AnswerLog({name: [{POOLED: row} for row in rows] for name, rows in vectors.items()}), vectors


def test_answers_that_mix_two_versions_fit_neither() -> None:
    log, vectors = answer_log()
    a, b = vectors["a"], vectors["b"]
    assert log.recognise([(0, {POOLED: a[0]}), (2, {POOLED: a[2]})]) == "a"
    assert log.recognise([(1, {POOLED: b[1] + np.float32(1e-6)})]) == "b"
    assert log.recognise([(0, {POOLED: a[0]}), (1, {POOLED: b[1]})]) is None
    assert log.recognise([(0, {POOLED: a[0] + np.float32(1e-3)})]) is None


def test_answers_of_a_version_replaced_earlier_are_stale() -> None:
    log, vectors = answer_log()
    old, new = [[(0, {POOLED: vectors["a"][0]})]], [[(0, {POOLED: vectors["b"][0]})]]
    for versions in (("a",), ("a", "b"), ("b",)):
        log.start_epoch(*versions)
    log.add_answers("x", 1, 0.1, old)
    log.add_answers("x", 0, 0.1, new)
    assert log.stale == 0
    log.add_answers("x", 2, 0.1, old)
    assert log.stale == 1


def test_second_version_has_reversed_layers_and_shifted_rows(tmp_path: Path) -> None:
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
