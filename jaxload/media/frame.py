"""One decoded frame, and the errors that end decoding."""

import dataclasses
from collections.abc import Callable

import numpy as np

Turn = tuple[bool, bool, bool]
"""Three flags: swap rows and columns, then flip rows, then flip columns."""


Note = tuple[str, str]
"""Reason and detail of a note in the report."""


class MediaError(Exception):
    """Raised for a file that gives no usable frame."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        """Short description, the same for every file with this problem."""

        self.detail = detail
        """Details that are particular to this file."""

    def __reduce__(self):
        # Pickling for another process would keep only the joined text.
        return type(self), (self.reason, self.detail)


class DamageError(Exception):
    """Raised when the rest of a file cannot be decoded; earlier frames are good."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Want:
    """Frames that a caller wants from a file."""

    max_pixels: int
    """Most pixels of a picture or frame; a file with more raises MediaError."""

    size: tuple[int, int] | None = None
    """Height and width to which the caller scales frames: images with several times as
    many pixels are then decoded at a reduced size. None to decode every pixel."""

    is_scan: bool = False
    """True if the caller does not read pixels, so that none need to be converted."""


def check_pixels(height: int, width: int, want: Want) -> None:
    """Refuses frames with more pixels than wanted; `pixel_problem` names both."""
    if height * width > want.max_pixels:
        raise pixel_problem(f"{width}x{height} pixels", want)


def pixel_problem(found: str, want: Want) -> MediaError:
    """Returns the problem of a file whose frames have too many pixels."""
    return MediaError(
        "too many pixels",
        f"{found}; expected at most {want.max_pixels:,} (data.max_source_pixels)",
    )


def turned(pixels: np.ndarray, turn: Turn) -> np.ndarray:
    """Turns and mirrors pixels `[h, w, 3]`, as a view where possible."""
    swap, flip_rows, flip_columns = turn
    if swap:
        pixels = pixels.transpose(1, 0, 2)
    return pixels[:: -1 if flip_rows else 1, :: -1 if flip_columns else 1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frame:
    """A decoded frame, whose colours are converted to RGB on demand."""

    time: float
    """Seconds since the first frame."""

    height: int
    """Height as displayed: upright, in square pixels."""

    width: int

    notes: tuple[Note, ...] = ()
    """Features that this project does not handle, though the frame is used."""

    pixels: Callable[[], np.ndarray]
    """Function that converts the decoded frame to RGB; see `rgb`."""

    def rgb(self) -> np.ndarray:
        """Returns the pixels `[h, w, 3]` in uint8, upright, as stored or reduced.

        If stored pixels are not square, or the picture was decoded at a reduced size,
        `clip_frames.resize_and_crop` stretches it to `height` and `width` in the same
        resampling that scales it.
        """
        return self.pixels()
