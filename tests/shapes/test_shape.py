"""Tests of jaxload.shapes.shape."""

import pytest

from jaxload.errors import InputError
from jaxload.shapes.geometry import DEFAULT
from jaxload.shapes.shape import Shape


def test_tokens_count_patches():
    assert Shape(21, 60, 104).tokens == 32_760  # Wan 2.1 at 81 frames of 480x832.


def test_text_round_trip():
    assert Shape.parse(str(Shape(5, 8, 12)), DEFAULT) == Shape(5, 8, 12)


@pytest.mark.parametrize("text", ["5x8", "5x8x12x1", "ax8x8", ""])
def test_rejects_invalid_text(text):
    with pytest.raises(InputError, match="expected FxHxW"):
        Shape.parse(text, DEFAULT)


@pytest.mark.parametrize("sizes", [(5, 7, 8), (5, 8, 9)])
def test_rejects_odd_sizes(sizes):
    with pytest.raises(
        InputError,
        match="multiples of 2 and 2, the size of a token; in pixels, of 16 and 16",
    ):
        Shape(*sizes)


@pytest.mark.parametrize("sizes", [(0, 8, 8), (1, 0, 8)])
def test_rejects_empty_shapes(sizes):
    with pytest.raises(InputError, match="at least 1x2x2"):
        Shape(*sizes)
