"""Exports with int8 encoders: what is written, what is measured, what is refused."""

from pathlib import Path

import numpy as np
import pytest

from models.artifacts import card as cards
from models.artifacts.description import describe, store
from models.artifacts.export import export
from models.artifacts.int8_encoder import CALIBRATION, EVALUATION, MOST_TEXTS, Int8Options, read_texts
from models.artifacts.random_checkpoint import create
from models.artifacts.verification import verify
from models.artifacts.weights import tensors
from models.checkpoints import safetensors
from models.errors import BadCheckpoint, ModelError, ReferenceMismatch
from tests.golden_cases import Case, case, cases, write_checkpoint, write_json, write_tiny_bert, write_tokenizer
from tests.onnx_sessions import open_session
from tests.sentence_chains import HIDDEN, NORMALIZE, dense, write_chain
from tests.static_golden import static_case
from tests.vision_cases import write_seen

LENIENT = Int8Options(min_cosine=0.5)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_tiny_bert(tmp_path / "checkpoint", pooling="mean")


def test_matrices_of_blocks_lie_on_disk_in_int8_alone(checkpoint: Path, tmp_path: Path) -> None:
    card = export(checkpoint, tmp_path / "store/tiny", int8=LENIENT)
    stored = safetensors.read_header(tmp_path / "store/tiny/weights.safetensors")
    matrices = [tensor for name, tensor in stored.items() if name.startswith("encoder.") and len(tensor.shape) == 2]
    assert len(matrices) == 2 * 6
    assert {tensor.dtype for tensor in matrices} == {"I8"}
    assert {path.name for path in (tmp_path / "store/tiny").iterdir()} == {*card.files, "card.json"}
    graph = (tmp_path / "store/tiny/encoder.onnx").read_bytes()
    assert all(name.encode() in graph for name in stored if name.startswith("encoder."))


