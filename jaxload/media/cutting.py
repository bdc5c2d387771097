"""Cuts a file into clips and accounts for the frames that no clip keeps.

Files are cut by the functions that a plan uses (`shapes.clips`, `shapes.assignment`),
but with the number of frames that were decoded. `FrameCount` counts every decoded frame
once. At a varying frame rate a frame may be used twice, which the counts ignore.
"""

import dataclasses
from collections.abc import Collection

import numpy as np

from jaxload.media.frames import Scan
from jaxload.media.resample import ticks
from jaxload.shapes.assignment import assign
from jaxload.shapes.clips import TOO_SHORT_VIDEO, Clips, tabulate
from jaxload.shapes.config import MAX_FPS, ShapeRules
from jaxload.shapes.cover import why_left_out
from jaxload.shapes.cuts import cut_videos
from jaxload.shapes.geometry import Geometry
from jaxload.shapes.shape import Shape
from jaxload.shapes.size_cover import Size, stills_of

TOO_SLOW = "frame rate too low"
BAD_TIMES = "invalid frame rate"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clip:
    """Consecutive frames of a file that become one sample."""

    id: str
    first: int
    """Index of the first frame, counted after resampling to the model's frame rate."""

    shape: Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeftOutClip:
    """A clip or a whole file that is not used, and the reason."""

    source: str
    """Name of the file."""

    start: int | None
    """First frame of the clip, as in `Clip`; None for the whole file."""

    reason: str
    detail: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrameCount:
    """Number of decoded frames, and how many were kept or dropped, by reason."""

    decoded: int = 0
    resampled: int = 0
    """Frames dropped to reach the model's frame rate."""

    uneven: int = 0
    """Frames dropped to round clips down to lengths of the codec, such as 4k+1."""

    left_out: int = 0
    """Frames of clips without a suitable size, and of remainders too short to use."""

    kept: int = 0

    def __add__(self, other: "FrameCount") -> "FrameCount":
        mine, theirs = dataclasses.asdict(self), dataclasses.asdict(other)
        return FrameCount(**{name: mine[name] + theirs[name] for name in mine})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cutting:
    """Frames to take from a file, and the clips to cut them into."""

    rate: float
    """Frames to take per second."""

    num_taken: int
    clips: tuple[Clip, ...] = ()
    left_out: tuple[LeftOutClip, ...] = ()
    frames: FrameCount


def num_usable(scan: Scan, rules: ShapeRules) -> int:
    """Returns a file's frames at the model's rate, or 0 if its own rate is invalid."""
    if scan.num_frames > 1 and not rules.min_fps <= scan.fps <= MAX_FPS:
        return 0
    return ticks(scan.num_frames, scan.seconds, fps=rules.fps)[1]


def cut_file(
    name: str,
    scan: Scan,
    sizes: Collection[Size],
    rules: ShapeRules,
    geometry: Geometry,
) -> Cutting:
    """Cuts a file into clips and assigns each clip to its best size, if any.

    A clip keeps its frames, rounded down to what the codec takes. A clip of a video has
    several frames, so that no video becomes a still.
    """
    rate, num_taken = ticks(scan.num_frames, scan.seconds, fps=rules.fps)
    if not num_usable(scan, rules):
        slow = scan.fps < rules.min_fps
        why = f"{scan.fps:.3g} fps, expected {rules.min_fps:g} to {MAX_FPS:g}"
        return Cutting(
            rate=rate,
            num_taken=0,
            left_out=(
                LeftOutClip(
                    source=name,
                    start=None,
                    reason=TOO_SLOW if slow else BAD_TIMES,
                    detail=why,
                ),
            ),
            frames=FrameCount(decoded=scan.num_frames, left_out=scan.num_frames),
        )
    # `tabulate` returns two tables: full clips, and the remainder. Each has one row.
    cuts = cut_videos(np.array([num_taken]), rules)
    own_size = (np.array([scan.height]), np.array([scan.width]))
    stills = stills_of(sizes, geometry)
    full, rest = (
        _Assigned(clips, stills, rules, is_video=scan.num_frames > 1)
        for clips in tabulate(cuts, *own_size, np.array([1]), geometry)
    )
    kept: list[Clip] = []
    left_out: list[LeftOutClip] = []
    num_uncut = 0
    for clip in cuts.clips(0, name):
        assigned = full if clip.is_full else rest
        if assigned.shape is None:
            size = f"{assigned.num_frames}x{scan.height}x{scan.width}"
            reason = assigned.reason
            left_out.append(
                LeftOutClip(source=name, start=clip.first, reason=reason, detail=size)
            )
        else:
            kept.append(Clip(id=clip.id, first=clip.first, shape=assigned.shape))
            num_uncut += clip.num_frames
    num_kept = sum(clip.shape.pixels[0] for clip in kept)
    resampled = scan.num_frames - num_taken
    return Cutting(
        rate=rate,
        num_taken=num_taken,
        clips=tuple(kept),
        left_out=tuple(left_out),
        frames=FrameCount(
            decoded=resampled + num_taken,
            resampled=resampled,
            uneven=num_uncut - num_kept,
            left_out=num_taken - num_uncut,
            kept=num_kept,
        ),
    )


class _Assigned:
    """Shape assigned to equal clips, which a table of one row describes.

    Attributes:
        num_frames: Frames of each clip.
        shape: Latent shape of the clips; None if no size is suitable.
        reason: Main reason why no size is suitable, or an empty text.
    """

    def __init__(
        self,
        clips: Clips,
        stills: tuple[Shape, ...],
        rules: ShapeRules,
        *,
        is_video: bool,
    ):
        self.num_frames = int(clips.frames[0])
        self.shape: Shape | None = None
        self.reason = ""
        (index,), _ = assign(clips, stills, rules, own_frames=True)
        if index < 0:
            (self.reason,) = why_left_out(clips, stills, rules)
        elif is_video and self.num_frames == 1:
            self.reason = TOO_SHORT_VIDEO
        else:
            _, height, width = stills[index].pixels
            pixels = (self.num_frames, height, width)
            self.shape = Shape.of_pixels(pixels, clips.geometry)
