"""int8 matrices: what codes stand for, and the products that graphs make of them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from models.checkpoints import safetensors
from models.checkpoints.safetensors import TensorSource
from models.graphs.builder import GraphBuilder, save
from models.graphs.projections import Int8
from models.recipes.steps import FeedForward, Linear
from models.tables.int8_matrices import products, quantized, session_entries, view
from tests.onnx_sessions import open_session

STEP = FeedForward(Linear("up", "bias"), Linear("down", None), "gelu")
UP, DOWN = products((STEP,))
WIDTH, INNER = 48, 64


@pytest.fixture
def tensors() -> dict[str, Any]:
    random = np.random.default_rng(3)
    up = random.normal(size=(INNER, WIDTH)).astype(np.float32)
    up[5] = 0
    up[:, 7] *= 50
    bias = random.normal(size=INNER).astype(np.float32)
    return {"up": up, "bias": bias, "down": random.normal(size=(WIDTH, INNER)).astype(np.float16)}


@pytest.fixture
def largest() -> NDArray[np.float32]:
    columns = np.ones(WIDTH, np.float32)
    columns[3] = 40
    return columns


def test_codes_are_within_half_a_step(tensors: dict[str, Any], largest: NDArray[np.float32]) -> None:
    stored = {name: source[:] for name, source in quantized(tensors, (STEP,), {UP.smoothing: largest}).items()}
    assert stored["up.int8_codes"].shape == (WIDTH, INNER)
    assert {"up", "down"}.isdisjoint(stored)
    smoothing = {"up": stored["up.smoothing"], "down": np.ones(INNER)}
    for name, matrix in view(stored, (STEP,)).items():
        if name == "bias":
            continue
        half = np.asarray(stored[f"{name}.int8_scales"][:, None] * smoothing[name] / 2, np.float64)
        assert matrix.shape == tensors[name].shape
        assert (np.abs(matrix.astype(np.float64) - tensors[name]) <= half * 1.001).all()


def product_graph(
    folder: Path, tensors: dict[str, Any], largest: NDArray[np.float32], entries: dict[str, str] | None = None
) -> onnxruntime.InferenceSession:
    """Return a session that computes up(x) in int8; `entries`: its configuration, None: that for this processor."""
    stored = quantized(tensors, (STEP,), {UP.smoothing: largest})
    sources = [
        TensorSource(name, safetensors.NAMES[np.dtype(array.dtype)], array.shape, [array[:]])
        for name, array in stored.items()
    ]
    sources.sort(key=lambda source: -np.dtype(safetensors.DTYPES[source.dtype]).itemsize)
    builder = GraphBuilder(safetensors.write(folder / "weights.safetensors", sources))
    (y,) = Int8().emit(builder, UP, "x")
    model = builder.model("up", {"x": ("FLOAT", ("n", WIDTH))}, {"y": (y, "FLOAT", ("n", INNER))})
    save(model, folder / "up.onnx")
    return open_session(folder / "up.onnx", entries)


def test_product_is_within_its_quantization_error(
    tensors: dict[str, Any], largest: NDArray[np.float32], tmp_path: Path
) -> None:
    random = np.random.default_rng(4)
    x = random.normal(size=(9, WIDTH)).astype(np.float32) * np.logspace(-3, 3, 9, dtype=np.float32)[:, None]
    x[4] = 0
    (y,) = product_graph(tmp_path, tensors, largest).run(None, {"x": x})
    stored = {name: source[:] for name, source in quantized(tensors, (STEP,), {UP.smoothing: largest}).items()}
    matrix = view(stored, (STEP,))["up"].astype(np.float64)
    row_step = np.abs(x * stored["up.smoothing"]).max(axis=1, keepdims=True) / 127
    bound = row_step / 2 * np.abs(matrix / stored["up.smoothing"]).sum(axis=1)
    difference = np.abs(y - tensors["bias"] - x.astype(np.float64) @ matrix.T)
    assert (difference <= bound * 1.01 + 1e-4 * np.abs(y).max(axis=1, keepdims=True)).all()
    np.testing.assert_array_equal(y[4], tensors["bias"])


def test_product_of_a_row_depends_on_that_row_alone(
    tensors: dict[str, Any], largest: NDArray[np.float32], tmp_path: Path
) -> None:
    random = np.random.default_rng(5)
    x = random.normal(size=(40, WIDTH)).astype(np.float32) * 10 ** random.uniform(-4, 4, (40, 1)).astype(np.float32)
    session = product_graph(tmp_path, tensors, largest)
    (together,) = session.run(None, {"x": x})
    for row, expected in zip(x, together, strict=True):
        np.testing.assert_array_equal(session.run(None, {"x": row[None]})[0][0], expected)


def test_exact_kernels_are_requested_where_sums_would_clamp(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("flags\t\t: fpu sse4_1 avx2 avx512f\n", encoding="utf-8")
    new.write_text("flags\t\t: fpu avx2 avx512f avx512_vnni\n", encoding="utf-8")
    exact = {"session.x64quantprecision": "1"}
    assert session_entries("x86_64", old) == session_entries("x86_64", tmp_path / "none") == exact
    assert session_entries("x86_64", new) == session_entries("aarch64", old) == {}


def test_exact_kernels_give_the_same_bits(
    tensors: dict[str, Any], largest: NDArray[np.float32], tmp_path: Path
) -> None:
    x = np.random.default_rng(6).normal(size=(30, WIDTH)).astype(np.float32)
    (here,) = product_graph(tmp_path, tensors, largest).run(None, {"x": x})
    exact = session_entries("x86_64", tmp_path / "none")
    np.testing.assert_array_equal(product_graph(tmp_path, tensors, largest, exact).run(None, {"x": x})[0], here)
