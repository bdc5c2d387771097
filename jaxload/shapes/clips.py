"""Turns rows of a manifest into counts of clips, and marks invalid rows.

A video is resampled to the model's frame rate by dropping frames. A video longer than
the model takes is cut into clips of full length, and the remainder is a clip of its
own. Clips are counted by frames and size, so that the memory of a plan grows with the
number of distinct clips and not with the number of samples.
"""

import dataclasses

import numpy as np

from jaxload.errors import InputError
from jaxload.shapes.config import MAX_FPS, MAX_HOURS, ShapeRules
from jaxload.shapes.cuts import Cuts, cut_videos
from jaxload.shapes.geometry import Geometry

BAD_METADATA = "bad metadata"
TOO_SHORT_VIDEO = "too short for a clip of several frames"
_MAX_SIZE = 1 << 16  # Bound on height and width, so that a key takes 64 bits.
_MAX_COUNT = 1e17  # Most clips of one row, far below the limit of 64 bits.


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
    """Number of frames at the model's rate, rounded down to a valid one; a mean after
    `merged_by_size`."""

    height: np.ndarray
    width: np.ndarray
    count: np.ndarray
    geometry: Geometry

    def __len__(self) -> int:
        return len(self.count)


def usable_frames(
    columns: Columns, rules: ShapeRules, geometry: Geometry
) -> np.ndarray:
    """Returns the frames of each row at the model's rate; 0 if the row is invalid."""
    frames, fps = columns.num_frames, columns.fps
    known_rate = ~np.isnan(fps)
    # Comparisons with NaN are false, so rows without frames or size are invalid.
    valid = (frames >= 1) & ~too_long(columns, rules) & (np.floor(frames) == frames)
    for size, least in zip(
        (columns.height, columns.width), geometry.token_pixels, strict=True
    ):
        valid &= (size >= least) & (size < _MAX_SIZE) & (np.floor(size) == size)
    in_range = (fps >= rules.min_fps) & (fps <= MAX_FPS)
    valid &= (frames == 1) | in_range | ~known_rate
    slower = rules.fps / np.where(in_range, np.maximum(fps, rules.fps), rules.fps)
    # The first frame, then one per tick; 1e-9 keeps a last tick despite rounding.
    kept = np.floor((np.where(valid, frames, 1) - 1) * slower + 1e-9) + 1
    return np.where(valid, kept, 0).astype(np.int64)


def too_long(columns: Columns, rules: ShapeRules) -> np.ndarray:
    """Returns whether the frames of each row would last longer than `MAX_HOURS`."""
    fps = columns.fps
    rate = np.where((fps > 0) & (fps <= MAX_FPS), fps, rules.fps)
    return columns.num_frames > MAX_HOURS * 3600 * rate


def without_stills(clips: Clips, is_video: np.ndarray) -> tuple[Clips, int]:
    """Leaves out clips of videos that would be stills; also returns their number."""
    is_still = is_video & (clips.frames == 1)
    count = np.where(is_still, 0, clips.count)
    return dataclasses.replace(clips, count=count), int(clips.count[is_still].sum())


def tabulate(
    cuts: Cuts,
    height: np.ndarray,
    width: np.ndarray,
    count: np.ndarray,
    geometry: Geometry,
) -> tuple[Clips, Clips]:
    """Returns the full clips and the remainders of videos, with a row for each video.

    Rows are not merged, and have a count of 0 where a video has no such clip. `count`
    is the number of samples that each video stands for.
    """
    size = {"height": height, "width": width, "geometry": geometry}
    frames = geometry.round_frames(np.maximum(cuts.rest, 1))
    return (
        Clips(
            frames=np.full_like(frames, cuts.max_frames),
            count=cuts.num_full * count,
            **size,
        ),
        Clips(frames=frames, count=(cuts.rest > 0) * count, **size),
    )


class ClipCounter:
    """Counts the clips of a manifest, some rows at a time."""

    def __init__(self, rules: ShapeRules, geometry: Geometry):
        self._rules = rules
        self._geometry = geometry
        self._keys = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)
        self.num_too_short = 0
        """Number of clips of videos that would be stills, which are left out."""

    def add(self, columns: Columns) -> np.ndarray:
        """Counts the clips of some rows; returns a mask of the invalid rows."""
        frames = usable_frames(columns, self._rules, self._geometry)
        good = frames > 0
        height, width = (
            np.where(good, size, 0).astype(np.int64)
            for size in (columns.height, columns.width)
        )
        cuts = cut_videos(frames, self._rules)
        most = float(cuts.num_full.max(initial=0)) * float(columns.count.max(initial=0))
        if most > _MAX_COUNT:
            raise InputError(
                f"{columns.count.max():,} equal samples, cut into "
                f"{cuts.num_full.max():,} clips each: expected at most "
                f"{_MAX_COUNT:.0e} clips"
            )
        is_video = columns.num_frames > 1
        for all_clips in tabulate(cuts, height, width, columns.count, self._geometry):
            clips, num_stills = without_stills(all_clips, is_video)
            self.num_too_short += num_stills
            some = clips.count > 0
            self._merge(_keys(clips)[some], clips.count[some])
        return ~good

    def clips(self) -> Clips:
        """Returns the clips counted so far."""
        return _unpacked(self._keys, self._counts, self._geometry)

    def _merge(self, keys: np.ndarray, counts: np.ndarray) -> None:
        self._keys, self._counts = _added_up(
            np.concatenate([self._keys, keys]), np.concatenate([self._counts, counts])
        )


def rounded_down(clips: Clips, step: int) -> Clips:
    """Rounds sizes down to multiples of `step`, and merges clips that become equal."""
    height, width = (
        np.maximum(size // step * step, least)
        for size, least in zip(
            (clips.height, clips.width), clips.geometry.token_pixels, strict=True
        )
    )
    keys = _keys(dataclasses.replace(clips, height=height, width=width))
    return _unpacked(*_added_up(keys, clips.count), clips.geometry)


def merged_by_size(clips: Clips) -> Clips:
    """Merges the clips of each size; their frames become a mean, as floats."""
    keys, inverse = np.unique(
        _keys(dataclasses.replace(clips, frames=np.zeros_like(clips.frames))),
        return_inverse=True,
    )
    count, frames = np.zeros((2, len(keys)), np.int64)
    np.add.at(count, inverse, clips.count)
    np.add.at(frames, inverse, clips.frames * clips.count)
    merged = _unpacked(keys, count, clips.geometry)
    return dataclasses.replace(merged, frames=frames / count)


def _keys(clips: Clips) -> np.ndarray:
    """Packs frames and sizes: frames take 31 bits, and each size takes 16."""
    return (clips.frames * _MAX_SIZE + clips.height) * _MAX_SIZE + clips.width


def _added_up(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct keys, ascending, each with the sum of its counts."""
    distinct, inverse = np.unique(keys, return_inverse=True)
    # Integer sums stay exact for more samples than a float can count.
    total = np.zeros(len(distinct), np.int64)
    np.add.at(total, inverse, counts)
    return distinct, total


def _unpacked(keys: np.ndarray, counts: np.ndarray, geometry: Geometry) -> Clips:
    frames, sizes = np.divmod(keys, _MAX_SIZE**2)
    height, width = np.divmod(sizes, _MAX_SIZE)
    return Clips(
        frames=frames, height=height, width=width, count=counts, geometry=geometry
    )
