"""int8 of blocks with gates, grouped heads, rotations and norms of every kind."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.comparison import Session
from models.artifacts.export import export
from models.artifacts.int8_encoder import Int8Options
from models.artifacts.verification import verify
from models.checkpoints import safetensors
from models.graphs.encoder import encoder_inputs
from tests.golden_cases import write_tokenizer
from tests.last_token import write_embedder
from tests.whole_models import write_whole

# with what they show: a gate and grouped heads; norms behind alone; sandwiches and a cap; blocks in parallel; no gate;
# experts; inputs for each layer
FAMILIES = ("llama", "qwen3", "olmo2", "gemma2", "gemma3_text", "cohere", "phi", "gpt_neox", "starcoder2", "qwen2_moe")
FAMILIES += ("embedding_gemma2_text",)
EXPERTS = {"num_experts": 5, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 16}
LAYERS = {"global_head_dim": 16, "hidden_size_per_layer_input": 16, "embedding_dim": 32}
KEPT = (".mlp.gate.weight", ".shared_expert_gate.weight", ".ple.weight", "_input_gate.weight", "_projection.weight")
LENGTHS = (1, 2, 12, 13, 40, 65, 257, 300)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_decoder_in_int8_is_close_and_keeps_its_bits(family: str, tmp_path: Path) -> None:
    more = {"partial_rotary_factor": 0.5 if family in ("phi", "gpt_neox") else 1} | EXPERTS | LAYERS
    checkpoint = write_whole(tmp_path / "x", family, **more)
    write_tokenizer(checkpoint / "tokenizer.json")
    card = export(checkpoint, tmp_path / "out", int8=Int8Options(min_cosine=0.95), pooling="mean")
    assert card.quantized
    assert verify(tmp_path / "out") == card.largest_difference
    stored = safetensors.read_header(tmp_path / "out/weights.safetensors")
    matrices = {name: own.dtype for name, own in stored.items() if "layers." in name and len(own.shape) == 2}
    assert {dtype for name, dtype in matrices.items() if not name.endswith(KEPT)} == {"I8"}
    assert {dtype for name, dtype in matrices.items() if name.endswith(KEPT)} <= {"F32"}
    session, random = Session(tmp_path / "out/encoder.onnx"), np.random.default_rng(3)

    def rows(texts: list[NDArray[np.int64]]) -> list[NDArray[np.float32]]:
        ids, lengths = np.concatenate(texts), np.array([len(text) for text in texts])
        feeds = {"ids": ids, "mask": np.ones(len(ids), bool), "lengths": lengths}
        feeds["positions"] = np.concatenate([np.arange(length) for length in lengths])
        feeds = {name: feeds[name] for name in encoder_inputs(card.recipe, card.encoder)}
        hidden = session.run(feeds, ["last_hidden_state"])["last_hidden_state"]
        return np.split(hidden, np.cumsum(lengths)[:-1])

    texts = [random.integers(0, card.vocab_size, length) for length in LENGTHS]
    for text, together in zip(texts, rows(texts), strict=True):
        assert rows([text])[0].tobytes() == together.tobytes(), len(text)


def test_last_token_embedder_is_measured_by_its_vectors(tmp_path: Path) -> None:
    card = export(write_embedder(tmp_path / "x"), tmp_path / "out", int8=Int8Options(min_cosine=0.9))
    assert card.pooling is not None
    assert card.pooling.mode == "lasttoken"
    assert card.quantized
    assert 0.9 <= card.quantized.min_cosine <= card.quantized.mean_cosine <= 1
