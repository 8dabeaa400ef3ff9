"""preprocessor_config.json with its processor's defaults: sizes, filter, crop, scale, mean, std.

PROCESSORS holds the defaults of each image processor class of transformers 5.23.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from models.errors import BadCheckpoint

Sizing = Literal["exact", "shortest", "between", "within", "pixels", "patches", "longest"]
FILE_NAME = "preprocessor_config.json"
FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}  # Pillow's codes
LARGEST = 1 << 15  # pixels of a side
HALVES, IMAGENET = ((0.5,) * 3, (0.5,) * 3), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
OPENAI = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


@dataclass(frozen=True, slots=True)
class Preprocessor:
    """How an image becomes pixels.

    Attributes:
        sizing: how it is resized. None: not at all. exact: to (height, width). shortest: the shorter side to the first
            number. between: the same, with the longer side at most the second number. within: inside (height, width),
            keeping the aspect ratio. pixels: sides in multiples of `multiple`, with a number of pixels between the two
            numbers. patches: at most the first number of patches. longest: no side above these, then rounded up to
            multiples of `multiple`.
        sizes: the two numbers of `sizing`; the second is 0 where it needs one.
        resample: the filter, a key of FILTERS.
        crop: height and width of the centre crop, black where the image is smaller; None: none.
        scale: factor of the values, usually 1/255; None: none.
        mean: mean of each channel, after scaling; None: not normalised.
        std: likewise.
        multiple: see sizing.
        scale_first: True: scaled before resizing, in floats (DINOv3). False: after resizing, in bytes.
        patch: side of a flattened patch; 1: not flattened.
        frames: number of times that an image is repeated in a flattened patch.
        merge: flattened patches come in blocks of merge x merge.
        channels_last: whether a flattened patch is ordered by pixel, then channel (SigLIP 2).
    """

    sizing: Sizing | None
    sizes: tuple[int, int]
    resample: int
    crop: tuple[int, int] | None
    scale: float | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    multiple: int = 1
    scale_first: bool = False
    patch: int = 1
    frames: int = 1
    merge: int = 1
    channels_last: bool = False


@dataclass(frozen=True, slots=True)
class Processor:
    """The defaults of an image processor class of transformers.

    Attributes:
        size: size in the file.
        colours: mean and std of the channels.
        resample: a key of FILTERS.
        crop: side of the centre crop; None: none.
        square: True: a single number as size means both sides; False: the shorter side.
        defaults: other values, by the keys of the file.
    """

    size: Mapping[str, int]
    colours: tuple[tuple[float, ...], tuple[float, ...]]
    resample: int = 3
    crop: int | None = None
    square: bool = True
    defaults: Mapping[str, Any] = field(default_factory=dict)


def _square(side: int) -> dict[str, int]:
    return {"height": side, "width": side}


PROCESSORS: dict[str, Processor] = {
    "ViT": Processor(_square(224), HALVES, 2),
    "DeiT": Processor(_square(256), HALVES, 3, 224),
    "Beit": Processor(_square(224), HALVES, 3),
    "CLIP": Processor({"shortest_edge": 224}, OPENAI, 3, 224, square=False),
    "Bit": Processor({"shortest_edge": 224}, OPENAI, 3, 224, square=False),
    "Siglip": Processor(_square(224), HALVES, 3, square=False),
    "Siglip2": Processor({}, HALVES, 2, defaults={"patch_size": 16, "max_num_patches": 256}),
    "Blip": Processor(_square(384), OPENAI, 3),
    "DINOv3ViT": Processor(_square(224), IMAGENET, 2),
    "Pixtral": Processor({"longest_edge": 1024}, OPENAI, 3, defaults={"patch_size": 16}),
    "Qwen2VL": Processor(
        {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
        OPENAI,
        3,
        defaults={"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2},
    ),
}
ENDINGS = ("ImageProcessorFast", "ImageProcessorPil", "ImageProcessor", "FeatureExtractor")


def read(data: Mapping[str, Any], default: str, channels: int = 3) -> Preprocessor:
    """Return the values of a preprocessor_config.json.

    Args:
        data: the parsed file.
        default: the row of PROCESSORS where the file names no class.
        channels: channels of an image.

    Raises:
        BadCheckpoint: an unknown class, or a value that is not allowed.
    """
    name = _named(data, default)
    row = PROCESSORS[name]
    sizing, sizes = _sizing(name, row, data) if _flag(data, "do_resize", True) else (None, (0, 0))
    crop = _pair(data, "crop_size", row.crop or 224) if _flag(data, "do_center_crop", row.crop is not None) else None
    scale = _number(data, "rescale_factor", 1 / 255) if _flag(data, "do_rescale", True) else None
    mean, std = _colours(data, row, channels) if _flag(data, "do_normalize", True) else (None, None)
    preprocessor = Preprocessor(
        sizing, sizes, _filter(data, row), crop, scale, mean, std, scale_first=name == "DINOv3ViT"
    )
    return _patched(preprocessor, name, row, data)


def _named(data: Mapping[str, Any], default: str) -> str:
    value = data.get("image_processor_type") or data.get("feature_extractor_type")
    if value is None:
        return default
    name = str(value)
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    if name not in PROCESSORS:
        known = ", ".join(f"{each}ImageProcessor" for each in PROCESSORS)
        raise BadCheckpoint(f"{FILE_NAME} says image_processor_type {str(value)[:60]!r}; known: {known}")
    return name


def _patched(preprocessor: Preprocessor, name: str, row: Processor, data: Mapping[str, Any]) -> Preprocessor:
    """Return the preprocessor with the values for flattened patches."""
    if not row.defaults:
        return preprocessor
    sizes = {key: _count(data, key, default) for key, default in row.defaults.items()}
    patch, merge = sizes["patch_size"], sizes.get("merge_size", 1)
    changed = replace(preprocessor, multiple=patch * merge, channels_last=name == "Siglip2")
    if name == "Pixtral":
        return changed
    return replace(changed, patch=patch, frames=sizes.get("temporal_patch_size", 1), merge=merge)


def _sizing(name: str, row: Processor, data: Mapping[str, Any]) -> tuple[Sizing, tuple[int, int]]:
    if name == "Siglip2":
        return "patches", (_count(data, "max_num_patches", row.defaults["max_num_patches"]), 0)
    value = data.get("size")
    size = dict(row.size) if value is None else _size(value, row)
    if name == "Qwen2VL":
        return "pixels", _pixels(size, data)
    keys = {key for key, value in size.items() if value is not None}
    if name == "Pixtral" and keys == {"longest_edge"}:
        return "longest", (_whole("size.longest_edge", size["longest_edge"]),) * 2
    kinds: dict[frozenset[str], tuple[Sizing, tuple[str, ...]]] = {
        frozenset({"height", "width"}): ("longest" if name == "Pixtral" else "exact", ("height", "width")),
        frozenset({"shortest_edge"}): ("shortest", ("shortest_edge",)),
        frozenset({"shortest_edge", "longest_edge"}): ("between", ("shortest_edge", "longest_edge")),
        frozenset({"max_height", "max_width"}): ("within", ("max_height", "max_width")),
    }
    if frozenset(keys) not in kinds:
        raise _bad_value(
            "size", value, "a whole number or an object of " + " or ".join("+".join(sorted(k)) for k in kinds)
        )
    sizing, names = kinds[frozenset(keys)]
    numbers = [_whole(f"size.{key}", size[key]) for key in names]
    return sizing, (numbers[0], numbers[-1] if len(numbers) > 1 else 0)


def _size(value: Any, row: Processor) -> dict[str, Any]:
    """Return the size as an object; older files give one number, or [height, width]."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list) and len(value) == 2:
        return {"height": value[0], "width": value[1]}
    if type(value) is int:
        return _square(value) if row.square else {"shortest_edge": value}
    raise _bad_value("size", value, "a whole number, [height, width] or an object")


