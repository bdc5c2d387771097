"""Turns rows of a manifest into counts of clips, and marks invalid rows.

A video is resampled to the model's frame rate by dropping frames. A video longer than
the model takes is cut into clips of full length, and the remainder is a clip of its
own. Clips are counted by frames and size, so that the memory of a plan grows with the
number of distinct clips and not with the number of samples.
"""

import dataclasses

import numpy as np

from jaxload.errors import InputError
from jaxload.shapes.shape import FRAME_STRIDE, TOKEN_PIXELS

BAD_METADATA = "bad metadata"
_MAX_SIZE = 1 << 16  # Bound on height and width, so that a key takes 64 bits.
MAX_FPS = 240.0
"""Highest valid frame rate; higher rates come from defective time stamps."""

_MAX_COUNT = 1e17  # Most clips of one row, far below the limit of 64 bits.
_MAX_NUM_FRAMES = 1 << 31


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShapeRules:
    """Limits on shapes, and on the resizing, cropping and cutting of samples."""

    fps: float = 16.0
    """Frame rate of the model, in frames per second. Faster videos lose frames; slower
    videos keep theirs. More shows finer motion and takes more tokens per second."""

    min_fps: float = 5.0
    """Lowest frame rate of a video, in frames per second. More keeps motion closer to
    the model's rate and drops more videos."""

    max_frames: int = 81
    """Most frames of a clip, 4k+1; longer videos are cut into several clips. More shows
    longer motion and takes more memory and compute per clip."""

    min_rest_frames: int = 5
    """Fewest frames of a clip made from the remainder of a cut video. More avoids short
    clips and drops more frames."""

    max_pixels: int = 720 * 1280
    """Most pixels of a frame, height times width. More keeps more detail and takes more
    memory and compute."""

    max_upscale: float = 1.2
    """Largest factor by which the sides of a sample may grow. More keeps more small
    samples and trains on more interpolated pixels."""

    max_crop: float = 0.25
    """Largest share of a frame's area that may be cropped away. More lets samples go to
    more shapes and loses more of each frame."""

    def __post_init__(self):
        if self.max_frames < 1 or (self.max_frames - 1) % FRAME_STRIDE:
            below = max(1, (self.max_frames - 1) // FRAME_STRIDE * FRAME_STRIDE + 1)
            raise InputError(
                f"shapes.max_frames={self.max_frames}: expected 4k+1; use {below}"
            )
        if self.max_pixels < TOKEN_PIXELS**2:
            raise InputError(
                f"shapes.max_pixels={self.max_pixels}: expected {TOKEN_PIXELS**2} or "
                "more, one token"
            )
        if not 0 < self.min_fps <= self.fps <= MAX_FPS:
            raise InputError(
                f"shapes.fps={self.fps} with min_fps={self.min_fps}: expected "
                f"0 < min_fps <= fps <= {MAX_FPS:g}"
            )
        if not self.max_upscale >= 1.0:
            raise InputError(
                f"shapes.max_upscale={self.max_upscale}: expected 1.0 or more"
            )
        if not 0.0 <= self.max_crop < 1.0:
            raise InputError(
                f"shapes.max_crop={self.max_crop}: expected 0.0 or more, below 1.0"
            )
        if self.min_rest_frames < 1:
            raise InputError(
                f"shapes.min_rest_frames={self.min_rest_frames}: expected 1 or more"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """Rows of a manifest as columns of numbers; NaN for missing values."""

    num_frames: np.ndarray
    height: np.ndarray
    width: np.ndarray
    fps: np.ndarray
    """Frame rate; 0 for images, NaN for clips that have the model's rate already."""

    count: np.ndarray
    """Number of samples that a row stands for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clips:
    """Counts of clips by frames and size; sorted, so equal data give equal arrays."""

    frames: np.ndarray
    """Number of frames at the model's rate, 4k+1."""

    height: np.ndarray
    width: np.ndarray
    count: np.ndarray

    def __len__(self) -> int:
        return len(self.count)


def usable_frames(columns: Columns, rules: ShapeRules) -> np.ndarray:
    """Returns the frames of each row at the model's rate; 0 if the row is invalid."""
    frames, fps = columns.num_frames, columns.fps
    known_rate = ~np.isnan(fps)
    # Comparisons with NaN are false, so rows without frames or size are invalid.
    sensible = (frames >= 1) & (frames < _MAX_NUM_FRAMES) & (np.floor(frames) == frames)
    for size in (columns.height, columns.width):
        sensible &= (
            (size >= TOKEN_PIXELS) & (size < _MAX_SIZE) & (np.floor(size) == size)
        )
    in_range = (fps >= rules.min_fps) & (fps <= MAX_FPS)
    sensible &= (frames == 1) | in_range | ~known_rate
    slower = rules.fps / np.where(in_range, np.maximum(fps, rules.fps), rules.fps)
    # The first frame, then one per tick; 1e-9 saves a last tick that rounding loses.
    kept = np.floor((np.where(sensible, frames, 1) - 1) * slower + 1e-9) + 1
    return np.where(sensible, kept, 0).astype(np.int64)


def level(frames: np.ndarray) -> np.ndarray:
    """Rounds numbers of frames down to 4k+1."""
    return (frames - 1) // FRAME_STRIDE * FRAME_STRIDE + 1


def cut(frames: np.ndarray, rules: ShapeRules) -> tuple[np.ndarray, np.ndarray]:
    """Returns the number of full clips in a video, and the frames of the remainder.

    The remainder is 0 if it is too short for a clip of its own.
    """
    full, rest = np.divmod(frames, rules.max_frames)
    return full, np.where((full > 0) & (rest < rules.min_rest_frames), 0, rest)


class ClipCounter:
    """Counts the clips of a manifest, some rows at a time."""

    def __init__(self, rules: ShapeRules):
        self._rules = rules
        self._keys = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)

    def add(self, columns: Columns) -> np.ndarray:
        """Counts the clips of some rows; returns a mask of the invalid rows."""
        frames = usable_frames(columns, self._rules)
        good = frames > 0
        height, width = (
            np.where(good, size, 0).astype(np.int64)
            for size in (columns.height, columns.width)
        )
        size = height * _MAX_SIZE + width
        full, rest = cut(frames, self._rules)
        if (
            float(full.max(initial=0)) * float(columns.count.max(initial=0))
            > _MAX_COUNT
        ):
            raise InputError(
                f"{columns.count.max():,} samples of one kind, cut into "
                f"{full.max():,} clips each: expected at most {_MAX_COUNT:.0e} clips"
            )
        longest = self._rules.max_frames
        self._merge(_key(longest, size[full > 0]), (full * columns.count)[full > 0])
        self._merge(
            _key(level(rest[rest > 0]), size[rest > 0]), columns.count[rest > 0]
        )
        return ~good

    def clips(self) -> Clips:
        """Returns the clips counted so far."""
        return _unpacked(self._keys, self._counts)

    def _merge(self, keys: np.ndarray, counts: np.ndarray) -> None:
        self._keys, self._counts = _added_up(
            np.concatenate([self._keys, keys]), np.concatenate([self._counts, counts])
        )


def rounded_down(clips: Clips, step: int) -> Clips:
    """Rounds sizes down to multiples of `step`, and merges clips that become equal."""
    height, width = (
        np.maximum(size // step * step, TOKEN_PIXELS)
        for size in (clips.height, clips.width)
    )
    keys = _key(clips.frames, height * _MAX_SIZE + width)
    return _unpacked(*_added_up(keys, clips.count))


def _key(frames: np.ndarray | int, size: np.ndarray) -> np.ndarray:
    # Frames are counted in strides, so that the key stays small.
    return (frames - 1) // FRAME_STRIDE * _MAX_SIZE**2 + size


def _added_up(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct keys, ascending, each with the sum of its counts."""
    distinct, inverse = np.unique(keys, return_inverse=True)
    # Integer sums stay exact for more samples than a float can count.
    total = np.zeros(len(distinct), np.int64)
    np.add.at(total, inverse, counts)
    return distinct, total


def _unpacked(keys: np.ndarray, counts: np.ndarray) -> Clips:
    strides, sizes = np.divmod(keys, _MAX_SIZE**2)
    height, width = np.divmod(sizes, _MAX_SIZE)
    return Clips(
        frames=strides * FRAME_STRIDE + 1, height=height, width=width, count=counts
    )
