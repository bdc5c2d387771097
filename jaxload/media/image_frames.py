"""Frames of images and animations, by Pillow.

GIF, PNG, WebP and AVIF may be animations. Several pages of a TIFF, or pictures of an
MPO, are no motion: only the first is used. Colour profiles are not applied.
"""

import contextlib
import functools
import itertools
import warnings
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError

from jaxload.media.frame import DamageError, Frame, MediaError

DAMAGED = "damaged image"

# Pillow reads more, but what is left out is no picture (EPS and WMF are programs, MPEG
# and HDF5 only recognised), or has no mark to know it by (TGA).
_FORMATS = (
    *("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "QOI", "TIFF"),
    "WEBP",
)
_ANIMATED = frozenset({"AVIF", "GIF", "PNG", "WEBP"})
_DEFAULT_MS = 100  # What browsers take where an animation gives no duration.
_PLAIN = frozenset({"1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr"})
_ALPHA = frozenset({"RGBA", "LA", "PA"})
_DEEP_GREY = frozenset({"I", "I;16", "I;16B", "I;16L", "I;16N"})


def open_image(file: BinaryIO) -> Image.Image | None:
    """The image in a file, not decoded yet; None if it is none that Pillow knows."""
    try:
        with _quiet():
            return Image.open(file, formats=_FORMATS)
    except UnidentifiedImageError:
        return None
    except Image.DecompressionBombError as error:
        raise MediaError("too large an image", str(error)) from error
    except Exception as error:  # Whatever a reader trips over in a damaged header.
        raise MediaError(DAMAGED, _words(error)) from error


def decode(image: Image.Image) -> Iterator[Frame]:
    """The frames of an image: one, unless it is an animation."""
    time_ms = 0.0
    for index in itertools.count(_first_index(image)):
        read = _read(image, index)
        if read is None:
            return
        picture, duration_ms = read
        yield Frame(
            time=time_ms / 1000,
            height=picture.height,
            width=picture.width,
            pixels=functools.partial(_rgb, picture),
        )
        time_ms += duration_ms or _DEFAULT_MS


def _first_index(image: Image.Image) -> int:
    # A PNG may have a picture for programs that do not know animations: no frame.
    return 1 if image.info.get("default_image") else 0


def _read(image: Image.Image, index: int) -> tuple[Image.Image, float] | None:
    """One picture, upright, and its duration in milliseconds; None after the last."""
    if index > 0 and image.format not in _ANIMATED:
        return None
    try:
        with _quiet():
            if index > 0 and not _seek(image, index):
                return None
            image.load()
            upright = ImageOps.exif_transpose(image)
            duration_ms = float(image.info.get("duration", 0))
    except Image.DecompressionBombError as error:
        raise MediaError("too large an image", str(error)) from error
    except Exception as error:  # Whatever a decoder trips over in damaged data.
        raise DamageError(_words(error)) from error
    _check_mode(upright)
    return upright, duration_ms


def _seek(image: Image.Image, index: int) -> bool:
    try:
        image.seek(index)
    except EOFError:
        return False
    return True


def _check_mode(image: Image.Image) -> None:
    if image.mode in _DEEP_GREY:
        low, high = _levels(image).min(), _levels(image).max()
        if low < 0 or high > 0xFFFF:
            raise MediaError("unknown range of brightness", f"from {low} to {high}")
    elif image.mode not in _PLAIN | _ALPHA | {"LAB"}:
        raise MediaError("unknown range of brightness", f"pixels of type {image.mode}")


def _levels(image: Image.Image) -> np.ndarray:
    return np.asarray(image).astype(np.int64)


def _rgb(image: Image.Image) -> np.ndarray:
    """The pixels `[h, w, 3]`; what is transparent becomes white."""
    with _quiet():
        if image.mode in _DEEP_GREY:
            # Pillow's own conversion clips at 255.
            grey = np.rint(_levels(image) / 257).astype(np.uint8)
            return np.repeat(grey[..., None], 3, axis=2)
        if image.mode == "LAB":
            return np.array(ImageCms.applyTransform(image, _lab_to_rgb()))
        if image.mode in _ALPHA or "transparency" in image.info:
            image = image.convert("RGBA")
            white = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(white, image)
        return np.array(image.convert("RGB"))


@functools.cache
def _lab_to_rgb() -> ImageCms.ImageCmsTransform:
    lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
    return ImageCms.buildTransform(lab, srgb, "LAB", "RGB")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences Pillow's warnings: large images, odd metadata. Never across a yield."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
