"""Decodes pictures to upright RGB pixels, and prepares these for a model."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from models.vision.preprocess import Prepared, prepare, target_size
from models.vision.preprocessor_config import Preprocessor
from service.errors import BadInput, InlayError

FORMATS = ("JPEG", "PNG", "WEBP")
PHOTO = "MPO"  # a JPEG with further pictures behind the first, as phones write it
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "La", "CMYK", "YCbCr")
SHOWN = 80  # characters of a decoder's reason
THREAD_PIXELS = 1 << 18  # of a picture that a thread decodes
Hold = Callable[[int], object]
"""Called with a number of pixels before they are made, to keep memory for them."""


class LargePicture(Exception):
    """A picture of more pixels than a thread decodes."""


def raise_if_large(pixels: int) -> None:
    """Raise LargePicture for more than THREAD_PIXELS."""
    if pixels > THREAD_PIXELS:
        raise LargePicture


def decoded(
    preprocessor: Preprocessor, data: bytes, index: int, max_pixels: int, hold: Hold = lambda pixels: None
) -> Prepared:
    """Return a picture as its model reads it; `open_picture` says what the arguments are.

    Raises:
        BadInput: as `open_picture`, or it would be resized to more than `max_pixels`.
    """
    picture = open_picture(data, index, max_pixels, hold)
    height, width = _target(preprocessor, picture, index, max_pixels)
    hold(height * width)
    try:
        return prepare(preprocessor, picture)
    except ValueError as error:
        raise _of_size(picture, error, index) from None


def resized_to(preprocessor: Preprocessor, data: bytes, index: int, max_pixels: int) -> tuple[int, int]:
    """Return the height and width to which a picture is resized, from its header alone; raises as `decoded`.

    A picture that its EXIF turns is resized to the same two sides in the other order.
    """
    with _refusing(index):
        picture = _opened(data, index, max_pixels)
    return _target(preprocessor, picture, index, max_pixels)


def _target(preprocessor: Preprocessor, picture: Any, index: int, max_pixels: int) -> tuple[int, int]:
    """Return the height and width to which a picture is resized; raise BadInput if they are too large, or none."""
    try:
        height, width = target_size(preprocessor, picture.height, picture.width)
        if not 0 < height * width <= max_pixels:
            raise ValueError(f"it would be resized to {height}x{width}; this server takes {max_pixels} pixels")
    except ValueError as error:
        raise _of_size(picture, error, index) from None
    return height, width


def _of_size(picture: Any, error: ValueError, index: int) -> BadInput:
    return BadInput(f"of {picture.height}x{picture.width} pixels: {error}", field=("inputs", index))


def open_picture(data: bytes, index: int, max_pixels: int, hold: Hold = lambda pixels: None) -> Any:
    """Return a Pillow image of mode RGB, turned as its EXIF says, transparency on white.

    Args:
        data: the bytes of a JPEG, PNG or WebP file.
        index: number of the input, for errors.

    Raises:
        BadInput: the bytes are not a picture, or animated, cut short, of more than 8 bits a channel, or too large.
        MemoryError: there is not enough for it.
    """
    from PIL import ImageOps

    with _refusing(index):
        picture = _opened(data, index, max_pixels)
        hold(picture.width * picture.height)
        picture.load()
        return in_rgb(ImageOps.exif_transpose(picture))


def _opened(data: bytes, index: int, max_pixels: int) -> Any:
    """Return a Pillow image of which the header alone is read."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # max_pixels takes its place
    picture = Image.open(io.BytesIO(data), formats=FORMATS)
    _check(picture, index, max_pixels)
    return picture


@contextmanager
def _refusing(index: int) -> Iterator[None]:
    """Turn what Pillow raises for bytes that are no picture into BadInput."""
    from PIL import UnidentifiedImageError

    try:
        yield
    except (InlayError, LargePicture, MemoryError):
        raise
    except UnidentifiedImageError:
        raise BadInput("is not an image", field=("inputs", index), remedy="send a JPEG, PNG or WebP file") from None
    except Exception as error:  # decoders of damaged bytes raise whatever they meet
        reason = str(error)[:SHOWN] or type(error).__name__
        raise BadInput(
            f"is damaged or cut short: {reason}", field=("inputs", index), allowed="send the whole file"
        ) from None


def _check(picture: Any, index: int, max_pixels: int) -> None:
    width, height = picture.size
    field = ("inputs", index)
    if width * height > max_pixels:
        allowed = f"this server takes {max_pixels}"
        raise BadInput(f"has {width}x{height} pixels", field=field, allowed=allowed, remedy="send it smaller")
    frames = getattr(picture, "n_frames", 1)
    if frames > 1 and picture.format != PHOTO:
        raise BadInput(f"is animated, {frames} frames", field=field, remedy="send one frame")
    if picture.mode not in MODES:
        raise BadInput(f"is of mode {picture.mode}", field=field, allowed="send 8 bits a channel: RGB or grey")


def in_rgb(picture: Any) -> Any:
    """Return the picture in RGB, transparency laid on white.

    Source: transformers 5.23, convert_to_rgb; its load_image drops the transparency, which is not done here.
    """
    from PIL import Image

    if "A" not in picture.getbands() and picture.info.get("transparency") is None:
        return picture.convert("RGB")
    picture = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", picture.size, (255, 255, 255, 255)), picture).convert("RGB")
