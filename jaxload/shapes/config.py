"""Config section `shapes`."""

import dataclasses

import numpy as np

from jaxload.errors import InputError
from jaxload.shapes.geometry import Geometry

MAX_FPS = 240.0
"""Highest valid frame rate; higher rates come from defective time stamps."""

MAX_HOURS = 100
"""Longest valid duration of a listed video. One row of a list can then stand for tens
of thousands of clips, but not for millions."""


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
    """Most frames of a clip, 4k+1 for a codec with a stride of 4; longer videos are cut
    into several clips. More shows longer motion and takes more memory and compute."""

    min_rest_frames: int = 5
    """Fewest frames of a clip made from the remainder of a cut video. More avoids short
    clips and drops more frames."""

    max_pixels: int = 720 * 1280
    """Most pixels of a frame, height times width. More keeps more detail and takes more
    memory and compute."""

    max_sizes: int = 32
    """Maximum number of frame sizes (height x width) of a dataset. More keeps more of
    each frame, and has a codec such as a VAE compile more programs."""

    max_upscale: float = 1.2
    """Largest factor by which the sides of a sample may grow. More keeps more small
    samples and trains on more interpolated pixels."""

    max_crop: float = 0.25
    """Largest share of a frame's area that may be cropped away. More lets samples go to
    more shapes and loses more of each frame."""

    def __post_init__(self):
        if self.max_frames < 1:
            raise InputError(f"shapes.max_frames={self.max_frames}: expected 1 or more")
        if self.max_sizes < 1:
            raise InputError(f"shapes.max_sizes={self.max_sizes}: expected 1 or more")
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

    def check(self, geometry: Geometry) -> None:
        """Refuses limits that no clip of a codec and model can reach."""
        (below,) = geometry.round_frames(np.array([self.max_frames])).tolist()
        if below != self.max_frames:
            raise InputError(
                f"shapes.max_frames={self.max_frames}: expected {geometry.frame_rule}; "
                f"use {below}"
            )
        height, width = geometry.token_pixels
        if self.max_pixels < height * width:
            raise InputError(
                f"shapes.max_pixels={self.max_pixels}: expected {height * width} or "
                "more, one token"
            )
