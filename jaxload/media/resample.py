"""Selects frames of a video by their time stamps."""

import math
from collections.abc import Iterator

from jaxload.media.frame import Frame

# Seconds. Containers round time stamps, often to milliseconds: up to half a
# millisecond at either end.
_TOLERANCE = 0.001


def ticks(num_frames: int, seconds: float, *, fps: float) -> tuple[float, int]:
    """Returns the frames to take per second of a video, and how many that makes.

    Ticks are at 0, 1/rate, ... up to the last frame, which may be a millisecond early.
    At a constant rate, their number is what `shapes.clips.usable_frames` expects. A
    video that is slower than `fps` keeps its own mean rate and all of its frames.
    """
    if num_frames == 1 or seconds <= 0:
        return fps, 1
    rate = min(fps, (num_frames - 1) / seconds)
    return rate, math.floor((seconds + _TOLERANCE) * rate) + 1


def resample(frames: Iterator[Frame], *, rate: float, count: int) -> Iterator[Frame]:
    """Yields the frame nearest in time to each tick, and the earlier one of a tie.

    Holds one frame besides the next one. A frame may be taken twice where a varying
    rate leaves a gap.
    """
    held = next(frames, None)
    if held is None:
        return
    tick = 0
    for following in frames:
        while abs(held.time - tick / rate) <= abs(following.time - tick / rate):
            yield held
            tick += 1
            if tick == count:
                return
        held = following
    # The last tick may be up to half a tick late; beyond that, frames are missing.
    while tick < count and tick / rate <= held.time + 0.5 / rate:
        yield held
        tick += 1
