"""A foreign ONNX model with a fault inside: one token id divides nought by nought. Adopted as any other."""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.artifacts.adoption import adopt

BAD_ID = 1777
VOCAB, WIDTH = 4000, 16


def adopted(folder: Path) -> Path:
    """A store whose model `bert` gives no numbers for BAD_ID."""
    source = folder / "source"
    source.mkdir(parents=True)
    random = np.random.default_rng(5)
    table = random.normal(size=(VOCAB, WIDTH)).astype(np.float32)
    scale = np.ones((VOCAB, 1), np.float32)
    table[BAD_ID], scale[BAD_ID] = 0, 0
    axes = ["batch", "length"]
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
            helper.make_node("Gather", ["scale", "input_ids"], ["scales"]),
            helper.make_node("Div", ["rows", "scales"], ["scaled"]),
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
            helper.make_node("Mul", ["scaled", "column"], ["last_hidden_state"]),
        ],
        "divides",
        [helper.make_tensor_value_info(name, TensorProto.INT64, axes) for name in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*axes, WIDTH])],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(scale, "scale"),
            numpy_helper.from_array(np.array([-1], np.int64), "last"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, source / "model.onnx")
    config = {
        "model_type": "bert",
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "max_position_embeddings": 128,
        "type_vocab_size": 2,
        "pad_token_id": 0,
    }
    (source / "config.json").write_text(json.dumps(config))
    adopt(source, folder / "store/bert", pooling="mean")
    return folder / "store"
