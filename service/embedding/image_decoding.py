"""The bytes of a picture → upright pixels in RGB, or a refusal that says why. Knows no model and fetches nothing."""

import io
from typing import Any

from service.errors import BadInput

FORMATS = ("JPEG", "PNG", "WEBP")
PHOTO = "MPO"  # a JPEG with further pictures behind the first, as phones write it
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "La", "CMYK", "YCbCr")
SHOWN = 80  # characters of a decoder's reason


def opened(data: bytes, index: int, most_pixels: int) -> Any:
    """A Pillow image of mode RGB, turned as its EXIF says, transparency on white.

    index    of the input, for refusals
    raises   BadInput for what is no picture, is animated, cut short, of more than 8 bits a channel, or too large
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    Image.MAX_IMAGE_PIXELS = None  # most_pixels stands in its place; open reads the header alone
    try:
        picture = Image.open(io.BytesIO(data), formats=FORMATS)
        _check(picture, index, most_pixels)
        picture.load()
        return in_rgb(ImageOps.exif_transpose(picture))
    except BadInput:
        raise
    except UnidentifiedImageError:
        raise BadInput(f"inputs[{index}] is no image: send a JPEG, PNG or WebP file", index) from None
    except Exception as error:  # decoders of damaged bytes raise whatever they meet
        reason = str(error)[:SHOWN] or type(error).__name__
        raise BadInput(f"inputs[{index}] is damaged or cut short: {reason}; send the whole file", index) from None


def _check(picture: Any, index: int, most_pixels: int) -> None:
    width, height = picture.size
    if width * height > most_pixels:
        raise BadInput(
            f"inputs[{index}] has {width}x{height} pixels; this server takes {most_pixels}: send it smaller", index
        )
    frames = getattr(picture, "n_frames", 1)
    if frames > 1 and picture.format != PHOTO:
        raise BadInput(f"inputs[{index}] is animated, {frames} frames: send one frame", index)
    if picture.mode not in MODES:
        raise BadInput(f"inputs[{index}] is of mode {picture.mode}; send 8 bits a channel: RGB or grey", index)


def in_rgb(picture: Any) -> Any:
    """The picture in RGB, transparency laid on white.

    source   transformers 5.23, convert_to_rgb; its load_image, which drops the transparency, is not followed
    """
    from PIL import Image

    if "A" not in picture.getbands() and picture.info.get("transparency") is None:
        return picture.convert("RGB")
    picture = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", picture.size, (255, 255, 255, 255)), picture).convert("RGB")
