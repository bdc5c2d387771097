"""Tests of jaxload.media.batch_queue."""

from jaxload.media.batch_queue import Batch, BatchQueue
from jaxload.shapes.shape import Shape

SMALL, LARGE = Shape(1, 4, 4), Shape(3, 4, 4)


def make_queue() -> BatchQueue[str]:
    return BatchQueue(lambda key: {SMALL: 3, LARGE: 2, None: 4}[key])


def test_a_batch_is_of_one_shape_and_full():
    queue = make_queue()
    for key, item in [(SMALL, "a"), (LARGE, "b"), (None, "c"), (SMALL, "d")]:
        queue.add(key, item)
        assert queue.take() is None
    queue.add(LARGE, "e")
    queue.add(SMALL, "f")
    assert queue.take() == Batch(LARGE, ("b", "e"))
    assert queue.take() == Batch(SMALL, ("a", "d", "f"))
    assert queue.take() is None


def test_partial_batches_come_by_age():
    queue = make_queue()
    queue.add(SMALL, "a")
    queue.add(LARGE, "b")
    assert queue.take_partial() == Batch(SMALL, ("a",))
    assert queue.take_partial() == Batch(LARGE, ("b",))
    assert queue.take_partial() is None


def test_an_item_is_not_overtaken_for_ever():
    queue = make_queue()
    queue.add(SMALL, "rare")
    taken = []
    for i in range(100):
        queue.add(LARGE, f"{i}")
        queue.add(LARGE, f"{i}")
        while batch := queue.take():
            taken.append(batch.key)
    assert taken.index(SMALL) in (32, 33)


def test_what_is_put_back_comes_first():
    queue = make_queue()
    queue.add(LARGE, "a")
    queue.add(LARGE, "b")
    queue.put_back(Batch(SMALL, ("c",)))
    assert queue.take() == Batch(SMALL, ("c",))


def test_items_are_discarded_wherever_they_are():
    queue = make_queue()
    for key, item in [(LARGE, "x1"), (LARGE, "a"), (SMALL, "x2"), (None, "b")]:
        queue.add(key, item)
    assert queue.discard(lambda item: item.startswith("x")) == ["x1", "x2"]
    assert queue.take_partial() == Batch(LARGE, ("a",))
    assert queue.take_partial() == Batch(None, ("b",))
    assert queue.take_partial() is None