def test_matrices_that_layers_share_load_on_every_processor(tmp_path: Path) -> None:
    """ALBERT, with the session entry of x86 without VNNI, which converts the matrix of each product."""
    sizes = {"vocab_size": 34, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    write_json(tmp_path / "sizes.json", sizes | {"num_hidden_layers": 3, "embedding_size": 16})
    create(tmp_path / "x", model_type="albert", config=tmp_path / "sizes.json", whole=True, init="scaled")
    write_tokenizer(tmp_path / "x/tokenizer.json")
    card = export(tmp_path / "x", tmp_path / "out", int8=LENIENT, pooling="mean")
    given = {"lengths": np.array([4]), "types": np.zeros(4, np.int64), "mask": np.ones(4, bool)}
    inputs = {name: given.get(name, np.arange(4)) for name in card.graphs["encoder"].inputs}
    graph = tmp_path / "out/encoder.onnx"
    here = open_session(graph).run(None, inputs)
    exact = open_session(graph, {"session.x64quantprecision": "1"}).run(None, inputs)
    np.testing.assert_array_equal(here[0], exact[0])


def test_parameters_count_what_int8_stands_for(checkpoint: Path, tmp_path: Path) -> None:
    whole = export(checkpoint, tmp_path / "float32")
    card = export(checkpoint, tmp_path / "int8", int8=LENIENT)
    assert card.parameters == whole.parameters
    assert card.bytes < whole.bytes
    assert whole.quantized is None


def test_card_states_the_cosines_to_float32(checkpoint: Path, tmp_path: Path) -> None:
    card = export(checkpoint, tmp_path / "store/tiny", int8=LENIENT)
    assert cards.read(tmp_path / "store/tiny") == card
    assert card.quantized
    assert card.quantized.texts == len(read_texts(EVALUATION))
    assert 0.5 <= card.quantized.min_cosine <= card.quantized.mean_cosine <= 1
    assert f"min {card.quantized.min_cosine:.4f}" in describe(str(tmp_path / "store/tiny"))
    assert " int8 " in store(tmp_path / "store")


def test_cosines_are_those_of_vectors_behind_all_modules(tmp_path: Path) -> None:
    same = dense(HIDDEN, 4)
    same.tensors["linear.weight"][:] = 0
    card = export(write_chain(tmp_path / "x", ["mean", "max"], NORMALIZE), tmp_path / "pooled", int8=LENIENT)
    assert card.quantized
    assert card.quantized.min_cosine < 0.999999
    card = export(write_chain(tmp_path / "x", "mean", same), tmp_path / "same", int8=LENIENT)
    assert card.quantized
    assert card.quantized.min_cosine == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("case", cases("encoder"), ids=str)
def test_every_family_has_an_int8_encoder(case: Case, tmp_path: Path) -> None:
    write_tokenizer(write_checkpoint(case, tmp_path / "x") / "tokenizer.json")
    card = export(tmp_path / "x", tmp_path / "out", int8=LENIENT)
    assert card.quantized
    assert card.quantized.min_cosine > 0.999
    assert verify(tmp_path / "out")["last_hidden_state"] < 0.06


def test_verify_repeats_the_comparison_of_the_export(checkpoint: Path, tmp_path: Path) -> None:
    card = export(checkpoint, tmp_path / "out", int8=LENIENT)
    assert verify(tmp_path / "out") == card.largest_difference
    assert 0 < card.largest_difference["last_hidden_state"] < 0.5


def test_stored_matrices_are_close_to_the_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    card = export(checkpoint, tmp_path / "out", int8=LENIENT)
    exact = safetensors.tensors_of(checkpoint / "model.safetensors")
    for name, matrix in tensors(tmp_path / "out", card).items():
        if name.startswith("encoder.") and len(matrix.shape) == 2:
            difference = np.abs(matrix.astype(np.float64) - exact[name]).max(axis=1)
            assert (difference < 0.05 * np.abs(exact[name]).max(axis=1)).all(), name


def test_refuses_an_encoder_below_the_least_cosine(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ReferenceMismatch, match=r"cosine of 0\.\d+ .*below --min-cosine 1: .*--encoder float32"):
        export(checkpoint, tmp_path / "out", int8=Int8Options(min_cosine=1))
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint"}


@pytest.mark.parametrize("least", [-0.1, 1.1, float("nan")])
def test_rejects_a_least_cosine_that_is_none(least: float) -> None:
    with pytest.raises(ModelError, match=r"--min-cosine .* is not from 0 to 1"):
        Int8Options(min_cosine=least)


def test_calibration_texts_change_the_smoothing(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a b c\n\nd e\n", encoding="utf-8")
    name = "encoder.layer.1.intermediate.dense.weight.smoothing"
    export(checkpoint, tmp_path / "a", int8=LENIENT)
    export(checkpoint, tmp_path / "b", int8=Int8Options(tmp_path / "texts.txt", 0.5))
    a, b = (safetensors.tensors_of(tmp_path / folder / "weights.safetensors")[name] for folder in "ab")
    assert (a > 0).all()
    assert (a != b).any()


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff\xfe", b"a\n" * (MOST_TEXTS + 1), b"a" * (1 << 23)])
def test_rejects_calibration_files_without_usable_texts(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_bytes(content)
    with pytest.raises(ModelError, match=r"--calibration .*(give 1 to|cannot be read)"):
        read_texts(tmp_path / "texts.txt")


def test_rejects_a_missing_calibration_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"--calibration .* cannot be read"):
        read_texts(tmp_path / "none.txt")


def test_refuses_a_checkpoint_without_tokenizer(tmp_path: Path) -> None:
    checkpoint = write_tiny_bert(tmp_path / "checkpoint", tokenizer=False)
    with pytest.raises(BadCheckpoint, match=r"no tokenizer\.json.*--encoder float32"):
        export(checkpoint, tmp_path / "out", int8=LENIENT)


def test_refuses_a_family_without_exported_blocks(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(case("input_llama"), tmp_path / "checkpoint")
    with pytest.raises(ModelError, match=r"'llama'\) cannot be exported whole: .*; its input layer can"):
        export(checkpoint, tmp_path / "out", int8=LENIENT)


def test_refuses_an_image_tower(tmp_path: Path) -> None:
    checkpoint = write_seen(case("vision_vit"), tmp_path / "checkpoint")
    with pytest.raises(ModelError, match=r"image tower.*leave out --encoder int8"):
        export(checkpoint, tmp_path / "out", int8=LENIENT)


def test_refuses_static_embeddings(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no encoder.*leave out --encoder int8"):
        export(static_case("model2vec_mapping").folder, tmp_path / "out", int8=LENIENT)


def test_no_text_is_for_calibration_and_evaluation() -> None:
    calibration, evaluation = read_texts(CALIBRATION), read_texts(EVALUATION)
    assert len({*calibration, *evaluation}) == len(calibration) + len(evaluation)
