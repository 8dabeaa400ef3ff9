"""The models, types and inputs that are run on a GPU."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.architectures.cases import Model, models, text

OWN_CONFIGS = Path(__file__).parent / "configs"
DTYPES = ("float32", "float16", "bfloat16")
TIMED = ("minilm-l6", "bge-large", "bge-m3", "qwen3-0.6b")
JUDGED_LENGTHS = (3, 16, 17, 40)
TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
TINY |= {"vocab_size": 21_000, "num_key_value_heads": 2}


@dataclass(frozen=True)
class Load:
    """What is run: `lengths` tokens a text, so many texts that a batch has `batch_tokens`."""

    lengths: Sequence[int] = (16, 128, 512)
    batch_tokens: int = 16384

    def texts(self, length: int) -> list[str]:
        """Return the texts of a batch, the same in every run."""
        return texts([length] * max(1, self.batch_tokens // length))


QUICK = Load((16, 32), 64)


def texts(lengths: Sequence[int]) -> list[str]:
    """Return texts of so many random ids each, the same in every run."""
    rng = random.Random(29)
    return [text(rng, length) for length in lengths]


def chosen(names: Sequence[str], quick: bool, folder: Path) -> list[Model]:
    """Return the models of some names, or of all; `quick`: two tiny ones, whose configs are written to a folder."""
    every = [*models(), *(Model(path.stem, path, 512) for path in sorted(OWN_CONFIGS.glob("*.json")))]
    if not quick:
        return [model for model in every if not names or model.name in names]
    return [_tiny(model, folder) for model in every if model.name in (names or ("minilm-l6", "qwen3-0.6b"))]


def _tiny(model: Model, folder: Path) -> Model:
    config = json.loads(model.config.read_text(encoding="utf-8")) | TINY
    path = folder / model.config.name
    path.write_text(json.dumps(config), encoding="utf-8")
    return Model(model.name, path, model.longest)
