"""Tests of jaxload.balance.memory."""

import pytest

from jaxload.balance.memory import MemoryLine, MemoryModel, line_through
from jaxload.errors import InputError
from jaxload.shapes.shape import Shape

LINE = MemoryLine(fixed=100.0, per_sample=7.0, source="test")


def test_a_line_goes_through_both_points():
    line = line_through((1, 107.0), (3, 121.0), source="test")
    assert line == LINE
    assert (line.bytes(1), line.bytes(3), line.bytes(5)) == (107, 121, 135)


def test_the_largest_batch_fits_and_one_more_does_not():
    for budget in range(200):
        batch = LINE.max_batch(budget)
        assert batch == 0 or LINE.bytes(batch) <= budget
        assert LINE.bytes(batch + 1) > budget
    assert LINE.max_batch(106) == 0
    assert LINE.max_batch(107) == 1


@pytest.mark.parametrize("second", [(2, 107.0), (2, 90.0)], ids=["flat", "falling"])
def test_memory_that_does_not_grow_is_refused(second):
    with pytest.raises(InputError, match=r"bytes a sample \(test\): expected more"):
        line_through((1, 107.0), second, source="test")


def test_one_batch_size_is_no_line():
    with pytest.raises(InputError, match="two programs of batch size 2"):
        line_through((2, 107.0), (2, 121.0), source="test")


def test_each_shape_has_its_own_line():
    short, long = Shape(1, 8, 8), Shape(5, 8, 8)
    steep = MemoryLine(fixed=100.0, per_sample=40.0, source="test")
    model = MemoryModel({short: LINE, long: steep})
    assert model.bytes(short, 2) == 114
    assert model.bytes(long, 2) == 180
    assert model.max_batch(short, 180) == 11
    assert model.max_batch(long, 180) == 2
    assert model.max_batch(long, 100) == 0


def test_a_shape_that_was_not_compiled_is_named():
    model = MemoryModel({Shape(1, 8, 8): LINE})
    with pytest.raises(InputError, match="shape 2x8x8: not compiled, only 1x8x8"):
        model.bytes(Shape(2, 8, 8), 1)
    with pytest.raises(InputError, match="only nothing"):
        MemoryModel({}).max_batch(Shape(2, 8, 8), 1)
