"""Adoption of ONNX files: tiny graphs built here, checked with numpy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.artifacts import card as cards
from models.artifacts.adoption import adopt
from models.artifacts.verification import verify
from models.errors import BadCheckpoint, ModelError
from tests.golden_cases import write_json, write_sentence_files, write_tokenizer
from tests.onnx_sessions import open_session

WIDTH, WORDS = 8, 27
TABLE = np.random.default_rng(3).normal(size=(WORDS, WIDTH)).astype(np.float32)
CONFIG = {
    "model_type": "bert",
    "hidden_size": WIDTH,
    "vocab_size": WORDS,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}


def model(
    inputs: tuple[str, ...] = ("input_ids", "attention_mask"),
    hidden: str | None = "last_hidden_state",
    pooled: bool = False,
    element: int = TensorProto.INT64,
    shape: tuple[Any, ...] = ("batch", "sequence"),
    scale: str = "",
    table: NDArray[Any] = TABLE,
) -> Any:
    """Return a graph of a table's rows and their masked mean, as the table's dtype.

    `scale` is "all": rows are multiplied by a value of the whole batch; "dynamic": they are quantized by its range.
    """
    mean, width, kind = helper.make_tensor, table.shape[1], helper.np_dtype_to_tensor_dtype(table.dtype)
    constants = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.array([1]), "axis")]
    constants += [numpy_helper.from_array(np.array([2]), "last"), mean("tiny", kind, [], [1e-6])]
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["rows"])]
    if scale == "dynamic":
        nodes += [
            helper.make_node("DynamicQuantizeLinear", ["rows"], ["codes", "step", "zero"]),
            helper.make_node("DequantizeLinear", ["codes", "step", "zero"], ["all"]),
        ]
    elif scale:
        nodes += [
            helper.make_node("ReduceMax", ["rows"], ["most"], keepdims=0),
            helper.make_node("Mul", ["rows", "most"], ["all"]),
        ]
    else:
        nodes += [helper.make_node("Identity", ["rows"], ["all"])]
    outputs = []
    if hidden:
        nodes.append(helper.make_node("Identity", ["all"], [hidden]))
        outputs.append(helper.make_tensor_value_info(hidden, kind, [*shape, width]))
    if pooled:
        nodes += [
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=kind),
            helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
            helper.make_node("Mul", ["all", "column"], ["kept"]),
            helper.make_node("ReduceSum", ["kept", "axis"], ["sum"], keepdims=0),
            helper.make_node("ReduceSum", ["mask", "axis"], ["count"], keepdims=1),
            helper.make_node("Max", ["count", "tiny"], ["counted"]),
            helper.make_node("Div", ["sum", "counted"], ["sentence_embedding"]),
        ]
        outputs.append(helper.make_tensor_value_info("sentence_embedding", kind, [shape[0], width]))
    values = [helper.make_tensor_value_info(name, element, shape) for name in inputs]
    graph = helper.make_graph(nodes, "tiny", values, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def folder_of(place: Path, made: Any, config: dict[str, Any] | None = None, at: str = "onnx/model.onnx") -> Path:
    (place / at).parent.mkdir(parents=True, exist_ok=True)
    onnx.save(made, place / at)
    write_json(place / "config.json", CONFIG | (config or {}))
    write_tokenizer(place / "tokenizer.json")
    return place


def test_adopt_copies_graph_bytes_and_graph_runs(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "x", model())
    card = adopt(place, tmp_path / "out")
    assert (tmp_path / "out/model.onnx").read_bytes() == (place / "onnx/model.onnx").read_bytes()
    assert set(card.files) == {"model.onnx", "tokenizer.json"}
    graph = card.graphs["encoder"]
    assert (graph.layout, graph.inputs, graph.outputs, graph.rename) == (
        "padded",
        ("input_ids", "attention_mask"),
        ("last_hidden_state",),
        {},
    )
    assert (card.types, card.type_rows, card.max_tokens, card.hidden_size) == ("none", 0, 40, WIDTH)
    ids = np.array([[2, 5, 3]])
    session = open_session(tmp_path / "out" / graph.file)
    hidden = session.run(list(graph.outputs), {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
    np.testing.assert_array_equal(hidden, TABLE[ids])


def test_adopted_card_reads_back_and_verifies(tmp_path: Path) -> None:
    card = adopt(folder_of(tmp_path / "x", model(pooled=True)), tmp_path / "out", name="mine")
    assert cards.read(tmp_path / "out") == card
    assert card.name == "mine"
    assert verify(tmp_path / "out") == card.largest_difference
    assert set(card.largest_difference) == {"last_hidden_state", "sentence_embedding"}


def test_optimum_token_embeddings_become_last_hidden_state(tmp_path: Path) -> None:
    card = adopt(folder_of(tmp_path / "x", model(hidden="token_embeddings", pooled=True)), tmp_path / "out")
    graph = card.graphs["encoder"]
    assert graph.outputs == ("last_hidden_state", "sentence_embedding")
    assert graph.rename == {"last_hidden_state": "token_embeddings"}
    assert card.default_output == "sentence_embedding"
    assert card.pooling is None
    assert cards.read(tmp_path / "out").graphs["encoder"].rename == graph.rename


def test_unpooled_graph_takes_pooling_from_files(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "x", model())
    write_sentence_files(place, "cls")
    card = adopt(place, tmp_path / "out")
    assert card.pooling is not None
    assert (card.pooling.mode, card.default_output, card.max_tokens) == ("cls", "sentence_embedding", 24)
    assert adopt(place, tmp_path / "out", pooling="none").default_output == "last_hidden_state"


def test_graph_with_token_type_ids_gets_segments(tmp_path: Path) -> None:
    card = adopt(folder_of(tmp_path / "x", model(("input_ids", "attention_mask", "token_type_ids"))), tmp_path / "out")
    assert (card.types, card.type_rows) == ("zeros", 2)


def test_finds_model_onnx_beside_config(tmp_path: Path) -> None:
    assert adopt(folder_of(tmp_path / "x", model(), at="model.onnx"), tmp_path / "out").family == "bert"


def test_copies_external_weights(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "x", model())
    made = model()
    onnx.save(made, place / "onnx/model.onnx", save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    card = adopt(place, tmp_path / "out")
    assert {"model.onnx", "model.onnx_data"} <= set(card.files)
    assert (tmp_path / "out/model.onnx_data").read_bytes() == (place / "onnx/model.onnx_data").read_bytes()
    assert card.parameters == TABLE.size + 3
    (place / "onnx/model.onnx_data").unlink()
    with pytest.raises(BadCheckpoint, match=r"keeps weights in 'model.onnx_data', which is not there"):
        adopt(place, tmp_path / "again")


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname"])
def test_rejects_external_weights_outside_folder(location: str, tmp_path: Path) -> None:
    place = folder_of(tmp_path / "x", model())
    (place / "secret").write_bytes(TABLE.tobytes())
    made = onnx.load(place / "onnx/model.onnx")
    table = made.graph.initializer[0]
    table.ClearField("raw_data")
    table.data_location = TensorProto.EXTERNAL
    table.external_data.add(key="location", value=location)
    (place / "onnx/model.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(BadCheckpoint, match="lies outside its folder"):
        adopt(place, tmp_path / "out")


def test_unknown_family_may_number_positions_in_graph(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "x", model(), {"model_type": "mystery"})
    card = adopt(place, tmp_path / "out")
    assert (card.family, card.max_tokens, card.position.kind) == ("mystery", 40, "arange")
    wants = folder_of(tmp_path / "y", model(("input_ids", "attention_mask", "position_ids")), {"model_type": "mystery"})
    with pytest.raises(BadCheckpoint, match="wants position_ids, and how model_type 'mystery' numbers positions"):
        adopt(wants, tmp_path / "out2")


def test_adopted_roberta_keeps_position_limit(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "x", model(), {"model_type": "roberta", "pad_token_id": 1})
    assert adopt(place, tmp_path / "out").max_tokens == 38


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "int32 inputs": (
        lambda: model(element=TensorProto.INT32),
        r"takes input_ids as tensor\(int32\); Inlay feeds int64",
    ),
    "an unknown input": (
        lambda: model(("input_ids", "attention_mask", "past_key_values")),
        "wants the input 'past_key_values'; Inlay feeds input_ids, attention_mask",
    ),
    "a fixed shape": (lambda: model(shape=(1, 16)), r"of shape \[1, 16\]; batch and length must both be free"),
    "no mask": (lambda: model(("input_ids",)), "must take input_ids and attention_mask"),
    "float64 outputs": (
        lambda: model(table=TABLE.astype(np.float64)),
        r"gives last_hidden_state as tensor\(double\); tensor\(float\) or tensor\(float16\) is served",
    ),
    "an unknown output": (lambda: model(hidden="logits"), "gives logits; one of last_hidden_state"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rejects_graph_with_unsupported_inputs_or_outputs(name: str, tmp_path: Path) -> None:
    make, message = REFUSED[name]
    with pytest.raises(BadCheckpoint, match=message) as caught:
        adopt(folder_of(tmp_path / "x", make()), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_rejects_width_that_differs_from_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"8 wide, but .*config\.json:1 says hidden_size 9"):
        adopt(folder_of(tmp_path / "x", model(), {"hidden_size": 9}), tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"not a protobuf at all" * 9])
def test_rejects_file_that_is_not_onnx(content: bytes, tmp_path: Path) -> None:
    place = folder_of(tmp_path / "x", model())
    (place / "onnx/model.onnx").write_bytes(content)
    with pytest.raises(ModelError, match="ONNX"):
        adopt(place, tmp_path / "out")


def test_error_names_expected_onnx_paths(tmp_path: Path) -> None:
    write_json(tmp_path / "x/config.json", CONFIG)
    with pytest.raises(BadCheckpoint, match=r"holds neither onnx/model\.onnx nor model\.onnx"):
        adopt(tmp_path / "x", tmp_path / "out")


@pytest.mark.parametrize("name", ["card.json", "tokenizer.json", "model.onnx"])
def test_rejects_external_weights_under_a_name_that_is_written(name: str, tmp_path: Path) -> None:
    place = folder_of(tmp_path / "x", model(), at="onnx/graph.onnx")
    onnx.save(model(), place / "onnx/graph.onnx", save_as_external_data=True, location=name, size_threshold=0)
    with pytest.raises(BadCheckpoint, match=rf"x/onnx/graph\.onnx keeps weights in '{name}', a name that is taken"):
        adopt(place, tmp_path / "out", file="onnx/graph.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_chosen_file_is_adopted_under_one_name(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "x", model())
    onnx.save(model(scale="dynamic"), place / "onnx/model_quantized.onnx")
    card = adopt(place, tmp_path / "out", file="onnx/model_quantized.onnx")
    assert (tmp_path / "out/model.onnx").read_bytes() == (place / "onnx/model_quantized.onnx").read_bytes()
    assert card.adopted
    assert card.adopted.path == "onnx/model_quantized.onnx"
    assert cards.read(tmp_path / "out") == card


CHOICES = {
    "a file that is not there": (
        "onnx/model_q4.onnx",
        r"x holds no file 'onnx/model_q4\.onnx', but deep/other\.onnx, onnx/model\.onnx: choose one with --file",
    ),
    "a file outside": ("../x/onnx/model.onnx", r"leads out of .*x: give a path inside it, as onnx/model\.onnx"),
    "an absolute path": ("/etc/hostname", "leads out of"),
    "no ONNX": ("config.json", r"x/config\.json is not an ONNX file"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_wrong_choice_of_file_is_one_line(name: str, tmp_path: Path) -> None:
    place = folder_of(tmp_path / "x", model())
    folder_of(place, model(), at="deep/other.onnx")
    file, message = CHOICES[name]
    with pytest.raises(BadCheckpoint, match=message) as caught:
        adopt(place, tmp_path / "out", file=file)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_without_the_usual_files_error_lists_the_others(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "x", model(), at="onnx/model_fp16.onnx")
    message = r"holds neither onnx/model\.onnx nor model\.onnx, but onnx/model_fp16\.onnx: choose one with --file"
    with pytest.raises(BadCheckpoint, match=message):
        adopt(place, tmp_path / "out")


def test_rejects_graph_whose_values_are_not_finite(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="last_hidden_state holds values that are not finite"):
        adopt(folder_of(tmp_path / "x", model(table=np.full_like(TABLE, np.inf))), tmp_path / "out")


def test_static_embedding_is_left_to_export(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "x", model(), {"model_type": "model2vec"})
    with pytest.raises(BadCheckpoint, match=r"is a static embedding.*`inlay export` takes it"):
        adopt(place, tmp_path / "out")
