"""Decoders that attend both ways, by config.json or by `--attention`, against transformers with config.is_causal."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.artifacts.export import export
from tests.parity.conftest import Ledger
from tests.parity.test_blocks_live import TOLERANCE, Encoder, expected, made, relative

pytestmark = pytest.mark.parity
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "cohere2", "gpt_neox")
LENGTHS = (1, 2, 13, 70, 300)


def compared(model: Any, folder: Path, options: dict[str, Any], ledger: Ledger, family: str) -> None:
    card = export(folder / "checkpoint", folder / "out", encoder=True, **options)
    encoder, draw = Encoder(folder / "out", card), np.random.default_rng(7)
    for length in LENGTHS:
        ids = draw.integers(3, model.config.vocab_size, length)
        (got,) = encoder.rows([ids])
        ledger.check(family, "both ways", relative(got, expected(model, ids)), TOLERANCE)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", FAMILIES)
def test_is_causal_false_gives_the_rows_of_transformers(family: str, seed: int, tmp_path: Path, ledger: Ledger) -> None:
    model = made(family, seed, tmp_path / "checkpoint")
    told = "use_bidirectional_attention" if family == "gemma3_text" else "is_causal"
    if getattr(model.config, told, None) == (told != "is_causal"):
        pytest.skip("the config says so already")
    model.config.is_causal = False
    if family != "gemma3_text":  # --attention takes its own key, which halves the window
        compared(model, tmp_path, {"attention": "bidirectional"}, ledger, family)
    model.config.save_pretrained(tmp_path / "checkpoint")
    compared(model, tmp_path, {}, ledger, family)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3_text"])
def test_attention_causal_overrides_the_config(family: str, tmp_path: Path, ledger: Ledger) -> None:
    model = made(family, 6, tmp_path / "checkpoint")
    assert not getattr(model.config, "use_bidirectional_attention", None)  # it would have halved the window
    model.config.is_causal = False
    model.config.save_pretrained(tmp_path / "checkpoint")
    model.config.is_causal = True
    compared(model, tmp_path, {"attention": "causal"}, ledger, family)
