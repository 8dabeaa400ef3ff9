"""Vision towers without a text side, whole: rows and vectors that the service gives of random small models."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from models.artifacts.export import export
from tests.parity.conftest import Ledger
from tests.parity.test_dual_encoders_live import images, randomize, relative
from tests.served import Served, serving

pytestmark = pytest.mark.parity
SEEDS = range(8)
Draw = random.Random


def vit(**more: Callable[[Draw], Any]) -> Callable[[Draw], dict[str, Any]]:
    """ViT's keys and more."""

    def config(draw: Draw) -> dict[str, Any]:
        heads, patch = draw.choice((1, 2, 4)), draw.choice((2, 4))
        usual = {
            "hidden_size": heads * draw.choice((8, 16)),
            "num_attention_heads": heads,
            "num_hidden_layers": draw.randint(1, 4),
            "intermediate_size": 16 * draw.randint(1, 4),
            "image_size": patch * draw.choice((3, 4)),
            "patch_size": patch,
            "num_channels": draw.choice((1, 3)),
            "layer_norm_eps": draw.choice((1e-6, 1e-3)),
            "hidden_act": draw.choice(("gelu", "relu", "gelu_pytorch_tanh")),
            "qkv_bias": draw.random() < 0.7,
        }
        return usual | {key: value(draw) for key, value in more.items()}

    return config


def flag(draw: Draw) -> bool:
    return draw.random() < 0.5


_DINOV2 = {"mlp_ratio": lambda draw: draw.choice((2, 4)), "use_swiglu_ffn": flag}
_REGISTERS = {"num_register_tokens": lambda draw: draw.choice((1, 4))}
_BIASES = dict.fromkeys(("query_bias", "key_bias", "value_bias", "proj_bias", "mlp_bias"), flag)
CONFIGS = {
    "vit": vit(pooler_act=lambda draw: draw.choice(("tanh", "relu"))),
    "vit_msn": vit(),
    "deit": vit(),
    "dinov2": vit(**_DINOV2),
    "dinov2_with_registers": vit(**_DINOV2, **_REGISTERS),
    "dinov3_vit": vit(**_REGISTERS, **_BIASES, use_gated_mlp=flag),
}


@dataclass(frozen=True)
class Made:
    """A random model in float64, and the name under which it is served."""

    kind: str
    name: str
    model: Any
    config: Any

    def outputs(self, pixels: Any) -> tuple[Any, Any]:
        """The rows and the vector that transformers gives for one image: that of its pooler, else of the first row."""
        options = {} if self.kind.startswith("dino") else {"interpolate_pos_encoding": True}
        with torch.no_grad():
            given = self.model(torch.from_numpy(pixels).double()[None], **options)
        vector = getattr(given, "pooler_output", None)
        rows = given.last_hidden_state[0].numpy()
        return rows, rows[0] if vector is None else vector[0].numpy()


def made(kind: str, seed: int, folder: Path) -> Made:
    draw, name = random.Random(f"tower {kind} {seed}"), f"{kind}-{seed}"
    torch.manual_seed(draw.randrange(1 << 30))
    config = transformers.CONFIG_MAPPING[kind](**CONFIGS[kind](draw))
    model = transformers.AutoModel.from_config(config).eval()
    randomize(model)
    model.save_pretrained(folder / name)
    path, usual = folder / name / "config.json", type(config)().to_dict()
    if seed % 2:  # old files leave out what the class assumes
        held = json.loads(path.read_text()).items()
        held = {key: value for key, value in held if key == "model_type" or usual.get(key) != value}
        path.write_text(json.dumps(held))
    export(folder / name, folder / "store" / name)
    return Made(kind, name, model.double(), config)


@pytest.fixture(scope="module", params=CONFIGS)
def models(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Served, list[Made]]]:
    folder = tmp_path_factory.mktemp(request.param)
    every = [made(request.param, seed, folder) for seed in SEEDS]
    with serving(folder / "store", default_model=every[0].name) as served:
        yield served, every


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_and_vectors_are_those_of_transformers(
    models: tuple[Served, list[Made]], seed: int, ledger: Ledger
) -> None:
    served, each = models[0], models[1][seed]
    draw, side, patch = np.random.default_rng(seed), each.config.image_size, each.config.patch_size
    shapes = [(side, side), (side, 2 * side), (17 * patch, 17 * patch), (side, side)]
    batch = [draw.normal(0, 1, (each.config.num_channels, *shape)).astype(np.float32) for shape in shapes]
    vectors = images(served, each.name, batch, "image_embedding", normalize=False)
    rows = images(served, each.name, batch, "last_hidden_state")
    for pixels, vector, hidden in zip(batch, vectors, rows, strict=True):
        wanted_rows, wanted = each.outputs(pixels)
        ledger.check(each.kind, "image vector", relative(vector, wanted), 1e-5)
        ledger.check(each.kind, "last_hidden_state of an image", relative(hidden, wanted_rows), 1e-5)
        (alone,) = images(served, each.name, [pixels], "image_embedding", normalize=False)
        assert np.array_equal(alone, vector), f"{pixels.shape} gets other bits in a batch"
