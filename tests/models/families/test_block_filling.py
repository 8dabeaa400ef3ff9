"""What the blocks of a config attend to."""

from typing import Any

import pytest

from models.families import config_of, family_of
from models.families.block_filling import block_steps
from models.families.encoding_fitting import fit_encodings
from models.families.recipe import Attention, layers

# The types that ModernBERT's config class gives the layers where config.json lists none (transformers 5.23).
WINDOWS = {
    "one layer": ({"num_hidden_layers": 1}, [None]),
    "every layer full": ({"num_hidden_layers": 3, "global_attn_every_n_layers": 1}, [None, None, None]),
    "every third full": ({"num_hidden_layers": 4, "global_attn_every_n_layers": 3}, [None, 64, 64, None]),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_only_sliding_layers_of_modernbert_have_a_window(name: str) -> None:
    keys, windows = WINDOWS[name]
    data: dict[str, Any] = {"model_type": "modernbert", **keys}
    family, config = family_of("modernbert"), config_of("modernbert", data)
    steps = block_steps(family, config, fit_encodings(family, config, "modernbert"))
    assert [step.right for step in layers(steps) if isinstance(step, Attention)] == windows
