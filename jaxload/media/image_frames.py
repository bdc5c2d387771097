"""Decodes the frames of images and animations with Pillow.

GIF, PNG, WebP and AVIF files may be animations. A TIFF or MPO file with several
pictures is not one, so only its first picture is used. Colour profiles are not applied.
"""

import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from jaxload.media.decoder_messages import silence_decoders
from jaxload.media.frame import (
    DamageError,
    Frame,
    MediaError,
    Want,
    check_pixels,
    pixel_problem,
)
from jaxload.media.gif_frames import gif_frames
from jaxload.media.image_pixels import check_mode, quiet, reduction, rgb, turn_of

DAMAGED = "damaged image"

# Pillow reads more formats. Excluded are those that are not pictures (EPS and WMF are
# programs, MPEG and HDF5 are only recognised) or have no signature (TGA).
_FORMATS = (
    *("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "QOI", "TIFF"),
    "WEBP",
)
_ANIMATED = frozenset({"AVIF", "GIF", "PNG", "WEBP"})
_DEFAULT_MS = 100  # Browsers show a frame without a duration for this time.
_SMALLEST = 8  # Largest factor by which a JPEG decoder reduces.

_NUMBER = re.compile(r"[0-9]+")


def open_image(file: BinaryIO, want: Want) -> Image.Image | None:
    """Opens an image without decoding it; returns None if Pillow cannot identify it."""
    silence_decoders()
    try:
        with _limited(want):
            return Image.open(file, formats=_FORMATS)
    except UnidentifiedImageError:
        return None
    except Image.DecompressionBombError as error:
        raise _bomb_problem(error, want) from error
    except Exception as error:  # Readers raise anything on a damaged header.
        raise MediaError(DAMAGED, _words(error)) from error


def decode(image: Image.Image, file: BinaryIO, want: Want) -> Iterator[Frame]:
    """Yields the frames of an image: one, unless the image is an animation."""
    measured = image.format == "GIF" and want.is_scan
    frames = _measured_gif(file, want) if measured else _pictures(image, want)
    time_ms = 0.0
    for frame, duration_ms in frames:
        yield dataclasses.replace(frame, time=time_ms / 1000)
        time_ms += duration_ms or _DEFAULT_MS


def _measured_gif(file: BinaryIO, want: Want) -> Iterator[tuple[Frame, float]]:
    """Yields the frames of a GIF, without pixels, and their durations in ms."""
    for gif in gif_frames(file):
        check_pixels(gif.height, gif.width, want)
        with _decoding(want):
            gif.decode()
        yield _frame(gif.height, gif.width, None), gif.duration_ms


def _pictures(image: Image.Image, want: Want) -> Iterator[tuple[Frame, float]]:
    """Yields the frames of an image and their durations in ms."""
    # An animated PNG may begin with a still picture for programs without support for
    # animations; this picture is not a frame.
    first = 1 if image.info.get("default_image") else 0
    for index in itertools.count(first):
        with _decoding(want):
            is_there = index == 0 or (image.format in _ANIMATED and _seek(image, index))
            if not is_there:
                return
            frame = _load(image, want)
            duration_ms = float(image.info.get("duration", 0))
        yield frame, duration_ms


def _seek(image: Image.Image, index: int) -> bool:
    try:
        image.seek(index)
    except EOFError:
        return False
    return True


def _load(image: Image.Image, want: Want) -> Frame:
    """Decodes the current frame, at a reduced size if that is enough."""
    check_pixels(image.height, image.width, want)
    stated = image.size
    halved = _draft(image, want)
    image.load()
    check_mode(image)
    turn = turn_of(image)
    width, height = stated if halved > 1 else image.size
    size = (width, height) if turn[0] else (height, width)
    if want.is_scan:
        return _frame(*size, None)
    factor = max(1, reduction(size, want.size) // halved)
    # Whether a GIF is animated, Pillow knows only after a look at the second frame.
    if image.format != "GIF" and not getattr(image, "is_animated", False):
        return _frame(*size, functools.partial(rgb, image, turn, factor))
    # The next frame replaces the pixels of the image. A reduced picture takes less
    # memory than a copy; a copy is converted only if the frame is used.
    if factor > 1:
        pixels = rgb(image, turn, factor)
        return _frame(*size, lambda: pixels)
    return _frame(*size, functools.partial(rgb, image.copy(), turn, factor))


def _frame(height: int, width: int, pixels: Callable[[], np.ndarray] | None) -> Frame:
    return Frame(time=0.0, height=height, width=width, pixels=pixels or _no_pixels)


def _no_pixels() -> np.ndarray:
    raise AssertionError("the frames of a scan have no pixels")


def _draft(image: Image.Image, want: Want) -> int:
    """Has a JPEG decoder halve the picture while it decodes; returns the factor.

    A scan takes the smallest picture: that decodes all data, and thus finds damage, but
    takes little memory.
    """
    if not isinstance(image, JpegImageFile):
        return 1
    width, height = image.size
    turn = turn_of(image)
    size = (width, height) if turn[0] else (height, width)
    factor = _SMALLEST if want.is_scan else reduction(size, want.size)
    if factor == 1:
        return 1
    drafted = image.draft(None, (max(1, width // factor), max(1, height // factor)))
    return 1 if drafted is None else round(width / drafted[1][2])


@contextlib.contextmanager
def _decoding(want: Want) -> Iterator[None]:
    """Turns any exception of a decoder into DamageError, and limits its memory."""
    try:
        with _limited(want):
            yield
    except MediaError:
        raise
    except Image.DecompressionBombError as error:
        raise _bomb_problem(error, want) from error
    except Exception as error:  # Decoders raise anything on damaged data.
        raise DamageError(_words(error)) from error


@contextlib.contextmanager
def _limited(want: Want) -> Iterator[None]:
    """Lets Pillow itself refuse more pixels than wanted, before it allocates them.

    A generator must not yield inside this context, because the limit is global.
    """
    before = Image.MAX_IMAGE_PIXELS
    # Pillow warns above this number, and raises an error above twice this number.
    Image.MAX_IMAGE_PIXELS = want.max_pixels / 2  # pyright: ignore
    try:
        with quiet():
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _bomb_problem(error: Image.DecompressionBombError, want: Want) -> MediaError:
    found = _NUMBER.search(str(error))
    assert found is not None, error
    return pixel_problem(f"{int(found[0]):,} pixels", want)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
