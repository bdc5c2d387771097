"""Clips as files that people can look at."""

from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image


def write_gif(
    path: Path, video: UInt8[np.ndarray, "p y x 3"], *, fps: int, enlarge: int
) -> None:
    """Writes an endless animation, each pixel enlarged to a square."""
    frames = [
        Image.fromarray(frame.repeat(enlarge, axis=0).repeat(enlarge, axis=1))
        for frame in video
    ]
    frames[0].save(
        path,
        save_all=True,
        append_images=frames[1:],
        duration=round(1000 / fps),
        loop=0,
    )
