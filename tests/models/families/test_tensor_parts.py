"""Tensors inside fused tensors: cut where transformers cuts, and no more is fetched than they need."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from models.artifacts.export import export
from models.checkpoints.checkpoint import Checkpoint, open_checkpoint, read_tensors
from models.errors import BadCheckpoint
from models.families import opening
from models.families.config import Config
from models.families.family import TensorPart, by_heads, equal
from models.families.fitting import fit
from models.families.tensor_parts import stored_part
from tests.gguf_files import random_blocks, write_gguf
from tests.golden_cases import write_folder
from tests.hub_server import serving
from tests.whole_models import SIZES, write_whole

Arrays = dict[str, NDArray[Any]]
WHOLE = np.arange(24 * 6, dtype=np.float32).reshape(24, 6)
STACK = WHOLE.reshape(3, 8, 6)
CONFIG = Config({"num_attention_heads": 4, "num_key_value_heads": 1}, {}, {})
QUERIES, KEYS, VALUES = WHOLE[:16], WHOLE[16:20], WHOLE[20:]  # of 4 heads and 1, each 4 wide
BY_HEAD = WHOLE.reshape(4, 3, 2, 6)  # GPT-NeoX: heads, (query, key, value), width of a head


def one(tmp_path: Path, part: TensorPart, whole: NDArray[Any] = WHOLE, name: str = "part") -> NDArray[Any]:
    """A part of a tensor, read from a file in which others lie around it."""
    held = {"a": np.ones((3, 5), np.float32), "whole": whole, "z": np.ones(7, whole.dtype)}
    checkpoint = open_checkpoint(write_folder(tmp_path / "x", {"model_type": "llama"}, held))
    found = stored_part(name, part, checkpoint.tensors["whole"], CONFIG)
    array = read_tensors(Checkpoint(checkpoint.folder, {}, {name: found.tensor}), [name])[name]
    view = found.view(array)
    assert view.shape == found.shape
    return np.asarray(view[:])


PARTS: dict[str, tuple[TensorPart, NDArray[Any]]] = {
    "the whole": (TensorPart("whole"), WHOLE),
    "first half": (TensorPart("whole", 0, equal(2)), WHOLE[:12]),
    "second half": (TensorPart("whole", 1, equal(2)), WHOLE[12:]),
    "last third": (TensorPart("whole", 2, equal(3)), WHOLE[16:]),
    "queries": (TensorPart("whole", 0, by_heads), QUERIES),
    "keys": (TensorPart("whole", 1, by_heads), KEYS),
    "values": (TensorPart("whole", 2, by_heads), VALUES),
    "queries of groups": (TensorPart("whole", 0, equal(3), lambda config: 4), BY_HEAD[:, 0].reshape(8, 6)),
    "values of groups": (TensorPart("whole", 2, equal(3), lambda config: 4), BY_HEAD[:, 2].reshape(8, 6)),
    "transposed": (TensorPart("whole", transposed=True), WHOLE.T),
    "transposed third": (TensorPart("whole", 1, equal(3), transposed=True), WHOLE.T[2:4]),
    "of an expert of a stack": (TensorPart("stack", experts=lambda config: 3, expert=1), STACK[1]),
    "second half of an expert": (TensorPart("stack", 1, equal(2), experts=lambda config: 3, expert=2), STACK[2, 4:]),
    "transposed, of an expert": (TensorPart("stack", transposed=True, experts=lambda config: 3, expert=1), STACK[1].T),
    "rows of an expert": (TensorPart("whole", experts=lambda config: 6, stacked=False, expert=4), WHOLE[16:20]),
    "rows of an expert, transposed": (
        TensorPart("whole", transposed=True, experts=lambda config: 6, stacked=False, expert=5),
        WHOLE[20:].T,
    ),
    "transposed groups": (
        TensorPart("whole", 1, equal(3), lambda config: 2, transposed=True),
        WHOLE.T.reshape(2, 3, 24)[:, 1],
    ),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_cut_as_numpy_cuts(name: str, dtype: Any, tmp_path: Path) -> None:
    part, expected = PARTS[name]
    whole = STACK if part.stem == "stack" else WHOLE
    np.testing.assert_array_equal(one(tmp_path, part, whole.astype(dtype)), expected.astype(dtype))


def test_a_vector_is_cut_alike_and_never_transposed(tmp_path: Path) -> None:
    """GPT-2's Conv1D transposes matrices, not biases."""
    vector = np.arange(12, dtype=np.float32)
    part = one(tmp_path, TensorPart("whole", 1, equal(3), transposed=True), vector)
    np.testing.assert_array_equal(part, vector[4:8])
    part = one(tmp_path, TensorPart("whole", 1, equal(3), lambda config: 2), vector)
    np.testing.assert_array_equal(part, [2, 3, 8, 9])


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (TensorPart("whole", experts=lambda config: 3), r"'whole' has shape \[24, 6\], which is not of 3 experts"),
        (
            TensorPart("whole", experts=lambda config: 5, stacked=False),
            r"has shape \[24, 6\], which is not of 5 experts",
        ),
        (TensorPart("whole", 0, equal(5)), r"has 24 rows; 1 groups of 1 \+ 1 \+ 1 \+ 1 \+ 1 do not divide them"),
        (TensorPart("whole", 0, equal(3), lambda config: 7), "7 groups of"),
        (TensorPart("whole", 0, equal(4), transposed=True), "has 6 rows"),
    ],
)
def test_rejects_sizes_that_do_not_divide(part: TensorPart, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=message):
        one(tmp_path, part)


