"""preprocessor_config.json: rejected values, old forms, and properties of preprocessed images."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from models.errors import BadCheckpoint
from models.recipes.typed_json import from_json, to_json
from models.vision.preprocess import flattened, prepare, target_size
from models.vision.preprocessor_config import PROCESSORS, Preprocessor, read
from tests.vision_cases import picture, pixels_of

PLAIN = {"do_resize": False, "do_center_crop": False, "do_rescale": False, "do_normalize": False}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a class nobody knows": ({"image_processor_type": "SamImageProcessor"}, "'SamImageProcessor'; known: ViTImagePro"),
    "a size of zero": ({"size": 0}, "size.shortest_edge 0; it must be a whole number from 1"),
    "a negative size": ({"size": {"height": -3, "width": 4}}, "size.height -3; it must be a whole"),
    "a size beyond reason": ({"size": {"height": 9, "width": 99999}}, "size.width 99999; it must be a whole number"),
    "a size that is true": ({"size": {"height": True, "width": 4}}, "size.height True"),
    "a size that is a fraction": ({"size": 2.5}, "size 2.5; it must be a whole number, "),
    "a size with strange keys": ({"size": {"height": 4}}, "size {'height': 4}; it must be a whole number or an object"),
    "a size of three numbers": ({"size": [1, 2, 3]}, r"size \[1, 2, 3\]"),
    "a filter nobody knows": ({"resample": 9}, r"resample 9; it must be 0 \(nearest\), 1"),
    "a filter by name": ({"resample": "bicubic"}, "resample bicubic"),
    "a flag that is a text": ({"do_resize": "yes"}, "do_resize yes; it must be true or false"),
    "two means": ({"image_mean": [0.5, 0.5]}, r"image_mean \[0.5, 0.5\]; it must be a number or 3 of them"),
    "a mean that is a text": ({"image_mean": ["a", 0, 0]}, "image_mean"),
    "an infinite mean": ({"image_mean": float("inf")}, "image_mean inf"),
    "a deviation of zero": ({"image_std": [1, 0, 1]}, "image_std .* numbers other than 0"),
    "a scale that is no number": ({"rescale_factor": "1/255"}, "rescale_factor 1/255; it must be a number"),
    "a crop without a width": ({"crop_size": {"height": 4}}, "crop_size None"),
    "least pixels above most": (
        {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 900, "max_pixels": 4},
        "min_pixels 900; it must be at most max_pixels, 4",
    ),
    "a patch of zero": ({"image_processor_type": "Siglip2ImageProcessor", "patch_size": 0}, "patch_size 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rejects_invalid_value_and_names_the_allowed(name: str) -> None:
    data, message = REFUSED[name]
    with pytest.raises(BadCheckpoint, match=f"^preprocessor_config.json says .*{message}"):
        read(data, "CLIP")


@pytest.mark.parametrize("usual", PROCESSORS)
def test_empty_file_takes_all_defaults_and_round_trips(usual: str) -> None:
    actual = read({}, usual)
    assert from_json(Preprocessor, to_json(Preprocessor, actual)) == actual
    assert read({"image_processor_type": f"{usual}ImageProcessorFast"}, "ViT") == actual
    assert read({"feature_extractor_type": f"{usual}FeatureExtractor"}, "ViT") == actual


def test_single_size_is_both_sides_or_the_shorter() -> None:
    assert target_size(read({"size": 20}, "ViT"), 50, 100) == (20, 20)
    assert target_size(read({"size": 20}, "CLIP"), 50, 100) == (20, 40)
    assert target_size(read({"size": [20, 30]}, "CLIP"), 50, 100) == (20, 30)


def test_without_any_step_pixels_are_the_image_bytes() -> None:
    image = picture(6, 9)
    values = prepare(read(PLAIN, "CLIP"), image).values
    assert np.array_equal(values, pixels_of(image).transpose(2, 0, 1))


def test_resizing_to_the_same_size_changes_nothing() -> None:
    image = picture(12, 12)
    same = read(PLAIN | {"do_resize": True, "size": {"height": 12, "width": 12}}, "ViT")
    assert np.array_equal(prepare(same, image).values, prepare(read(PLAIN, "ViT"), image).values)


def test_uniform_colour_is_kept_at_any_size() -> None:
    image = Image.new("RGB", (31, 17), (10, 200, 77))
    for name in ("CLIP", "ViT", "DINOv3ViT"):
        data = {"size": {"height": 9, "width": 40}, "do_normalize": False, "do_center_crop": False}
        values = prepare(read(data, name), image).values
        assert values.shape == (3, 9, 40)
        np.testing.assert_allclose(values[:, 4, 7] * 255, (10, 200, 77), atol=1e-4)
        assert (np.ptp(values, axis=(1, 2)) < 1e-6).all()


@pytest.mark.parametrize(("height", "width"), [(10, 10), (11, 10), (9, 12), (4, 4), (5, 13), (3, 20)])
def test_crop_is_centred_and_padded_with_black(height: int, width: int) -> None:
    image = picture(height, width)
    values = prepare(
        read(PLAIN | {"do_center_crop": True, "crop_size": {"height": 6, "width": 7}}, "CLIP"), image
    ).values
    assert values.shape == (3, 6, 7)
    top, left = (height - 6) // 2, (width - 7) // 2
    for y in range(6):
        for x in range(7):
            inside = 0 <= y + top < height and 0 <= x + left < width
            expected = pixels_of(image)[y + top, x + left] if inside else (0, 0, 0)
            assert tuple(values[:, y, x]) == tuple(expected)


def test_flattened_patches_have_qwens_order() -> None:
    """Qwen2-VL: four patches of a block, then the next block; each patch [C, T, P, P]."""
    config = read(PLAIN | {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 2}, "Qwen2VL")
    pixels = np.arange(3 * 4 * 8, dtype=np.float32).reshape(3, 4, 8)
    values, grid = flattened(config, pixels)
    assert grid == (2, 4)
    places = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]
    for row, (y, x) in zip(values, places, strict=True):
        patch = pixels[:, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2]
        assert np.array_equal(row.reshape(3, 2, 2, 2), np.stack([patch, patch], axis=1))


def test_flattened_patches_of_siglip2_end_in_channels() -> None:
    config = read(PLAIN | {"image_processor_type": "Siglip2ImageProcessor", "patch_size": 2}, "Siglip2")
    pixels = np.arange(3 * 4 * 6, dtype=np.float32).reshape(3, 4, 6)
    values, grid = flattened(config, pixels)
    assert grid == (2, 3)
    assert np.array_equal(values[4].reshape(2, 2, 3), pixels[:, 2:4, 2:4].transpose(1, 2, 0))


@pytest.mark.parametrize("size", [(30, 40), (500, 37), (1, 150), (2000, 3000), (64, 64)])
def test_qwen_sizes_are_multiples_within_allowed_pixels(size: tuple[int, int]) -> None:
    config = read({"min_pixels": 3136, "max_pixels": 100352}, "Qwen2VL")
    height, width = target_size(config, *size)
    assert height % 28 == width % 28 == 0
    assert 3136 <= height * width <= 100352


def test_rejects_image_too_long_for_qwen() -> None:
    with pytest.raises(ValueError, match="more than 200 times"):
        target_size(read({}, "Qwen2VL"), 2, 500)


@pytest.mark.parametrize("size", [(30, 40), (500, 37), (1, 90), (64, 64)])
def test_siglip2_uses_at_most_the_allowed_patches(size: tuple[int, int]) -> None:
    height, width = target_size(read({"max_num_patches": 50}, "Siglip2"), *size)
    assert height % 16 == width % 16 == 0
    assert 1 <= (height // 16) * (width // 16) <= 50
