"""Tests of jaxload.shapes.geometry."""

import json

import numpy as np
import pytest

from jaxload.errors import InputError
from jaxload.shapes.geometry import DEFAULT, Geometry
from jaxload.shapes.shape import Shape

FINE = Geometry(strides=(2, 4, 4), patch=(1, 4, 2))


@pytest.mark.parametrize(
    ("geometry", "pixels", "latent", "tokens"),
    [
        (DEFAULT, (81, 480, 832), (21, 60, 104), 32_760),
        (DEFAULT, (1, 16, 16), (1, 2, 2), 1),
        (FINE, (9, 32, 48), (5, 8, 12), 60),
        (Geometry(strides=(1, 1, 1), patch=(1, 1, 1)), (3, 5, 7), (3, 5, 7), 105),
    ],
)
def test_sizes_in_pixels_latents_and_tokens(geometry, pixels, latent, tokens):
    shape = Shape.of_pixels(pixels, geometry)
    assert (shape.frames, shape.height, shape.width) == latent
    assert (shape.pixels, shape.tokens) == (pixels, tokens)


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        ((80, 480, 832), r"clip of 80x480x832: expected 4k\+1 frames"),
        ((0, 480, 832), r"expected 4k\+1 frames"),
        ((81, 488, 832), "expected a height and width in multiples of 16 and 16"),
        ((81, 480, 0), "expected a height and width in multiples of 16 and 16"),
    ],
)
def test_sizes_that_the_codec_cannot_encode_are_refused(pixels, message):
    with pytest.raises(InputError, match=message):
        Shape.of_pixels(pixels, DEFAULT)


def test_frames_are_rounded_down_by_the_stride():
    frames = np.arange(1, 8)
    assert DEFAULT.round_frames(frames).tolist() == [1, 1, 1, 1, 5, 5, 5]
    assert FINE.round_frames(frames).tolist() == [1, 1, 3, 3, 5, 5, 7]


def test_a_geometry_survives_json():
    assert Geometry.from_dict(json.loads(json.dumps(FINE.to_dict()))) == FINE


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"strides": (0, 8, 8)}, "1 or more each"),
        ({"patch": (2, 2, 2)}, "expected 1 latent frame per token"),
    ],
)
def test_invalid_sizes_are_refused(sizes, message):
    with pytest.raises(InputError, match=message):
        Geometry(**sizes)
