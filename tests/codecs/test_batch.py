"""Tests of jaxload.codecs.batch with batch sizes as users write them."""

import pytest

from jaxload.codecs.batch import ClipBatches
from jaxload.errors import InputError
from tests.codecs.faulty_plugins import FloatSize, NumpySize, SizeRaises

PIXELS = (17, 64, 64)


def test_a_batch_size_that_raises_is_one_line():
    message = (
        r"codec size raises: batch_size\(\(17, 64, 64\)\) raised RuntimeError: no "
        r"table of sizes; correct the codec"
    )
    with pytest.raises(InputError, match=message):
        ClipBatches(SizeRaises()).size(PIXELS)


def test_a_fraction_is_refused():
    message = r"codec float size: batch_size\(.*\) is 4.0: expected a whole number"
    with pytest.raises(InputError, match=message):
        ClipBatches(FloatSize()).size(PIXELS)  # pyright: ignore[reportArgumentType]


def test_an_integer_of_numpy_is_converted():
    size = ClipBatches(NumpySize()).size(PIXELS)  # pyright: ignore[reportArgumentType]
    assert type(size) is int
    assert size == 143
