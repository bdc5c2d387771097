"""Decodes the frames of images and animations with Pillow.

GIF, PNG, WebP and AVIF files may be animations. A TIFF or MPO file with several
pictures is not one, so only its first picture is used. Colour profiles are not applied.
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

# Pillow reads more formats. Excluded are those that are not pictures (EPS and WMF are
# programs, MPEG and HDF5 are only recognised) or have no signature (TGA).
_FORMATS = (
    *("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "QOI", "TIFF"),
    "WEBP",
)
_ANIMATED = frozenset({"AVIF", "GIF", "PNG", "WEBP"})
_DEFAULT_MS = 100  # Browsers show a frame without a duration for this time.
_PLAIN = frozenset({"1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr"})
_ALPHA = frozenset({"RGBA", "LA", "PA"})
_DEEP_GREY = frozenset({"I", "I;16", "I;16B", "I;16L", "I;16N"})


def open_image(file: BinaryIO) -> Image.Image | None:
    """Opens an image without decoding it; returns None if Pillow cannot identify it."""
    try:
        with _quiet():
            return Image.open(file, formats=_FORMATS)
    except UnidentifiedImageError:
        return None
    except Image.DecompressionBombError as error:
        raise MediaError("too large an image", str(error)) from error
    except Exception as error:  # Readers raise anything on a damaged header.
        raise MediaError(DAMAGED, _words(error)) from error


def decode(image: Image.Image) -> Iterator[Frame]:
    """Yields the frames of an image: one, unless the image is an animation."""
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
    # An animated PNG may begin with a still picture for programs without support for
    # animations; this picture is not a frame.
    return 1 if image.info.get("default_image") else 0


def _read(image: Image.Image, index: int) -> tuple[Image.Image, float] | None:
    """Returns picture `index`, upright, and its duration in ms; None after the last."""
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
    except Exception as error:  # Decoders raise anything on damaged data.
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
    """Returns the pixels `[h, w, 3]` in RGB, blended with white if transparent."""
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
    """Silences Pillow's warnings about large images and odd metadata.

    A generator must not yield inside this context, because warning filters are global.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