def _pixels(size: Mapping[str, Any], data: Mapping[str, Any]) -> tuple[int, int]:
    """Return Qwen's smallest and largest number of pixels, under their old names or as edges."""
    named = (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge"))
    values = [data.get(old) if data.get(old) is not None else size.get(old, size.get(new)) for old, new in named]
    minimum, maximum = (_whole(old, value, 1 << 40) for (old, _), value in zip(named, values, strict=True))
    if minimum > maximum:
        raise _bad_value("min_pixels", minimum, f"at most max_pixels, {maximum}")
    return minimum, maximum


def _filter(data: Mapping[str, Any], row: Processor) -> int:
    value = _value(data, "resample", row.resample)
    if type(value) is not int or value not in FILTERS:
        raise _bad_value("resample", value, ", ".join(f"{code} ({name})" for code, name in FILTERS.items()))
    return value


def _colours(data: Mapping[str, Any], row: Processor, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    mean, std = (
        _list(data, key, default, channels)
        for key, default in zip(("image_mean", "image_std"), row.colours, strict=True)
    )
    if not all(std):
        raise _bad_value("image_std", list(std), "numbers other than 0")
    return mean, std


def _value(data: Mapping[str, Any], key: str, default: Any) -> Any:
    """Return a value of the file, or the default where it is missing or null."""
    return default if data.get(key) is None else data[key]


def _list(data: Mapping[str, Any], key: str, default: tuple[float, ...], channels: int) -> tuple[float, ...]:
    value = _value(data, key, default)
    listed = value if isinstance(value, list | tuple) else [value] * channels
    if len(listed) != channels or not all(_finite(number) for number in listed):
        raise _bad_value(key, value, f"a number or {channels} of them")
    return tuple(float(number) for number in listed)


def _pair(data: Mapping[str, Any], key: str, default: int) -> tuple[int, int]:
    value = _value(data, key, default)
    if isinstance(value, Mapping):
        value = [value.get("height"), value.get("width")]
    height, width = value if isinstance(value, list) and len(value) == 2 else (value, value)
    return _whole(key, height), _whole(key, width)


def _flag(data: Mapping[str, Any], key: str, default: bool) -> bool:
    value = _value(data, key, default)
    if type(value) is not bool:
        raise _bad_value(key, value, "true or false")
    return value


def _number(data: Mapping[str, Any], key: str, default: float) -> float:
    value = _value(data, key, default)
    if not _finite(value):
        raise _bad_value(key, value, "a number")
    return float(value)


def _count(data: Mapping[str, Any], key: str, default: int) -> int:
    value = _value(data, key, default)
    if isinstance(value, Mapping) and set(value) == {"height", "width"} and value["height"] == value["width"]:
        value = value["height"]
    return _whole(key, value)


def _whole(key: str, value: Any, maximum: int = LARGEST) -> int:
    if type(value) is not int or not 1 <= value <= maximum:
        raise _bad_value(key, value, f"a whole number from 1 to {maximum}")
    return value


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _bad_value(key: str, value: Any, allowed: str) -> BadCheckpoint:
    return BadCheckpoint(f"{FILE_NAME} says {key} {str(value)[:80]}; it must be {allowed}")
