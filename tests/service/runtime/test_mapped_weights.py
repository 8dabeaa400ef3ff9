"""Encoders whose matrices are multiplied as the file holds them, without a packed copy."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.export import export
from service.runtime import onnx
from tests.whole_models import write_whole


def test_one_token_has_the_same_bits_by_mapped_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of one row that is not packed takes a kernel of its own: the token is run twice."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    card = export(write_whole(tmp_path / "x", "qwen3", **sizes), tmp_path / "out", encoder=True)
    monkeypatch.setattr(onnx, "MOST_PACKED", 0)
    engine = onnx.load(tmp_path / "out", card, "cpu", 1)

    def rows(lengths: list[int]) -> NDArray[np.float32]:
        places = np.concatenate([np.arange(length) for length in lengths])
        feeds = {"ids": np.full(len(places), 5), "positions": places, "mask": np.ones(len(places), bool)}
        feeds["lengths"] = np.array(lengths)
        return engine.run("encoder", feeds, ["last_hidden_state"])[0]

    alone = rows([1])
    assert alone.shape == (1, 256)
    np.testing.assert_array_equal(alone, rows([1, 7])[:1])
