"""modules.onnx: its vectors by formulas, and the same bits for a row alone and among others."""

from pathlib import Path

import numpy as np
import pytest

from models.artifacts.comparison import Session
from models.artifacts.export import export
from models.checkpoints import sentence_modules
from tests.sentence_chains import HIDDEN, NORMALIZE, TORCH, Behind, dense, layer_norm, vectors, write_chain

IDENTITY = "torch.nn.modules.linear.Identity"
CHAINS: dict[str, tuple[Behind, ...]] = {
    "tanh": (dense(HIDDEN, 48),),
    "no bias": (dense(HIDDEN, 48, IDENTITY, False),),
    "two dense": (dense(HIDDEN, 200, IDENTITY, False), dense(200, 33, TORCH + "ReLU")),
    "to one value": (dense(HIDDEN, 1, IDENTITY),),
    "normalize first": (NORMALIZE, dense(HIDDEN, 130)),
    "layer norm": (dense(HIDDEN, 24, IDENTITY), NORMALIZE, layer_norm(24)),
}


def run(name: str, tmp_path: Path, rows: np.ndarray) -> np.ndarray:
    if not (tmp_path / "out").exists():
        export(write_chain(tmp_path / "x", "mean", *CHAINS[name]), tmp_path / "out")
    got: np.ndarray = Session(tmp_path / "out/modules.onnx").run({"pooled": rows}, ["vectors"])["vectors"]
    return got


@pytest.mark.parametrize("name", CHAINS)
def test_vectors_are_those_of_the_formulas(name: str, tmp_path: Path) -> None:
    rows = np.random.default_rng(1).normal(size=(9, HIDDEN)).astype(np.float32)
    np.testing.assert_allclose(run(name, tmp_path, rows), vectors(CHAINS[name], rows), atol=2e-6)


def test_row_of_zeros_stays_zero(tmp_path: Path) -> None:
    chain = NORMALIZE, dense(HIDDEN, 5, IDENTITY, False)
    export(write_chain(tmp_path / "x", "mean", *chain), tmp_path / "out")
    rows = np.zeros((1, HIDDEN), np.float32)
    assert not Session(tmp_path / "out/modules.onnx").run({"pooled": rows}, ["vectors"])["vectors"].any()


@pytest.mark.parametrize("name", CHAINS)
def test_row_has_the_same_bits_alone_and_among_others(name: str, tmp_path: Path) -> None:
    rows = np.random.default_rng(2).normal(size=(70, HIDDEN)).astype(np.float32)
    whole = run(name, tmp_path, rows)
    for count in (1, 2, 3, 4, 5, 7, 8, 15, 16, 33, 64):
        for start in (0, 1, 70 - count):
            part = run(name, tmp_path, rows[start : start + count])
            assert part.tobytes() == whole[start : start + count].tobytes(), (count, start)


def test_activations_are_all_computed(tmp_path: Path) -> None:
    """The export compares each with the float64 reference; tests/parity compares both with torch."""
    for name in sentence_modules.ACTIVATIONS:
        card = export(write_chain(tmp_path / f"x-{name}", "mean", dense(HIDDEN, 8, TORCH + name)), tmp_path / name)
        assert card.largest_difference["sentence_embedding"] < 2e-6
