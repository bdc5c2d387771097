"""Which frames of a video to take, by their time stamps."""

import math
from collections.abc import Iterator

from jaxload.media.frame import Frame

# Containers round time stamps, often to milliseconds: half of one at either end.
_TOLERANCE = 0.001


def ticks(num_frames: int, seconds: float, *, fps: float) -> tuple[float, int]:
    """Frames per second to take from a video, and how many frames that makes.

    Ticks are at 0, 1/rate, ... up to the last frame, which may be a millisecond early:
    for a constant rate this is the number that `balance.clips.usable_frames` expects.
    A video that is slower than `fps` keeps its own mean rate, and all its frames.
    """
    if num_frames == 1 or seconds <= 0:
        return fps, 1
    rate = min(fps, (num_frames - 1) / seconds)
    return rate, math.floor((seconds + _TOLERANCE) * rate) + 1


def resample(frames: Iterator[Frame], *, rate: float, count: int) -> Iterator[Frame]:
    """The frame nearest in time to each tick, the earlier of two that are as near.

    Holds one frame besides the next. A frame may be taken twice, where a varying rate
    leaves a gap.
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
    # The last tick may be a little late; more of them, and frames are missing.
    while tick < count and tick / rate <= held.time + 0.5 / rate:
        yield held
        tick += 1
