"""What of a family is exported follows from the checkpoint's config and tensors."""

import json
from pathlib import Path

import numpy as np
import pytest

from models import families
from models.artifacts.export import export
from models.errors import BadCheckpoint
from models.families import FAMILIES
from models.positions.rope.frequencies import frequencies
from models.recipes.steps import Attention
from tests.golden_cases import write_folder
from tests.whole_models import write_whole


def test_class_defaults_are_of_families_and_variants() -> None:
    rows = json.loads(Path(families.__file__).with_name("class_defaults.json").read_text())
    variants = {name for family in FAMILIES.values() for name, _ in family.variants.values()}
    assert set(rows) - variants == set(FAMILIES) - variants


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


ESM = {"position_embedding_type": "rotary", "num_key_value_heads": None, "head_dim": None, "mask_token_id": 4}


@pytest.mark.parametrize(
    "name", ["rotary_embeddings.inv_freq", "encoder.layer.0.attention.self.rotary_embeddings.inv_freq"]
)
def test_esm_rotates_by_the_frequencies_of_its_file(name: str, tmp_path: Path) -> None:
    held = np.array([1.0, 0.0100021], np.float32)
    folder = write_whole(tmp_path / "x", "esm", extra={f"esm.{name}": held}, **ESM)
    table = export(folder, tmp_path / "out").encodings.ropes["all"]
    assert table.inverse_frequency == tuple(held.tolist())
    assert np.array_equal(frequencies(table.rope, "parity").inverse_frequency, held)


def test_rejects_frequencies_of_another_number(tmp_path: Path) -> None:
    held = {"esm.rotary_embeddings.inv_freq": np.ones(3, np.float32)}
    with pytest.raises(BadCheckpoint, match=r"has 3 frequencies, but config.json makes it 2"):
        export(write_whole(tmp_path / "x", "esm", extra=held, **ESM), tmp_path / "out")


def test_falcon_has_five_forms(tmp_path: Path) -> None:
    forms: list[tuple[dict[str, bool | int], str, int]] = [
        ({}, "Parallel", 1),
        ({"parallel_attn": False}, "Attention", 1),
        ({"multi_query": False}, "Parallel", 4),
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, "Parallel", 2),
        ({"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}, "Parallel", 2),
    ]
    for number, (changes, kind, keys) in enumerate(forms):
        heads = (4 + 2 * keys) * 4
        two = changes.get("new_decoder_architecture") and "num_ln_in_parallel_attn" not in changes
        norms = ("ln_attn", "ln_mlp") if two else ("input_layernorm", "post_attention_layernorm")
        shapes = {"self_attention.query_key_value": (heads, 16), "self_attention.dense": (16, 16)}
        shapes |= {"mlp.dense_h_to_4h": (64, 16), "mlp.dense_4h_to_h": (16, 64)}
        own = {f"h.0.{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()}
        own |= {f"{name}.{part}": np.ones(16, np.float32)
                for name in (*(f"h.0.{norm}" for norm in norms), "ln_f") for part in ("weight", "bias")}  # fmt: skip
        own |= {"word_embeddings.weight": np.ones((20, 16), np.float32)}
        config = {"model_type": "falcon", "vocab_size": 20, "hidden_size": 16, "num_attention_heads": 4}
        folder = write_folder(tmp_path / f"x{number}", config | {"num_hidden_layers": 1} | changes, own)
        first = export(folder, tmp_path / f"out{number}", encoder=True).encoder[0]
        attention = first if isinstance(first, Attention) else first.attention  # type: ignore[union-attr]
        assert (type(first).__name__, attention.key_heads or 4) == (kind, keys)
