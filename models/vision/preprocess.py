"""Image preprocessing: an image becomes pixels as preprocessor_config.json says, with Pillow and numpy.

Source: the Pillow backend of transformers 5.23's image processors (image_processing_backends.PilBackend and the classes
of preprocessor_config.PROCESSORS); for DINOv3, which has none, its torchvision backend.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.vision.preprocessor_config import FILTERS, Preprocessor
from models.vision.resample import resized

Pixels = NDArray[Any]
SEARCH_STEP, SEARCH_LIMIT = 1e-5, 100.0  # of SigLIP 2's search for the largest scale that fits
MAX_ASPECT_RATIO = 200  # longer side / shorter side, Qwen
IN_FLOATS = {2: "bilinear_antialias", 3: "bicubic_antialias"}


class Prepared(NamedTuple):
    """The input of the graph.

    Attributes:
        values: float32 [channels, height, width], or flattened patches [rows, f].
        grid: rows and columns of the patches, where they are flattened.
    """

    values: NDArray[np.float32]
    grid: tuple[int, int] | None


def target_size(config: Preprocessor, height: int, width: int) -> tuple[int, int]:
    """Return the height and width to which an image is resized.

    Args:
        config: the preprocessor.
        height: height of the image, in pixels.
        width: width of the image, in pixels.

    Raises:
        ValueError: the rule does not allow these sides.
    """
    first, second = config.sizes
    match config.sizing:
        case "exact":
            return first, second
        case "shortest":
            return _shortest(height, width, first)
        case "between":
            return _between(height, width, first, second)
        case "within":
            scale = min(first / height, second / width)
            return int(height * scale), int(width * scale)
        case "pixels":
            return _within_pixels(height, width, config.multiple, first, second)
        case "patches":
            return _most_patches(height, width, config.patch, first)
        case "longest":
            return _longest(height, width, config)
    return height, width


def prepare(config: Preprocessor, picture: Any) -> Prepared:
    """Return the graph's input for a Pillow image of mode RGB or L.

    Raises:
        ValueError: the image has sides that the preprocessor does not allow.
    """
    size = target_size(config, picture.height, picture.width)
    pixels = _in_floats(config, picture, size) if config.scale_first else _in_bytes(config, picture, size)
    return flattened(config, pixels) if config.patch > 1 else Prepared(pixels, None)


def _in_bytes(config: Preprocessor, picture: Any, size: tuple[int, int]) -> NDArray[np.float32]:
    from PIL import Image

    if config.sizing is not None:
        picture = picture.resize(size[::-1], resample=Image.Resampling[FILTERS[config.resample].upper()])
    pixels = _cropped(config, _channels_first(np.asarray(picture)))
    levels = _levels(config, len(pixels))
    result = np.empty(pixels.shape, np.float32)
    for channel, plane in enumerate(pixels):
        np.take(levels[channel], plane, out=result[channel])
    return result


@lru_cache(maxsize=64)
def _levels(config: Preprocessor, channels: int) -> NDArray[np.float32]:
    """Return the value of each byte, [channels, 256]."""
    levels = np.tile(np.arange(256, dtype=np.float64), (channels, 1))
    return _normalised(config, (levels if config.scale is None else levels * config.scale).astype(np.float32))


def _normalised(config: Preprocessor, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return (values - mean) / std of each channel, in float32."""
    if config.mean is None or config.std is None:
        return values
    mean, std = (np.array(each, np.float32).reshape(-1, *[1] * (values.ndim - 1)) for each in (config.mean, config.std))
    return (values - mean) / std


def _in_floats(config: Preprocessor, picture: Any, size: tuple[int, int]) -> NDArray[np.float32]:
    pixels = _channels_first(np.asarray(picture)).astype(np.float32)
    if config.scale is not None:
        pixels = pixels * np.float32(config.scale)
    if config.sizing is not None and size != pixels.shape[1:]:
        if config.resample not in IN_FLOATS:
            raise ValueError(f"filter {config.resample} is not computed in floats; 2 (bilinear) and 3 (bicubic) are")
        pixels = resized(pixels, IN_FLOATS[config.resample], *size).astype(np.float32)
    return np.ascontiguousarray(_normalised(config, _cropped(config, pixels)))


