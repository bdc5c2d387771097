"""Tests of jaxload.media.resize."""

import numpy as np
import pytest
from PIL import Image

from jaxload.media.resize import fit
from tests.media.media_files import moving_pattern


def ramp(height: int, width: int) -> np.ndarray:
    """Red grows to the right and green to the bottom, from 0 to 255 at the edges."""
    picture = np.zeros((height, width, 3))
    picture[..., 0] = (np.arange(width) + 0.5) / width * 255
    picture[..., 1] = ((np.arange(height) + 0.5) / height * 255)[:, None]
    return picture.round().astype(np.uint8)


def test_the_same_size_changes_nothing():
    picture = moving_pattern(1, 33, 47)[0]
    np.testing.assert_array_equal(
        fit(picture, displayed=(33, 47), size=(33, 47)), picture
    )


@pytest.mark.parametrize("stored", [(64, 96), (480, 640), (101, 57), (16, 16)])
@pytest.mark.parametrize("size", [(48, 48), (32, 64), (64, 32)])
def test_the_picture_covers_the_size_and_is_cropped_in_the_middle(stored, size):
    fitted = fit(ramp(*stored), displayed=stored, size=size)
    assert fitted.shape == (*size, 3)
    assert fitted.dtype == np.uint8
    scale = max(size[0] / stored[0], size[1] / stored[1])
    for axis, channel in ((1, 0), (0, 1)):
        share = size[axis] / (stored[axis] * scale)
        centres = 0.5 + ((np.arange(size[axis]) + 0.5) / size[axis] - 0.5) * share
        line = fitted[size[0] // 2, :, 0] if axis == 1 else fitted[:, size[1] // 2, 1]
        assert channel == 1 - axis
        # The outermost pixels have nothing beyond them to be averaged with.
        np.testing.assert_allclose(line[3:-3], (centres * 255)[3:-3], atol=3)


@pytest.mark.parametrize("displayed", [(64, 128), (64, 48), (128, 64)])
def test_pixels_that_are_not_square_are_stretched(displayed):
    # A circle as it is displayed, stored in a picture of 64x64.
    stored = 64, 64
    rows = (np.arange(64) + 0.5) / 64 * displayed[0] - displayed[0] / 2
    columns = (np.arange(64) + 0.5) / 64 * displayed[1] - displayed[1] / 2
    inside = rows[:, None] ** 2 + columns**2 < 20**2
    picture = np.repeat(inside[..., None] * np.uint8(255), 3, axis=2)
    assert picture.shape[:2] == stored
    fitted = fit(picture, displayed=displayed, size=(48, 48))[..., 0] > 127
    diameter = 40 * max(48 / displayed[0], 48 / displayed[1])
    assert fitted.any(axis=0).sum() == pytest.approx(diameter, abs=2.1)
    assert fitted.any(axis=1).sum() == pytest.approx(diameter, abs=2.1)


def test_fine_stripes_become_grey_and_no_coarse_stripes():
    stripes = np.zeros((70, 70, 3), np.uint8)
    stripes[:, ::2] = 255
    fitted = fit(stripes, displayed=(70, 70), size=(16, 16)).astype(int)
    assert abs(fitted[2:-2, 2:-2] - 127).max() < 12
    # What a resize without antialiasing makes of it.
    nearest = Image.fromarray(stripes).resize((16, 16), Image.Resampling.NEAREST)
    assert np.ptp(np.array(nearest)) == 255


def test_a_crop_may_fall_between_pixels():
    # From 5 columns to the middle 4: each is half of one and half of its neighbour.
    picture = np.zeros((4, 5, 3), np.uint8)
    picture[:, 2:] = 200
    fitted = fit(picture, displayed=(4, 5), size=(4, 4)).astype(int)
    assert fitted[0, 0, 0] < 20
    assert fitted[0, 1, 0] == pytest.approx(100, abs=5)
    assert fitted[0, 3, 0] > 180
