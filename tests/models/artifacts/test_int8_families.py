"""int8 of every family that runs whole, of random weights: close to float32. Image towers have none, which
test_int8_encoder.py shows."""

import random
from pathlib import Path

import pytest

from models.artifacts.export import export
from models.artifacts.int8_encoder import Int8Options
from models.artifacts.random_checkpoint import create
from tests.golden_cases import write_json, write_tokenizer
from tests.parity.block_configs import CONFIGS, decoder, encoder
from tests.sweeps import sampled

FEW_EXPERTS = ("mixtral", "phimoe")  # tiny ones choose other experts in int8
MORE = {name: (name, decoder()) for name in ("llama_bidirec", "minicpm", "nvembed")} | {
    "neobert": ("neobert", encoder()),
    "relative_key": ("bert", encoder(position_embedding_type="relative_key")),
    "relative_key_query": ("bert", encoder(position_embedding_type="relative_key_query")),
    "deberta-v2 with its convolution": ("deberta-v2", encoder(conv_kernel_size=3, conv_act="gelu")),
}
CASES = MORE | {name: (name, config) for name, config in CONFIGS.items() if name not in FEW_EXPERTS}
LEAST = 0.95  # of vectors of 16 to 64 values


@pytest.mark.parametrize("case", sampled(CASES, 10))
def test_a_family_in_int8_is_close_to_float32(case: str, tmp_path: Path) -> None:
    model_type, config = CASES[case]
    write_json(tmp_path / "sizes.json", config(random.Random(f"int8 {case}")))
    create(tmp_path / "x", model_type=model_type, config=tmp_path / "sizes.json", whole=True, init="scaled")
    write_tokenizer(tmp_path / "x/tokenizer.json")
    card = export(tmp_path / "x", tmp_path / "out", int8=Int8Options(min_cosine=LEAST), pooling="mean")
    assert card.quantized
    assert card.quantized.mean_cosine > 0.99
