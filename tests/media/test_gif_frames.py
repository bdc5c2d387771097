"""Tests of jaxload.media.gif_frames: scans of GIFs agree with readers of GIFs."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import GifImagePlugin, Image

from jaxload.media.frames import MediaError, read_frames, scan
from tests.media.media_files import moving_pattern


def gif(**options) -> bytes:
    """Returns a GIF whose frames change rectangles of various sizes."""
    canvas = Image.fromarray(moving_pattern(1, 24, 32)[0]).quantize(16)
    pictures = []
    for i in range(5):
        canvas = canvas.copy()
        canvas.paste(i, (i, 2 * i, i + 9, 2 * i + 5))
        pictures.append(canvas)
    buffer = io.BytesIO()
    pictures[0].save(
        buffer, "GIF", save_all=True, append_images=pictures[1:], **options
    )
    return buffer.getvalue()


WHOLE = [
    gif(duration=[20, 0, 300, 40, 50]),
    gif(duration=70, disposal=2, comment=b"a comment " * 60),
    gif(disposal=3, transparency=0),
    gif(interlace=False, optimize=True, loop=0),
]


def composed(path, num_frames: int | None = None) -> object:
    """Returns the frames that a reader of the same file sees, or its refusal."""
    sizes, times = [], []
    try:
        for frame in read_frames(path, num_frames=num_frames):
            sizes.append((frame.height, frame.width))
            times.append(frame.time)
    except MediaError as error:
        return error.reason
    return len(times), sizes[0], times[-1]


def measured(path) -> tuple | str:
    try:
        found = scan(path)
    except MediaError as error:
        return error.reason
    return found.num_frames, (found.height, found.width), found.seconds


@pytest.mark.parametrize("data", WHOLE)
def test_a_scan_agrees_with_a_reader_wherever_a_file_is_cut(tmp_path, data):
    path = tmp_path / "moving.gif"
    outcomes = set()
    for size in range(1, len(data) + 1):
        path.write_bytes(data[:size])
        outcomes.add(measured(path))
        assert measured(path) == composed(path), size
    assert len(outcomes) > 5


@pytest.mark.fuzz
@given(
    data=st.sampled_from(WHOLE),
    flips=st.lists(
        st.tuples(st.integers(13, 1 << 20), st.integers(1, 255)), min_size=1, max_size=3
    ),
)
def test_a_scan_agrees_with_a_reader_wherever_bytes_change(tmp_path, data, flips):
    changed = bytearray(data)
    for place, change in flips:
        changed[13 + (place - 13) % (len(data) - 13)] ^= change
    path = tmp_path / "moving.gif"
    path.write_bytes(changed)
    found = measured(path)
    # What a scan refuses is not read, and nothing beyond the frames that it counts.
    assert isinstance(found, str) or found == composed(path, found[0])


def test_a_scan_composes_no_canvas(tmp_path, monkeypatch):
    path = tmp_path / "moving.gif"
    path.write_bytes(WHOLE[0])
    loaded = []
    prepare = GifImagePlugin.GifImageFile.load_prepare

    def counted(image):
        loaded.append(image.size)
        prepare(image)

    monkeypatch.setattr(GifImagePlugin.GifImageFile, "load_prepare", counted)
    assert scan(path).num_frames == 5
    first, *others = loaded
    assert first == (32, 24)
    assert len(others) == 4
    assert max(width * height for width, height in others) < 32 * 24 / 4
    loaded.clear()
    pixels = [frame.rgb() for frame in read_frames(path)]
    assert np.shape(pixels) == (5, 24, 32, 3)
    assert loaded == [(32, 24)] * 5
