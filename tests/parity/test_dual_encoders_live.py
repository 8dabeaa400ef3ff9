"""CLIP, SigLIP and SigLIP2 of random small models, live: vectors and logits that the service gives of both sides."""

import base64
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from models.artifacts.export import export
from tests.parity.conftest import Ledger
from tests.served import Served, serving

pytestmark = pytest.mark.parity
SEEDS = range(12)
LONGEST = 24
WHOLE = {"clip": "CLIPModel", "siglip": "SiglipModel", "siglip2": "Siglip2Model"}
SIDES = {"clip_text": "CLIPTextModelWithProjection", "clip_vision": "CLIPVisionModelWithProjection"}
KINDS = (*WHOLE, *SIDES)
DEEP = 11  # the seed with more than 24 layers
OCTETS = "application/octet-stream"


@dataclass(frozen=True)
class Made:
    """A random model in float64, and the names under which its sides are served."""

    kind: str
    model: Any
    text: str | None
    vision: str | None
    deep: bool

    @property
    def tolerance(self) -> float:
        return 1e-4 if self.deep else 1e-5

    def text_vectors(self, ids: list[int]) -> Any:
        """What transformers gives for one text, float64 [width]."""
        with torch.no_grad():
            sent = torch.tensor(ids)[None]
            if self.kind == "clip_text":
                return self.model(sent).text_embeds[0].numpy()
            return self.model.get_text_features(sent).pooler_output[0].numpy()

    def image_outputs(self, pixels: Any) -> tuple[Any, Any]:
        """Rows and vector that transformers gives for one image."""
        given = self._given(pixels)
        with torch.no_grad():
            rows = self.model.vision_model(**given).last_hidden_state[0].numpy()
            if self.kind == "clip_vision":
                return rows, self.model(**given).image_embeds[0].numpy()
            return rows[: len(pixels)] if self.kind == "siglip2" else rows, self.vector(given)

    def vector(self, given: Any) -> Any:
        return self.model.get_image_features(**given).pooler_output[0].numpy()

    def _given(self, pixels: Any) -> dict[str, Any]:
        """The arguments for one image; SigLIP2's patches get padding, which is masked."""
        values = torch.from_numpy(pixels).double()[None]
        if self.kind != "siglip2":
            return {"pixel_values": values, "interpolate_pos_encoding": True}
        rows = pixels.shape[0]
        padded = torch.cat([values, torch.ones(1, 3, values.shape[2], dtype=torch.double)], 1)
        mask = torch.tensor([[1] * rows + [0] * 3])
        return {"pixel_values": padded, "pixel_attention_mask": mask, "spatial_shapes": torch.tensor([grid_of(pixels)])}


def grid_of(pixels: Any) -> list[int]:
    """Rows and columns of flattened patches."""
    rows = 1 if len(pixels) in (1, 2) else 2 if len(pixels) % 2 == 0 else 3
    return [rows, len(pixels) // rows]


def sizes(draw: random.Random, deep: bool) -> dict[str, Any]:
    heads = draw.choice((1, 2, 4))
    return {
        "hidden_size": heads * draw.choice((4, 8, 16)),
        "num_attention_heads": heads,
        "num_hidden_layers": 26 if deep else draw.randint(1, 4),
        "intermediate_size": 16 * draw.randint(1, 4),
        "layer_norm_eps": draw.choice((1e-6, 1e-5, 1e-3)),
        "hidden_act": draw.choice(("quick_gelu", "gelu", "gelu_pytorch_tanh")),
    }


def made(kind: str, seed: int, folder: Path) -> Made:
    """Return a random model after writing it, exporting its sides to folder/store."""
    draw, deep, name = random.Random(f"dual {kind} {seed}"), seed == DEEP, f"{kind}-{seed}"
    torch.manual_seed(draw.randrange(1 << 30))
    end = draw.choice((2, 49, 11)) if kind.startswith("clip") else 49
    text = sizes(draw, deep) | {"vocab_size": 50, "max_position_embeddings": LONGEST, "eos_token_id": end}
    text |= {"bos_token_id": 0, "pad_token_id": 1}
    vision = sizes(draw, deep) | {"patch_size": draw.choice((3, 4)), "num_channels": draw.choice((1, 3))}
    vision |= {"num_patches": draw.choice((9, 16))} if kind == "siglip2" else {"image_size": draw.choice((12, 24))}
    if kind.startswith("siglip"):
        text["projection_size"] = vision["hidden_size"]
    config_kind = transformers.CONFIG_MAPPING["clip" if kind in SIDES else kind]
    config = config_kind(text_config=text, vision_config=vision, projection_dim=8)
    if kind in SIDES:
        config = config.text_config if kind == "clip_text" else config.vision_config
        config.projection_dim = 12
    model = getattr(transformers, (WHOLE | SIDES)[kind])(config).eval()
    randomize(model)
    model.save_pretrained(folder / name)
    sides = {side: f"{name}-{side}" for side in ("text", "vision") if kind in WHOLE or kind == f"clip_{side}"}
    for side, served_as in sides.items():
        export(folder / name, folder / "store" / served_as, side=side if kind in WHOLE else None)
    return Made(kind, model.double(), sides.get("text"), sides.get("vision"), deep)


def randomize(model: Any) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if parameter.ndim <= 1:
                near = 1.0 if "norm" in name and name.endswith("weight") else 0.0
                parameter.copy_(near + 0.3 * noise)
            else:
                parameter.copy_(noise if "embedding" in name else 0.7 * noise / parameter[0].numel() ** 0.5)


@pytest.fixture(scope="module", params=KINDS)
def models(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Served, list[Made]]]:
    folder = tmp_path_factory.mktemp(request.param)
    every = [made(request.param, seed, folder) for seed in SEEDS]
    with serving(folder / "store", default_model=every[0].text or every[0].vision) as served:
        yield served, every


