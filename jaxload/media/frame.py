"""One frame of an image, an animation or a video; and what ends their decoding."""

import dataclasses
from collections.abc import Callable

import numpy as np


class MediaError(Exception):
    """Nothing of a file can be used."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        """A few words, the same for every file with this problem."""

        self.detail = detail
        """What is particular to this file."""

    def __reduce__(self):
        # Workers send it to the process that reports: both parts must arrive.
        return type(self), (self.reason, self.detail)


class DamageError(Exception):
    """The rest of a file cannot be decoded; the frames before it are good."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frame:
    """A decoded frame. Its colours are converted when they are asked for."""

    time: float
    """Seconds from the first frame."""

    height: int
    """As displayed: upright, in square pixels."""

    width: int

    pixels: Callable[[], np.ndarray]
    """Makes what `rgb` returns; holds the frame as it was decoded."""

    def rgb(self) -> np.ndarray:
        """The pixels `[h, w, 3]` in uint8: upright, but as many as are stored.

        Where stored pixels are not square, `resize.fit` stretches them to `height` and
        `width`, in the same resampling that makes them smaller.
        """
        return self.pixels()