def _channels_first(pixels: Pixels) -> Pixels:
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _cropped(config: Preprocessor, pixels: Pixels) -> Pixels:
    """Return the centre crop; of an odd rest, the extra row is below or right; black beyond the image."""
    if config.crop is None:
        return pixels
    for axis, target in ((1, config.crop[0]), (2, config.crop[1])):
        current = pixels.shape[axis]
        missing = max(0, target - current)
        before = (missing + 1) // 2
        around = [(0, 0)] * 3
        around[axis] = (before, missing - before)
        start = (current - target) // 2 + before if missing else (current - target) // 2
        pixels = np.pad(pixels, around).take(range(start, start + target), axis=axis)
    return pixels


def flattened(config: Preprocessor, pixels: NDArray[np.float32]) -> Prepared:
    """Return [channels, height, width] as flattened patches, one per row, in blocks of merge x merge.

    Raises:
        ValueError: the patches do not fill whole blocks.
    """
    side, block = config.patch, config.merge
    channels, height, width = pixels.shape
    rows, columns = height // side, width // side
    if rows % block or columns % block or not rows or not columns:
        raise ValueError(f"{rows}x{columns} patches of {side} make no blocks of {block}x{block}")
    cut = pixels[:, : rows * side, : columns * side]
    cut = cut.reshape(channels, rows // block, block, side, columns // block, block, side)
    if config.channels_last:
        return Prepared(cut.transpose(1, 4, 2, 5, 3, 6, 0).reshape(rows * columns, -1), (rows, columns))
    patches = cut.transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]  # (h, w, m, m, C, 1, P, P)
    repeated = np.broadcast_to(patches, (*patches.shape[:5], config.frames, side, side))
    return Prepared(repeated.reshape(rows * columns, -1), (rows, columns))


def _shortest(height: int, width: int, side: int) -> tuple[int, int]:
    long = int(side * max(height, width) / min(height, width))
    return (long, side) if width <= height else (side, long)


def _between(height: int, width: int, side: int, maximum: int) -> tuple[int, int]:
    short, long = float(min(height, width)), float(max(height, width))
    exact: float = side
    if long / short * side > maximum:
        exact = maximum * short / long
        side = round(exact)
    if min(height, width) == side:
        return height, width
    return (int(exact * height / width), side) if width < height else (side, int(exact * width / height))


def _within_pixels(height: int, width: int, multiple: int, minimum: int, maximum: int) -> tuple[int, int]:
    if max(height, width) / min(height, width) > MAX_ASPECT_RATIO:
        raise ValueError(f"one side is more than {MAX_ASPECT_RATIO} times the other")
    result = [round(size / multiple) * multiple for size in (height, width)]
    if result[0] * result[1] > maximum:
        shrink = math.sqrt(height * width / maximum)
        result = [max(multiple, math.floor(size / shrink / multiple) * multiple) for size in (height, width)]
    elif result[0] * result[1] < minimum:
        grow = math.sqrt(minimum / (height * width))
        result = [math.ceil(size * grow / multiple) * multiple for size in (height, width)]
    return result[0], result[1]


def _most_patches(height: int, width: int, patch: int, maximum: int) -> tuple[int, int]:
    def scaled(scale: float) -> tuple[int, int]:
        sizes = [max(patch, math.ceil(size * scale / patch) * patch) for size in (height, width)]
        return sizes[0], sizes[1]

    low, high = SEARCH_STEP / 10, SEARCH_LIMIT
    while high - low >= SEARCH_STEP:
        middle = (low + high) / 2
        rows, columns = scaled(middle)
        if (rows / patch) * (columns / patch) <= maximum:
            low = middle
        else:
            high = middle
    return scaled(low)


def _longest(height: int, width: int, config: Preprocessor) -> tuple[int, int]:
    ratio = max(height / config.sizes[0], width / config.sizes[1])
    if ratio > 1:
        height, width = math.floor(height / ratio), math.floor(width / ratio)
    rows, columns = ((size - 1) // config.multiple + 1 for size in (height, width))
    return rows * config.multiple, columns * config.multiple
