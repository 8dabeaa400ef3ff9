"""Created whole models: transformers loads every tensor that it has, and gives the rows that Inlay gives."""

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from models.artifacts.export import export
from models.artifacts.random_checkpoint import create
from tests.parity.block_configs import CONFIGS
from tests.parity.conftest import Ledger
from tests.parity.test_blocks_live import CLASSES, SINGLE, TOLERANCE, Encoder, expected, relative, words

pytestmark = pytest.mark.parity
# What Inlay computes no output from, and what is computed: RoFormer's sinusoids, ESM's frequencies. LUKE's entities,
# Longformer's global tokens, and groups that no layer of an ALBERT has, have tensors inside blocks.
UNREAD = re.compile(
    r"(pooler|encoder\.embed_positions|decoder|head|rotary_embeddings|contact_head|entity_embeddings)\."
    r"|.*self\.(\w2e|e2\w)_query\.|.*_global\.|.*albert_layer_groups\.[1-9]"
)


@pytest.mark.parametrize("family", CONFIGS)
def test_transformers_loads_a_created_model(family: str, tmp_path: Path, ledger: Ledger) -> None:
    draw = random.Random(f"created {family}")
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[family](draw)))
    create(tmp_path / "x", model_type=family, config=tmp_path / "config.json", whole=True, init="scaled")
    loader = getattr(transformers, CLASSES.get(family, "AutoModel"))
    model, found = loader.from_pretrained(
        tmp_path / "x",
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    assert not found["unexpected_keys"]
    assert not found["mismatched_keys"]
    assert [name for name in found["missing_keys"] if not UNREAD.match(name)] == []
    ids = np.random.default_rng(0).integers(3, words(model), 40)
    card = export(tmp_path / "x", tmp_path / "out", encoder=True)
    (rows,) = Encoder(tmp_path / "out", card).rows([ids])
    if model.config.is_encoder_decoder and loader is transformers.AutoModel:
        config, model = model.config, model.get_encoder()
        model.config = config  # FSMT's encoder has none
    model = (model if family in SINGLE else model.double()).eval()
    ledger.check(family, "created", relative(rows, expected(model, ids)), TOLERANCE)
