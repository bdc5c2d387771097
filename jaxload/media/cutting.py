"""What becomes of a file: the clips that are cut from it, and the frames that are not.

The same arithmetic as a plan's (`balance.clips`, `balance.fitting`), on what was found
by decoding. Every frame is accounted for: none goes missing without a name. (Where the
rate varies, as many are counted as are taken; some of them may be taken twice.)
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
    """Some frames of a file that become one sample."""

    id: str
    first: int
    """Its first frame, counted at the rate at which frames are taken."""

    shape: Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeftOutClip:
    """A clip that fits no shape, or a whole file."""

    id: str
    reason: str
    detail: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrameCount:
    """Where the frames of a file went."""

    decoded: int = 0
    resampled: int = 0
    """Left out, to come to the model's frame rate."""

    uneven: int = 0
    """Beyond the last 4k+1 of a clip."""

    beyond_shape: int = 0
    """Beyond the frames of the shape that a clip went to."""

    left_out: int = 0
    """In clips that fit no shape, or rests too short for a clip."""

    kept: int = 0

    def __add__(self, other: "FrameCount") -> "FrameCount":
        mine, theirs = dataclasses.asdict(self), dataclasses.asdict(other)
        return FrameCount(**{name: mine[name] + theirs[name] for name in mine})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cutting:
    """Which frames to take from a file, and what to make of them."""

    rate: float
    """Frames per second that are taken."""

    num_taken: int
    clips: tuple[Clip, ...] = ()
    left_out: tuple[LeftOutClip, ...] = ()
    frames: FrameCount


def num_usable(scan: Scan, rules: ShapeRules) -> int:
    """Frames of a file at the model's rate; 0 where its own makes no sense."""
    if scan.num_frames > 1 and not rules.min_fps <= scan.fps <= MAX_FPS:
        return 0
    return ticks(scan.num_frames, scan.seconds, fps=rules.fps)[1]


def cut_file(
    name: str, scan: Scan, shapes: tuple[Shape, ...], rules: ShapeRules
) -> Cutting:
    """Cuts a file into clips of the shapes that fit best."""
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
    """First frame and length of each clip; the rest may make one of its own."""
    full, rest = (int(part[0]) for part in cut(np.array([num_taken]), rules))
    lengths = [rules.max_frames] * full + [rest] * (rest > 0)
    starts = [i * rules.max_frames for i in range(len(lengths))]
    return starts, np.array(lengths, np.int64)