def texts(served: Served, name: str, sequences: list[list[int]]) -> Any:
    body = {"model": name, "inputs": [{"input_ids": ids} for ids in sequences], "normalize": False}
    answer = served.post(body, OCTETS).raise_for_status()
    return np.frombuffer(answer.content, np.float32).reshape(len(sequences), -1)


def images(served: Served, name: str, batch: list[Any], output: str, **options: Any) -> Any:
    """The output of each image of a request."""
    inputs = [
        {"pixel_values": {"dtype": "float32", "shape": each.shape, "data": base64.b64encode(each.tobytes()).decode()}}
        | ({"grid": grid_of(each)} if each.ndim == 2 else {})
        for each in batch
    ]
    body = {"inputs": inputs, "outputs": [output], **options}
    answer = served.http.post(f"/models/{name}/images", json=body).raise_for_status().json()["outputs"][output]
    return [np.array(each, np.float32) for each in answer]


def sequences_of(seed: int) -> list[list[int]]:
    """One of each length; the end token, and others of the largest id, lie anywhere or are missing."""
    draw = np.random.default_rng(seed)
    return [draw.integers(0, 50, length).tolist() for length in draw.permutation(np.arange(1, LONGEST + 1))]


def pixels_of(each: Made, seed: int) -> list[Any]:
    """Images of the model's own size, of others, and one of more than 256 patches."""
    draw, config = np.random.default_rng(seed), each.model.config
    config = getattr(config, "vision_config", config)
    patch, channels = config.patch_size, config.num_channels
    if each.kind == "siglip2":
        shapes: list[tuple[int, ...]] = [(count, channels * patch**2) for count in (6, 9, 2, 300, 6)]
    else:
        own = config.image_size
        shapes = [
            (channels, own, own),
            (channels, own, 2 * own),
            (channels, 17 * patch, 17 * patch),
            (channels, own, own),
        ]
    return [draw.normal(0, 1, shape).astype(np.float32) for shape in shapes]


def relative(got: Any, wanted: Any) -> float:
    assert got.shape == wanted.shape
    return float(np.abs(got - wanted).max() / max(1.0, np.abs(wanted).max()))


@pytest.mark.parametrize("seed", SEEDS)
def test_text_vectors_are_those_of_transformers(models: tuple[Served, list[Made]], seed: int, ledger: Ledger) -> None:
    served, each = models[0], models[1][seed]
    if each.text is None:
        pytest.skip("it has no text side")
    sequences = sequences_of(seed)
    mixed = texts(served, each.text, sequences)
    for ids, got in zip(sequences, mixed, strict=True):
        ledger.check(each.kind, "text vector", relative(got, each.text_vectors(ids)), each.tolerance)
        assert np.array_equal(texts(served, each.text, [ids])[0], got), f"{len(ids)} tokens get other bits in a batch"


@pytest.mark.parametrize("seed", SEEDS)
def test_image_vectors_are_those_of_transformers(models: tuple[Served, list[Made]], seed: int, ledger: Ledger) -> None:
    served, each = models[0], models[1][seed]
    if each.vision is None:
        pytest.skip("it has no vision side")
    batch = pixels_of(each, seed)
    vectors = images(served, each.vision, batch, "image_embedding", normalize=False)
    rows = images(served, each.vision, batch, "last_hidden_state")
    for pixels, vector, hidden in zip(batch, vectors, rows, strict=True):
        wanted_rows, wanted = each.image_outputs(pixels)
        ledger.check(each.kind, "image vector", relative(vector, wanted), each.tolerance)
        ledger.check(each.kind, "last_hidden_state of an image", relative(hidden, wanted_rows), each.tolerance)
        (alone,) = images(served, each.vision, [pixels], "image_embedding", normalize=False)
        assert np.array_equal(alone, vector), f"{pixels.shape} gets other bits in a batch"


@pytest.mark.parametrize("seed", SEEDS)
def test_logits_are_those_of_transformers(models: tuple[Served, list[Made]], seed: int, ledger: Ledger) -> None:
    served, each = models[0], models[1][seed]
    if each.text is None or each.vision is None:
        pytest.skip("it has one side")
    sequences = [ids for ids in sequences_of(seed) if len(ids) == LONGEST] * 2
    sequences[1] = sequences[1][::-1]
    batch = [pixels for pixels in pixels_of(each, seed) if pixels.shape == pixels_of(each, seed)[0].shape]
    given = [each._given(pixels) for pixels in batch]
    joined = {
        name: value if isinstance(value, bool) else torch.cat([one[name] for one in given])
        for name, value in given[0].items()
    }
    with torch.no_grad():
        wanted = each.model(input_ids=torch.tensor(sequences), **joined).logits_per_image.numpy()
    text_body = {"model": each.text, "inputs": [{"input_ids": ids} for ids in sequences]}
    text = np.array(served.post(text_body).raise_for_status().json(), np.float32)
    image = np.stack(images(served, each.vision, batch, "image_embedding"))
    for vectors in (text, image):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    for name in (each.text, each.vision):
        body = {"text_embeds": text.tolist(), "image_embeds": image.tolist()}
        answer = served.http.post(f"/models/{name}/similarity", json=body).raise_for_status().json()
        scale = float(each.model.logit_scale.detach().exp())
        got = np.array(answer["logits_per_image"])
        ledger.check(each.kind, "logits_per_image", float(np.abs(got - wanted).max()) / max(1.0, scale), each.tolerance)
