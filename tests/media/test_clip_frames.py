"""Tests of jaxload.media.clip_frames: which frames a clip has, and their size."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxload.media.clip_frames import read_clips, resize_and_crop
from jaxload.media.cutting import Cutting, cut_file
from jaxload.media.frames import MediaError, scan
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.geometry import DEFAULT
from jaxload.shapes.shape import Shape
from tests.media.media_files import moving_pattern, plain_frames, write_video

RULES = ShapeRules(max_frames=9, min_rest_frames=5)
SIZES = ((4, 4), (4, 6))


def numbered(count: int) -> np.ndarray:
    """Returns frames of distinct brightness."""
    return plain_frames([(g, g, g) for g in range(20, 20 + 4 * count, 4)], 32, 48)


def numbers(video: np.ndarray) -> list[int]:
    """Returns the indices in `numbered` of these frames."""
    return np.rint((video.mean(axis=(1, 2, 3)) - 20) / 4).astype(int).tolist()


def read(path: Path, cutting: Cutting) -> dict[str, np.ndarray]:
    """Returns the clips of a file by id."""

    def buffer(shape: Shape) -> np.ndarray:
        return np.empty((*shape.pixels, 3), np.uint8)

    return {clip.id: video for clip, video in read_clips(path, cutting, buffer)}


def cut(path: Path) -> Cutting:
    return cut_file(path.name, scan(path), SIZES, RULES, DEFAULT)


def test_clips_have_the_frames_of_their_time(tmp_path: Path):
    path = write_video(tmp_path / "a.mp4", numbered(50), fps=32)
    videos = read(path, cut(path))
    assert list(videos) == ["a.mp4@0", "a.mp4@9", "a.mp4@18"]
    # Every other frame of 32 fps; the rest of 7 is cut to 5.
    assert [numbers(video) for video in videos.values()] == [
        list(range(0, 18, 2)),
        list(range(18, 36, 2)),
        list(range(36, 46, 2)),
    ]
    assert [video.shape for video in videos.values()] == [
        (9, 32, 48, 3),
        (9, 32, 48, 3),
        (5, 32, 48, 3),
    ]


def test_a_varying_rate_is_resampled_by_time(tmp_path: Path):
    times = [0.0, 0.05, 0.1, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55]
    path = write_video(tmp_path / "a.mkv", numbered(9), times=times)
    (video,) = read(path, cut(path)).values()
    # 8 steps in 0.55 s are 14.5 a second: the nearest frame to each of 9 ticks.
    expected = [int(np.abs(np.array(times) - k * 0.55 / 8).argmin()) for k in range(9)]
    assert numbers(video) == expected
    assert len(set(expected)) < 9  # The gap shows a frame twice.


def test_frames_of_a_clip_that_is_left_out_are_passed_over(tmp_path: Path):
    path = write_video(tmp_path / "a.mp4", numbered(20), fps=16)
    rules = dataclasses.replace(RULES, min_rest_frames=1)
    cutting = cut_file("a.mp4", scan(path), SIZES, rules, DEFAULT)
    assert [clip.start for clip in cutting.left_out] == [18]
    videos = read(path, cutting)
    assert [numbers(video) for video in videos.values()] == [
        [*range(9)],
        [*range(9, 18)],
    ]


def test_a_file_that_became_shorter_is_named(tmp_path: Path):
    path = write_video(tmp_path / "a.mp4", numbered(18), fps=16)
    cutting = cut(path)
    write_video(path, numbered(7), fps=16)
    with pytest.raises(MediaError, match="changed while it was prepared"):
        read(path, cutting)


# --- Resizing and cropping ---


def ramp(height: int, width: int) -> np.ndarray:
    """Returns a picture whose red grows to the right, and green to the bottom."""
    picture = np.zeros((height, width, 3))
    picture[..., 0] = (np.arange(width) + 0.5) / width * 255
    picture[..., 1] = ((np.arange(height) + 0.5) / height * 255)[:, None]
    return picture.round().astype(np.uint8)


def test_the_same_size_changes_nothing():
    picture = moving_pattern(1, 33, 47)[0]
    np.testing.assert_array_equal(
        resize_and_crop(picture, displayed=(33, 47), size=(33, 47)), picture
    )


@pytest.mark.parametrize("stored", [(64, 96), (480, 640), (101, 57), (16, 16)])
@pytest.mark.parametrize("size", [(48, 48), (32, 64), (64, 32)])
def test_the_picture_covers_the_size_and_is_cropped_in_the_middle(stored, size):
    resized = resize_and_crop(ramp(*stored), displayed=stored, size=size)
    assert resized.shape == (*size, 3)
    assert resized.dtype == np.uint8
    scale = max(size[0] / stored[0], size[1] / stored[1])
    for axis, channel in ((1, 0), (0, 1)):
        share = size[axis] / (stored[axis] * scale)
        centres = 0.5 + ((np.arange(size[axis]) + 0.5) / size[axis] - 0.5) * share
        line = resized[size[0] // 2, :, 0] if axis == 1 else resized[:, size[1] // 2, 1]
        assert channel == 1 - axis
        # Except at the edges, where the filter has pixels on one side only.
        np.testing.assert_allclose(line[3:-3], (centres * 255)[3:-3], atol=3)


@pytest.mark.parametrize("displayed", [(64, 128), (64, 48), (128, 64)])
def test_pixels_that_are_not_square_are_stretched(displayed):
    # A picture of 64x64 pixels that is displayed as a circle.
    stored = 64, 64
    rows = (np.arange(64) + 0.5) / 64 * displayed[0] - displayed[0] / 2
    columns = (np.arange(64) + 0.5) / 64 * displayed[1] - displayed[1] / 2
    inside = rows[:, None] ** 2 + columns**2 < 20**2
    picture = np.repeat(inside[..., None] * np.uint8(255), 3, axis=2)
    assert picture.shape[:2] == stored
    resized = resize_and_crop(picture, displayed=displayed, size=(48, 48))[..., 0] > 127
    diameter = 40 * max(48 / displayed[0], 48 / displayed[1])
    assert resized.any(axis=0).sum() == pytest.approx(diameter, abs=2.1)
    assert resized.any(axis=1).sum() == pytest.approx(diameter, abs=2.1)


def test_fine_stripes_become_grey_and_no_coarse_stripes():
    stripes = np.zeros((70, 70, 3), np.uint8)
    stripes[:, ::2] = 255
    resized = resize_and_crop(stripes, displayed=(70, 70), size=(16, 16)).astype(int)
    assert abs(resized[2:-2, 2:-2] - 127).max() < 12
    # Without antialiasing, the stripes stay visible.
    nearest = Image.fromarray(stripes).resize((16, 16), Image.Resampling.NEAREST)
    assert np.ptp(np.array(nearest)) == 255


def test_a_crop_may_fall_between_pixels():
    # From 5 columns to the middle 4: each is half of one and half of its neighbour.
    picture = np.zeros((4, 5, 3), np.uint8)
    picture[:, 2:] = 200
    resized = resize_and_crop(picture, displayed=(4, 5), size=(4, 4)).astype(int)
    assert resized[0, 0, 0] < 20
    assert resized[0, 1, 0] == pytest.approx(100, abs=5)
    assert resized[0, 3, 0] > 180
