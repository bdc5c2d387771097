"""Converts images of Pillow to RGB, in bands of rows and at a reduced size if possible.

A large image takes up to 4 bytes per pixel once it is decoded. Converting it as a whole
would take several times that; a band of rows takes little.
"""

import contextlib
import functools
import warnings
from collections.abc import Iterator

import numpy as np
from PIL import ExifTags, Image, ImageCms

from jaxload.media.frame import MediaError, Turn, turned

PLAIN = frozenset({"1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr"})
ALPHA = frozenset({"RGBA", "LA", "PA"})
DEEP_GREY = frozenset({"I", "I;16", "I;16B", "I;16L", "I;16N"})

_BAND = 1 << 20
"""Pixels that are converted at once, or one row of more."""

# A picture is reduced by averaging pixels only if it stays this many times as large as
# the caller's size. The Lanczos filter that scales it further then decides its look.
_MARGIN = 3

_TURNS: dict[int, Turn] = {
    2: (False, False, True),
    3: (False, True, True),
    4: (False, True, False),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}


def turn_of(image: Image.Image) -> Turn:
    """Returns how a loaded image is turned to be upright, from its EXIF orientation."""
    orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    return _TURNS.get(orientation, (False, False, False))


def reduction(size: tuple[int, int], wanted: tuple[int, int] | None) -> int:
    """Returns the whole factor, at least 1, by which a picture may be reduced.

    Arguments:
        size: Height and width of the upright picture.
        wanted: Height and width that it is scaled to cover; None to keep all pixels.
    """
    if wanted is None:
        return 1
    return max(1, min(size[0] // wanted[0], size[1] // wanted[1]) // _MARGIN)


def check_mode(image: Image.Image) -> None:
    """Refuses a loaded image whose range of brightness is unknown."""
    if image.mode == "I":
        low, high = np.ravel(image.getextrema()).tolist()
        if low < 0 or high > 0xFFFF:
            raise MediaError("unknown range of brightness", f"from {low} to {high}")
    elif image.mode not in PLAIN | ALPHA | DEEP_GREY | {"LAB"}:
        raise MediaError("unknown range of brightness", f"pixels of type {image.mode}")


def rgb(image: Image.Image, turn: Turn, factor: int) -> np.ndarray:
    """Returns the pixels `[h, w, 3]` in RGB, upright.

    Transparent pixels are blended with white. Each square of `factor` x `factor`
    pixels is averaged; squares at the last row and column may have fewer pixels.
    """
    height, width = -(-image.height // factor), -(-image.width // factor)
    pixels = np.empty((height, width, 3), np.uint8)
    rows = max(1, _BAND // (image.width * factor))
    with quiet():
        for top in range(0, height, rows):
            end = min(image.height, (top + rows) * factor)
            band = _band_rgb(image.crop((0, top * factor, image.width, end)))
            reduced = band.reduce(factor) if factor > 1 else band
            pixels[top : top + rows] = np.asarray(reduced)
    return np.ascontiguousarray(turned(pixels, turn))


def _band_rgb(image: Image.Image) -> Image.Image:
    if image.mode in DEEP_GREY:
        # Pillow's own conversion clips at 255. Rounds to the nearest level.
        levels = np.asarray(image).astype(np.uint32)
        grey = ((levels + 128) // 257).astype(np.uint8)
        return Image.fromarray(grey).convert("RGB")
    if image.mode == "LAB":
        converted = ImageCms.applyTransform(image, _lab_to_rgb())
        assert converted is not None
        return converted
    if image.mode in ALPHA or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


@functools.cache
def _lab_to_rgb() -> ImageCms.ImageCmsTransform:
    lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
    return ImageCms.buildTransform(lab, srgb, "LAB", "RGB")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences Pillow's warnings about large images and odd metadata.

    A generator must not yield inside this context, because warning filters are global.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
