"""Weighted means of the hidden states of whole models, as WeightedLayerPooling makes them, against transformers."""

from pathlib import Path

import numpy as np
import pytest
import torch

from models.artifacts.export import export
from models.families import FAMILIES
from tests.parity.block_configs import CONFIGS
from tests.parity.conftest import Ledger
from tests.parity.test_blocks_live import TOLERANCE, Encoder, made, relative
from tests.sentence_chains import add_layer_mean, write_json

pytestmark = pytest.mark.parity


POOLED = [name for name in CONFIGS if FAMILIES[name].text_vector is None and FAMILIES[name].output_width is None]
CRASHES = ("flaubert",)  # its class, with pre_norm


@pytest.mark.parametrize("family", [name for name in POOLED if name not in CRASHES])
def test_the_mean_is_that_of_hidden_states(family: str, tmp_path: Path, ledger: Ledger) -> None:
    folder = tmp_path / "checkpoint"
    model = made(family, 1, folder)
    ids = np.random.default_rng(1).integers(3, model.config.vocab_size, 20)
    with torch.no_grad():
        states = model(torch.tensor(ids)[None], output_hidden_states=True).hidden_states
    types = [("Transformer", ""), ("Pooling", "1_Pooling")]
    chain = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in types]
    write_json(folder / "modules.json", chain)
    write_json(folder / "1_Pooling/config.json", {"pooling_mode": "mean"})
    weights = np.arange(1.0, len(states) + 1)
    add_layer_mean(folder, 0, weights.tolist())
    wanted = sum(weight * state[0].numpy() for weight, state in zip(weights, states, strict=True)) / weights.sum()
    encoder = Encoder(tmp_path / "out", export(folder, tmp_path / "out"))
    ledger.check(family, "mean of layers", relative(encoder.rows([ids])[0], wanted), 3 * TOLERANCE)
