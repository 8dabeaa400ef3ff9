"""What of a family is exported follows from the checkpoint's config and tensors."""

import json
from pathlib import Path

import numpy as np
import pytest

from models.artifacts.export import export
from models.families.recipe import Attention
from tests.golden_cases import case, write_checkpoint, write_folder


@pytest.mark.parametrize("key", ["num_hidden_groups", "inner_group_num"])
def test_blocks_of_another_form_are_left_out(key: str, tmp_path: Path) -> None:
    folder = write_checkpoint(case("encoder_albert"), tmp_path / "x")
    whole = export(folder, tmp_path / "whole")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: 2}))
    card = export(folder, tmp_path / "out")
    assert set(whole.outputs) - set(card.outputs) == {"last_hidden_state"}


CODE = {  # the tensors of a block of jina-embeddings-v2-base-code; those with a bias end in a dot
    **dict.fromkeys(("attention.self.query.", "attention.self.key.", "attention.self.value."), (8, 8)),
    **dict.fromkeys(("attention.self.layer_norm_q.", "attention.self.layer_norm_k."), (8,)),
    "attention.output.dense.": (8, 8),
    **dict.fromkeys(("attention.output.LayerNorm.", "layer_norm_1.", "layer_norm_2."), (8,)),
    "mlp.up_gated_layer": (32, 8),
    "mlp.down_layer.": (8, 16),
}


def test_tensors_tell_jina_code_from_jina_v2(tmp_path: Path) -> None:
    shapes: dict[str, tuple[int, ...]] = {
        "word_embeddings": (20, 8),
        "token_type_embeddings": (2, 8),
        "LayerNorm.": (8,),
    }
    shapes = {f"embeddings.{name}": shape for name, shape in shapes.items()}
    shapes |= {f"encoder.layer.0.{name}": shape for name, shape in CODE.items()}
    random = np.random.default_rng(3)
    weights = {}
    for name, shape in shapes.items():
        weights[f"{name.rstrip('.')}.weight"] = random.normal(size=shape).astype(np.float32)
        if name.endswith("."):
            weights[f"{name}bias"] = random.normal(size=shape[:1]).astype(np.float32)
    config = {"model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": "geglu", "vocab_size": 20}
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    folder = write_folder(tmp_path / "x", config | sizes, weights)
    (attention, *_) = export(folder, tmp_path / "out").encoder
    assert isinstance(attention, Attention)
    assert attention.sum_norm
    assert attention.sum_norm.weight == "encoder.layer.0.attention.output.LayerNorm.weight"
