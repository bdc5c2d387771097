"""Tests of jaxload.media.video_files."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

from jaxload.media.video_files import write_gif


@pytest.mark.parametrize("fps", [5.0, 8.0, 16.0, 24.0, 29.97, 30.0])
def test_a_gif_plays_at_its_frame_rate(tmp_path: Path, fps: float):
    path, count = tmp_path / "a.gif", 33
    rng = np.random.default_rng(0)
    # Frames differ, because Pillow joins equal frames.
    video = rng.integers(0, 256, (count, 8, 8, 3), np.uint8)
    write_gif(path, video, fps=fps, enlarge=1)
    with Image.open(path) as gif:
        delays = [frame.info["duration"] for frame in ImageSequence.Iterator(gif)]
    assert len(delays) == count
    assert abs(sum(delays) - 1_000 * count / fps) <= 5  # Half of a hundredth.
    # Viewers show shorter delays as a tenth of a second.
    assert min(delays) >= 20
