"""Cuts videos into clips: full-length clips, then the remainder, each with an id."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxload.shapes.config import ShapeRules


class Cut(NamedTuple):
    """One clip of a video."""

    id: str
    first: int
    """First frame, counted at the model's frame rate."""

    num_frames: int
    """Frames, before they are rounded down to a length that the codec accepts."""

    is_full: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cuts:
    """Numbers of clips of some videos; a list of the clips could have millions."""

    num_full: np.ndarray
    """Number of full-length clips of each video."""

    rest: np.ndarray
    """Frames of each video's remainder; 0 if it is too short for a clip of its own."""

    max_frames: int
    """Frames of a full-length clip."""

    def clips(self, video: int, name: str) -> Iterator[Cut]:
        """Yields the clips of one video, in order.

        The id is the `name` of a video that is one clip. Otherwise the first frame of
        the clip is appended: `name@0`, `name@81` and so on.
        """
        num_full, rest = int(self.num_full[video]), int(self.rest[video])
        several = num_full + (rest > 0) > 1
        for i in range(num_full + (rest > 0)):
            first, is_full = i * self.max_frames, i < num_full
            yield Cut(
                id=f"{name}@{first}" if several else name,
                first=first,
                num_frames=self.max_frames if is_full else rest,
                is_full=is_full,
            )


def cut_videos(frames: np.ndarray, rules: ShapeRules) -> Cuts:
    """Cuts videos with these numbers of frames at the model's rate; 0 gives no clip.

    A video shorter than a full clip is a remainder, however short it is.
    """
    num_full, rest = np.divmod(frames, rules.max_frames)
    too_short = (num_full > 0) & (rest < rules.min_rest_frames)
    return Cuts(
        num_full=num_full,
        rest=np.where(too_short, 0, rest),
        max_frames=rules.max_frames,
    )
