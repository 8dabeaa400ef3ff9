"""Encoders whose matrices are multiplied as the file holds them, without a packed copy."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.export import export
from service.runtime import onnx
from tests.whole_models import write_whole

SIZES = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 512}


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_one_token_has_the_same_bits_by_mapped_weights(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product of one row that is not packed takes a kernel of its own: the token is run twice, an expert's too."""
    card = export(write_whole(tmp_path / "x", family, **SIZES, **EXPERTS), tmp_path / "out", encoder=True)
    monkeypatch.setattr(onnx, "MAX_PACKED", 0)
    engine = onnx.load(tmp_path / "out", card, "cpu", 1)

    def rows(lengths: list[int]) -> NDArray[np.float32]:
        places = np.concatenate([np.arange(length) for length in lengths])
        feeds = {"ids": np.full(len(places), 5), "positions": places, "mask": np.ones(len(places), bool)}
        feeds["lengths"] = np.array(lengths)
        return engine.run("encoder", feeds, ["last_hidden_state"])[0]

    alone = rows([1])
    assert alone.shape == (1, 256)
    np.testing.assert_array_equal(alone, rows([1, 7])[:1])


def test_few_rows_of_an_expert_keep_their_bits_when_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts get one row, or two, of a short text, and more where others are batched beside it."""
    card = export(write_whole(tmp_path / "x", "qwen3_moe", **SIZES, **EXPERTS), tmp_path / "out", encoder=True)
    monkeypatch.setattr(onnx, "MAX_PACKED", 0)
    engine, random = onnx.load(tmp_path / "out", card, "cpu", 1), np.random.default_rng(5)
    texts = [random.integers(0, card.vocab_size, length) for length in (2, 3, 5, 9, 70)]

    def rows(own: list[NDArray[np.int64]]) -> NDArray[np.float32]:
        feeds = {"ids": np.concatenate(own), "positions": np.concatenate([np.arange(len(text)) for text in own])}
        feeds |= {"mask": np.ones(len(feeds["ids"]), bool), "lengths": np.array([len(text) for text in own])}
        return engine.run("encoder", feeds, ["last_hidden_state"])[0]

    together = np.split(rows(texts), np.cumsum([len(text) for text in texts])[:-1])
    for text, expected in zip(texts, together, strict=True):
        np.testing.assert_array_equal(rows([text]), expected)
