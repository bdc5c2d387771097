"""Tests of jaxload.media.shared_memory."""

import numpy as np

from jaxload.media.child import Child, stop
from jaxload.media.shared_memory import Allocator, SharedMemory
from tests.media.named_memory import named_memory


def fill(pipe, memory: SharedMemory) -> None:
    """Writes to the memory; runs in another process."""
    memory.array(8_192, (2, 3))[:] = 7
    pipe.send("done")


def test_processes_see_the_same_bytes_and_leave_nothing():
    before = named_memory()
    memory = SharedMemory(16_384)
    child = Child(fill, memory)
    assert child.receive() == "done"
    stop([child])
    np.testing.assert_array_equal(memory.array(8_192, (2, 3)), np.full((2, 3), 7))
    assert memory.array(0, (8_192,)).sum() == 0
    assert named_memory() == before
    memory.close()


def test_ranges_do_not_overlap_and_are_used_again():
    free = Allocator(5 * 4_096)
    first, second = free.allocate(4_097), free.allocate(4_096)
    assert (first, second) == (0, 8_192)
    assert free.num_used == 3 * 4_096
    assert free.allocate(3 * 4_096) is None
    assert free.allocate(2 * 4_096) == 12_288
    assert free.allocate(1) is None
    free.free(0)
    assert free.allocate(2 * 4_096) == 0
    for offset in (0, 8_192, 12_288):
        free.free(offset)
    assert free.num_used == 0
    assert free.allocate(5 * 4_096) == 0
