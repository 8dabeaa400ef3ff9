"""Golden images as test data, checkpoints made of them, and pictures."""

import io
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from models.artifacts.card import Card
from models.artifacts.export import export
from tests.golden_cases import Case, case, manifest, write_folder, write_json

FEEDS = ("pixel_values", "input_features")
SIDES = {"qwen2_vl": "vision", "whisper": "encoder"}
# What the reference read from the live module instead of a config
QWEN = {"vision_config": {"embed_dim": 24, "patch_size": 4, "temporal_patch_size": 2, "in_channels": 3, "num_heads": 2}}


@cache
def seen() -> tuple[Case, ...]:
    """Every golden case that begins with an image or a spectrogram."""
    names = (entry["name"] for entry in manifest()["cases"])
    return tuple(case(name) for name in names if name.startswith("vision_") or name == "input_whisper_encoder")


def feed_of(arrays: Any) -> str | None:
    """Which of FEEDS a case holds."""
    return next((name for name in FEEDS if name in arrays), None)


def config_of(golden: Case) -> dict[str, Any]:
    """The checkpoint's config.json."""
    own = golden.params.get("config") or QWEN
    return own | {"model_type": golden.params["model_type"]}


def write_seen(golden: Case, folder: Path, preprocessor: Mapping[str, Any] | None = None) -> Path:
    """The case as a Hugging Face folder, with a preprocessor_config.json where one is given."""
    write_folder(folder, config_of(golden), golden.weights)
    if preprocessor is not None:
        write_json(folder / "preprocessor_config.json", preprocessor)
    return folder


def export_seen(golden: Case, folder: Path, out: Path, preprocessor: Mapping[str, Any] | None = None) -> Card:
    """The case's checkpoint, written and exported."""
    return export(write_seen(golden, folder, preprocessor), out, side=SIDES.get(golden.params["model_type"]))


def picture(height: int = 20, width: int = 30, mode: str = "RGB", seed: int = 3) -> Image.Image:
    """A picture of smooth colours and some noise."""
    random = np.random.default_rng(seed)
    bands = len(Image.new(mode, (1, 1)).getbands())
    y, x = np.mgrid[:height, :width]
    layers = [
        127 + 90 * np.sin(x / (3 + band) + y / (5 + band)) + random.normal(0, 12, (height, width))
        for band in range(bands)
    ]
    pixels = np.clip(np.stack(layers, -1), 0, 255).astype(np.uint8)
    return Image.fromarray(pixels if bands > 1 else pixels[..., 0]).convert(mode)


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    """The bytes of an image file."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def pixels_of(image: Image.Image) -> NDArray[np.uint8]:
    """[height, width, channels]"""
    return np.asarray(image)
