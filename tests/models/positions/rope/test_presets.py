"""Presets: each one is computed, names its source and has the published rope of its model."""

import json
import re

import numpy as np
import pytest

from models.positions.rope.config import read
from models.positions.rope.frequencies import frequencies
from models.positions.rope.presets import PRESETS

# rope_type, theta and rotated channels of the layers that see the whole context
KNOWN = {
    "llama-2-7b": ("default", 1e4, 128),
    "code-llama-7b": ("default", 1e6, 128),
    "llama-3.1-8b": ("llama3", 5e5, 128),
    "llama-4-maverick": ("default", 5e5, 128),
    "mixtral-8x7b": ("default", 1e6, 128),
    "qwen2.5-7b-yarn-128k": ("yarn", 1e6, 128),
    "qwen3-8b": ("default", 1e6, 128),
    "gemma-3-4b": ("linear", 1e6, 256),
    "gemma-4": ("proportional", 1e6, 512),
    "phi-2": ("default", 1e4, 32),
    "deepseek-v3": ("yarn", 1e4, 64),
    "gpt-oss-20b": ("yarn", 1.5e5, 64),
    "command-r": ("default", 8e6, 128),
    "gpt-neox-20b": ("default", 1e4, 24),
    "gpt-j-6b": ("default", 1e4, 64),
    "stablelm-3b-4e1t": ("default", 1e4, 20),
    "olmo-3-7b": ("yarn", 5e5, 128),
    "internlm2.5-7b": ("dynamic", 1e6, 128),
    "hunyuan-large": ("ntk_alpha", 1e4, 80),
    "modernbert-base": ("default", 1.6e5, 64),
    "minimax-m2": ("default", 5e6, 64),
}


def test_has_presets_of_at_least_36_models() -> None:
    assert len(PRESETS) >= 36


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_gives_frequencies(name: str) -> None:
    preset = PRESETS[name]
    actual = read(preset.config)
    assert len(actual.layers) == (preset.config.get("num_hidden_layers") or len(actual.layers))
    for table in actual.tables.values():
        exact, parity = (frequencies(table.rope, arithmetic) for arithmetic in ("exact", "parity"))
        assert exact.inverse_frequency[0] <= 1.0
        assert (np.diff(exact.inverse_frequency) <= 0).all()
        np.testing.assert_allclose(parity.inverse_frequency, exact.inverse_frequency, rtol=5e-7, atol=5e-13)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_title_and_source(name: str) -> None:
    preset = PRESETS[name]
    assert re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", name)
    assert preset.title
    assert re.match(r"config\.json of [\w.-]+/[\w.-]+|the defaults of transformers 5\.23 \w+Config", preset.source)
    assert json.loads(json.dumps(preset.config)) == preset.config
    assert not any("not known" in note for note in read(preset.config).notes)


@pytest.mark.parametrize("name", KNOWN)
def test_preset_has_the_published_rope_of_its_model(name: str) -> None:
    tables = read(PRESETS[name].config).tables
    rope = tables.get("full_attention", tables.get("all"))
    assert rope is not None
    assert (rope.rope.rope_type, rope.rope.theta, rope.rope.rotary_dim) == KNOWN[name]


def test_unrotated_layers_are_those_of_the_models() -> None:
    still = {
        name: [layer for layer, table in enumerate(read(PRESETS[name].config).layers) if table is None]
        for name in ("llama-4-maverick", "smollm3-3b", "command-r7b", "llama-2-7b")
    }
    assert still == {
        "llama-4-maverick": list(range(3, 48, 4)),
        "smollm3-3b": list(range(3, 36, 4)),
        "command-r7b": list(range(3, 32, 4)),
        "llama-2-7b": [],
    }
