"""One decoded frame, and the errors that end decoding."""

import dataclasses
from collections.abc import Callable

import numpy as np


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
class Frame:
    """A decoded frame, whose colours are converted to RGB on demand."""

    time: float
    """Seconds since the first frame."""

    height: int
    """Height as displayed: upright, in square pixels."""

    width: int

    pixels: Callable[[], np.ndarray]
    """Function that converts the decoded frame to RGB; see `rgb`."""

    def rgb(self) -> np.ndarray:
        """Returns the stored pixels `[h, w, 3]` in uint8, upright.

        If stored pixels are not square, `clip_frames.resize_and_crop` stretches the
        picture to `height` and `width` in the same resampling that scales it.
        """
        return self.pixels()
