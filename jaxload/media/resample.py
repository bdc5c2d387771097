"""Resamples a video to a lower frame rate, by the time stamps of its frames."""

import math
from collections.abc import Iterator

from jaxload.media.frame import Frame

# In seconds. Containers round time stamps, often to milliseconds, so a duration may be
# wrong by half a millisecond at either end.
_TOLERANCE = 0.001


def ticks(num_frames: int, seconds: float, *, fps: float) -> tuple[float, int]:
    """Returns the frame rate to resample a video to, and the number of its ticks.

    Ticks are the times 0, 1/rate, 2/rate and so on, up to the last frame or one
    millisecond after it. At a constant frame rate, `shapes.clips.usable_frames` gives
    the same number. A video slower than `fps` keeps its own mean rate and all frames.
    """
    if num_frames == 1 or seconds <= 0:
        return fps, 1
    rate = min(fps, (num_frames - 1) / seconds)
    return rate, math.floor((seconds + _TOLERANCE) * rate) + 1


def resample(frames: Iterator[Frame], *, rate: float, count: int) -> Iterator[Frame]:
    """Yields for each tick the frame nearest in time, or the earlier one of a tie.

    Memory holds two frames at a time. If a varying frame rate leaves a gap, a frame is
    yielded more than once.
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
    # Ticks up to half a period after the last frame use it; later ones have no frame.
    while tick < count and tick / rate <= held.time + 0.5 / rate:
        yield held
        tick += 1