# ---- whole checkpoints


def fused(folder: Path, model_type: str) -> tuple[Path, Arrays]:
    """A checkpoint with fused tensors, and the tensors that they hold."""
    own = load_file(write_whole(folder / "apart", model_type) / "model.safetensors")
    stored = dict(own)
    for layer in range(SIZES["num_hidden_layers"]):  # type: ignore[call-overload]
        stem = f"model.layers.{layer}"
        for names, place in (("qkv", "self_attn.qkv_proj"), (("gate", "up"), "mlp.gate_up_proj")):
            inner = place.split(".")[0]
            parts = [stored.pop(f"{stem}.{inner}.{name}_proj.weight") for name in names]
            stored[f"{stem}.{place}.weight"] = np.concatenate(parts)
    config = {"model_type": model_type, "dtype": "float32"} | SIZES
    return write_folder(folder / "fused", config, stored), own


def test_a_plan_reads_fused_tensors_apart(tmp_path: Path) -> None:
    folder, own = fused(tmp_path, "phi3")
    checkpoint = open_checkpoint(folder)
    fitted = fit(checkpoint)
    arrays = fitted.read(checkpoint)
    assert {name for name in arrays if name in fitted.parts} == {name for name in own if "_proj" in name} - {
        name for name in own if "o_proj" in name or "down_proj" in name
    }
    for name, expected in own.items():
        np.testing.assert_array_equal(np.asarray(arrays[name][:]), expected)


def test_an_export_of_fused_tensors_is_that_of_tensors_apart(tmp_path: Path) -> None:
    folder, _ = fused(tmp_path, "phi3")
    export(folder, tmp_path / "a", encoder=True)
    export(tmp_path / "apart", tmp_path / "b", encoder=True)
    first, second = (load_file(tmp_path / name / "weights.safetensors") for name in "ab")
    assert first.keys() == second.keys()
    for name, expected in second.items():
        np.testing.assert_array_equal(first[name], expected)


def test_rejects_a_fused_tensor_of_another_size(tmp_path: Path) -> None:
    folder, _ = fused(tmp_path, "phi3")
    stored = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.qkv_proj.weight"
    config = {"model_type": "phi3"} | SIZES
    write_folder(folder, config, stored | {name: stored[name][:-8]})
    with pytest.raises(BadCheckpoint, match=r"has shape \[28, 16\], but config.json makes it \[32, 16\]"):
        export(folder, tmp_path / "out", encoder=True)
    write_folder(folder, config, stored | {name: stored[name][:-3]})
    with pytest.raises(BadCheckpoint, match=r"61 rows; 1 groups of 4 \+ 2 \+ 2 do not divide them"):
        export(folder, tmp_path / "out", encoder=True)


def test_of_a_hub_repository_the_rows_of_a_part_are_fetched(tmp_path: Path) -> None:
    folder, own = fused(tmp_path, "phi3")
    name = "model.layers.1.self_attn.k_proj.weight"
    with serving(folder) as hub, opening.opened("org/name", endpoint=hub.endpoint) as checkpoint:
        part = fit(checkpoint).parts[name]
        before = hub.sent
        alone = Checkpoint(checkpoint.folder, {}, {name: part.tensor}, "", checkpoint.fetch)
        array = part.view(read_tensors(alone, [name])[name])
        np.testing.assert_array_equal(np.asarray(array[:]), own[name])
        assert hub.sent - before == own[name].nbytes


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
def test_rows_of_a_quantized_tensor_are_its_part(kind: str, tmp_path: Path) -> None:
    blocks = random_blocks(kind, 24, 512)
    path = write_gguf(
        tmp_path / "x.gguf",
        "olmoe",  # whose tensors keep the file's names
        {"embedding_length": 512, "block_count": 1, "attention.head_count": 4, "context_length": 64},
        {"token_embd.weight": np.ones((8, 512), np.float32), "blk.0.attn_qkv.weight": (kind, blocks)},
    )
    expected = gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind]).reshape(24, 512)
    with opening.opened(path) as checkpoint:
        whole = checkpoint.tensors["blk.0.attn_qkv.weight"]
        for index, rows in enumerate((slice(0, 16), slice(16, 20), slice(20, 24))):
            part = stored_part("part", TensorPart("whole", index, by_heads), whole, CONFIG)
            array = read_tensors(Checkpoint(checkpoint.folder, {}, {"part": part.tensor}), ["part"])["part"]
            np.testing.assert_array_equal(np.asarray(part.view(array)[:]), expected[rows])
