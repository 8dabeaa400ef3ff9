"""A picture becomes pixels as preprocessor_config.json says, with Pillow and numpy. Decides nothing about the model.

source  the Pillow backend of transformers 5.23's image processors (image_processing_backends.PilBackend and the
        classes of preprocessor.PROCESSORS); DINOv3, which has none, as its torchvision one computes
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.vision.preprocessor import FILTERS, Preprocessor
from models.vision.resample import resized

Pixels = NDArray[Any]
SEARCH_STEP, SEARCH_END = 1e-5, 100.0  # of SigLIP 2's search for the largest scale that fits
MOST_SIDES = 200  # longer side / shorter side, Qwen
IN_FLOATS = {2: "bilinear_antialias", 3: "bicubic_antialias"}


class Prepared(NamedTuple):
    """What goes into the graph.

    values  float32 [channels, height, width], or flattened patches [rows, f]
    grid    rows and columns of the patches, where they are flattened
    """

    values: NDArray[np.float32]
    grid: tuple[int, int] | None


def target_size(how: Preprocessor, height: int, width: int) -> tuple[int, int]:
    """Height and width a picture is resized to.

    raises   ValueError for sides the rule has no answer for
    """
    first, second = how.sizes
    match how.sizing:
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
            return _counted(height, width, how.multiple, first, second)
        case "patches":
            return _most_patches(height, width, how.patch, first)
        case "longest":
            return _longest(height, width, how)
    return height, width


def prepare(how: Preprocessor, picture: Any) -> Prepared:
    """A Pillow image of mode RGB or L as what the graph takes; raises ValueError as `target_size`."""
    size = target_size(how, picture.height, picture.width)
    pixels = _in_floats(how, picture, size) if how.scale_first else _in_bytes(how, picture, size)
    return flattened(how, pixels) if how.patch > 1 else Prepared(pixels, None)


def _in_bytes(how: Preprocessor, picture: Any, size: tuple[int, int]) -> NDArray[np.float32]:
    from PIL import Image

    if how.sizing is not None:
        picture = picture.resize(size[::-1], resample=Image.Resampling[FILTERS[how.resample].upper()])
    pixels = _cropped(how, _channels_first(np.asarray(picture)))
    levels = _levels(how, len(pixels))
    found = np.empty(pixels.shape, np.float32)
    for channel, plane in enumerate(pixels):
        np.take(levels[channel], plane, out=found[channel])
    return found


@lru_cache(maxsize=64)
def _levels(how: Preprocessor, channels: int) -> NDArray[np.float32]:
    """[channels, 256]: what each byte becomes."""
    levels = np.tile(np.arange(256, dtype=np.float64), (channels, 1))
    return _normalised(how, (levels if how.scale is None else levels * how.scale).astype(np.float32))


def _normalised(how: Preprocessor, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """(values - mean) / std of each channel, in float32."""
    if how.mean is None or how.std is None:
        return values
    mean, std = (np.array(each, np.float32).reshape(-1, *[1] * (values.ndim - 1)) for each in (how.mean, how.std))
    return (values - mean) / std


def _in_floats(how: Preprocessor, picture: Any, size: tuple[int, int]) -> NDArray[np.float32]:
    pixels = _channels_first(np.asarray(picture)).astype(np.float32)
    if how.scale is not None:
        pixels = pixels * np.float32(how.scale)
    if how.sizing is not None and size != pixels.shape[1:]:
        if how.resample not in IN_FLOATS:
            raise ValueError(f"filter {how.resample} is not computed in floats; 2 (bilinear) and 3 (bicubic) are")
        pixels = resized(pixels, IN_FLOATS[how.resample], *size).astype(np.float32)
    return np.ascontiguousarray(_normalised(how, _cropped(how, pixels)))


def _channels_first(pixels: Pixels) -> Pixels:
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _cropped(how: Preprocessor, pixels: Pixels) -> Pixels:
    """The middle, where an odd rest leaves one row more below and to the right; black beyond the picture."""
    if how.crop is None:
        return pixels
    for axis, wanted in ((1, how.crop[0]), (2, how.crop[1])):
        have = pixels.shape[axis]
        lacking = max(0, wanted - have)
        before = (lacking + 1) // 2
        around = [(0, 0)] * 3
        around[axis] = (before, lacking - before)
        start = (have - wanted) // 2 + before if lacking else (have - wanted) // 2
        pixels = np.pad(pixels, around).take(range(start, start + wanted), axis=axis)
    return pixels


def flattened(how: Preprocessor, pixels: NDArray[np.float32]) -> Prepared:
    """[channels, height, width] as patches, one a row, in blocks of merge x merge; the frame repeated."""
    side, block = how.patch, how.merge
    channels, height, width = pixels.shape
    rows, columns = height // side, width // side
    if rows % block or columns % block or not rows or not columns:
        raise ValueError(f"{rows}x{columns} patches of {side} make no blocks of {block}x{block}")
    cut = pixels[:, : rows * side, : columns * side]
    cut = cut.reshape(channels, rows // block, block, side, columns // block, block, side)
    if how.channels_last:
        return Prepared(cut.transpose(1, 4, 2, 5, 3, 6, 0).reshape(rows * columns, -1), (rows, columns))
    patches = cut.transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]  # (h, w, m, m, C, 1, P, P)
    repeated = np.broadcast_to(patches, (*patches.shape[:5], how.frames, side, side))
    return Prepared(repeated.reshape(rows * columns, -1), (rows, columns))


def _shortest(height: int, width: int, side: int) -> tuple[int, int]:
    long = int(side * max(height, width) / min(height, width))
    return (long, side) if width <= height else (side, long)


def _between(height: int, width: int, side: int, most: int) -> tuple[int, int]:
    short, long = float(min(height, width)), float(max(height, width))
    exact: float = side
    if long / short * side > most:
        exact = most * short / long
        side = round(exact)
    if min(height, width) == side:
        return height, width
    return (int(exact * height / width), side) if width < height else (side, int(exact * width / height))


def _counted(height: int, width: int, multiple: int, least: int, most: int) -> tuple[int, int]:
    if max(height, width) / min(height, width) > MOST_SIDES:
        raise ValueError(f"one side is more than {MOST_SIDES} times the other")
    found = [round(size / multiple) * multiple for size in (height, width)]
    if found[0] * found[1] > most:
        shrink = math.sqrt(height * width / most)
        found = [max(multiple, math.floor(size / shrink / multiple) * multiple) for size in (height, width)]
    elif found[0] * found[1] < least:
        grow = math.sqrt(least / (height * width))
        found = [math.ceil(size * grow / multiple) * multiple for size in (height, width)]
    return found[0], found[1]


def _most_patches(height: int, width: int, patch: int, most: int) -> tuple[int, int]:
    def scaled(scale: float) -> tuple[int, int]:
        sizes = [max(patch, math.ceil(size * scale / patch) * patch) for size in (height, width)]
        return sizes[0], sizes[1]

    low, high = SEARCH_STEP / 10, SEARCH_END
    while high - low >= SEARCH_STEP:
        middle = (low + high) / 2
        rows, columns = scaled(middle)
        if (rows / patch) * (columns / patch) <= most:
            low = middle
        else:
            high = middle
    return scaled(low)


def _longest(height: int, width: int, how: Preprocessor) -> tuple[int, int]:
    ratio = max(height / how.sizes[0], width / how.sizes[1])
    if ratio > 1:
        height, width = math.floor(height / ratio), math.floor(width / ratio)
    rows, columns = ((size - 1) // how.multiple + 1 for size in (height, width))
    return rows * how.multiple, columns * how.multiple
