"""What the blocks of a config attend to."""

from typing import Any

import pytest

from models.errors import BadCheckpoint
from models.families import config_of, family_of
from models.families.block_filling import block_steps, with_layer_mean
from models.families.encoding_fitting import fit_encodings
from models.families.recipe import Attention, Collect, layers

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


def test_a_mean_of_layers_needs_a_weight_for_each() -> None:
    data: dict[str, Any] = {"model_type": "bert", "num_hidden_layers": 2}
    family, config = family_of("bert"), config_of("bert", data)
    steps = block_steps(family, config, fit_encodings(family, config, "bert"))
    mixed = with_layer_mean(family, steps, 1, (0.25, 0.75))
    assert [step for step in mixed if isinstance(step, Collect)] == [Collect(0.25), Collect(0.75, True)]
    assert tuple(step for step in mixed if not isinstance(step, Collect)) == steps
    assert mixed.index(Collect(0.25)) == len(family.block)
    with pytest.raises(BadCheckpoint, match=r"weigh 2 layers from layer 2 on .* the model has 2"):
        with_layer_mean(family, steps, 2, (0.25, 0.75))
    with pytest.raises(BadCheckpoint, match="not computed of a text tower"):
        with_layer_mean(family_of("clip_text_model"), steps, 1, (0.25, 0.75))
