"""Cuts a file into clips and accounts for the frames that no clip keeps.

The arithmetic is that of a plan (`shapes.clips`, `shapes.assignment`), applied to what
decodes. Every decoded frame is counted under one heading of `FrameCount`. At a varying
frame rate a frame may be taken twice, and the counts ignore that.
"""

import dataclasses

import numpy as np

from jaxload.media.frames import Scan
from jaxload.media.resample import ticks
from jaxload.shapes.assignment import assign
from jaxload.shapes.clips import MAX_FPS, Clips, ShapeRules, cut, level
from jaxload.shapes.cover import why_left_out
from jaxload.shapes.shape import Shape

TOO_SLOW = "frame rate too low"
BAD_TIMES = "frame rate makes no sense"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clip:
    """Consecutive frames of a file that become one sample."""

    id: str
    first: int
    """Index of the first frame among the frames that are taken from the file."""

    shape: Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeftOutClip:
    """A clip, or a whole file, that becomes no sample."""

    id: str
    reason: str
    detail: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrameCount:
    """Frames of a file, counted by what became of them."""

    decoded: int = 0
    resampled: int = 0
    """Frames dropped to reach the model's frame rate."""

    uneven: int = 0
    """Frames dropped to shorten clips to 4k+1 frames."""

    beyond_shape: int = 0
    """Frames dropped because a clip has more than its shape."""

    left_out: int = 0
    """Frames of clips that no shape takes, and of remainders too short for a clip."""

    kept: int = 0

    def __add__(self, other: "FrameCount") -> "FrameCount":
        mine, theirs = dataclasses.asdict(self), dataclasses.asdict(other)
        return FrameCount(**{name: mine[name] + theirs[name] for name in mine})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cutting:
    """Frames to take from a file, and the clips to make of them."""

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
    name: str, scan: Scan, shapes: tuple[Shape, ...], rules: ShapeRules
) -> Cutting:
    """Cuts a file into clips and assigns each clip to its best shape, if any."""
    rate, num_taken = ticks(scan.num_frames, scan.seconds, fps=rules.fps)
    if not num_usable(scan, rules):
        slow = scan.fps < rules.min_fps
        why = f"{scan.fps:.3g} fps, and {rules.min_fps:g} to {MAX_FPS:g} are expected"
        return Cutting(
            rate=rate,
            num_taken=0,
            left_out=(
                LeftOutClip(
                    id=name, reason=TOO_SLOW if slow else BAD_TIMES, detail=why
                ),
            ),
            frames=FrameCount(decoded=scan.num_frames, left_out=scan.num_frames),
        )
    starts, lengths = _spans(num_taken, rules)
    clips = Clips(
        frames=level(lengths),
        height=np.full(len(lengths), scan.height),
        width=np.full(len(lengths), scan.width),
        count=np.ones(len(lengths), np.int64),
    )
    places, _ = assign(clips, shapes, rules)
    reasons = why_left_out(clips, shapes, rules)
    kept, left_out = [], []
    for i, start in enumerate(starts):
        clip_id = name if len(starts) == 1 else f"{name}@{start}"
        if places[i] >= 0:
            kept.append(Clip(id=clip_id, first=start, shape=shapes[places[i]]))
        else:
            size = f"{clips.frames[i]}x{scan.height}x{scan.width}"
            left_out.append(LeftOutClip(id=clip_id, reason=reasons[i], detail=size))
    kept_frames = sum(clip.shape.pixels[0] for clip in kept)
    even = int(clips.frames[places >= 0].sum())
    whole = int(lengths[places >= 0].sum())
    resampled = scan.num_frames - num_taken
    return Cutting(
        rate=rate,
        num_taken=num_taken,
        clips=tuple(kept),
        left_out=tuple(left_out),
        frames=FrameCount(
            decoded=resampled + num_taken,
            resampled=resampled,
            uneven=whole - even,
            beyond_shape=even - kept_frames,
            left_out=num_taken - whole,
            kept=kept_frames,
        ),
    )


def _spans(num_taken: int, rules: ShapeRules) -> tuple[list[int], np.ndarray]:
    """Returns the first frame and the length of each clip.

    The remainder after the full-length clips is a clip too, if it is long enough.
    """
    full, rest = (int(part[0]) for part in cut(np.array([num_taken]), rules))
    lengths = [rules.max_frames] * full + [rest] * (rest > 0)
    starts = [i * rules.max_frames for i in range(len(lengths))]
    return starts, np.array(lengths, np.int64)
