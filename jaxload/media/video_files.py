"""Writes clips as GIF and H.264 files."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from jaxtyping import UInt8
from PIL import Image

# Without look-ahead: x264's reads uninitialised memory, so the bytes would vary.
_REPEATABLE = {
    "crf": "12",
    "threads": "1",
    "x264-params": "rc-lookahead=0:sync-lookahead=0:mbtree=0:bframes=0",
}


def write_gif(
    path: Path, video: UInt8[np.ndarray, "p y x 3"], *, fps: float, enlarge: int
) -> None:
    """Writes a looping GIF, with each pixel enlarged to a square.

    The delays of a GIF are whole hundredths of a second, so that frames are shown a
    little shorter or longer than 1 / fps.
    """
    frames = [
        Image.fromarray(frame.repeat(enlarge, axis=0).repeat(enlarge, axis=1))
        for frame in video
    ]
    ends = np.round(100 * np.arange(len(frames) + 1) / fps).astype(int)
    delays = (10 * np.diff(ends)).tolist()  # Pillow takes milliseconds.
    frames[0].save(
        path, save_all=True, append_images=frames[1:], duration=delays, loop=0
    )


def write_video(path: Path, video: UInt8[np.ndarray, "p y x 3"], *, fps: float) -> None:
    """Writes an H.264 clip of high quality, with the same bytes each time."""
    with av.open(str(path), "w") as container:
        rate = Fraction(fps).limit_denominator(1_001)
        stream = container.add_stream("libx264", rate, _REPEATABLE)
        stream.height, stream.width = video.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for pixels in video:
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
