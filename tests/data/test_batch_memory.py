"""Tests of jaxload.data.batch_memory."""

import grain
import numpy as np
import pytest

from jaxload.data import batch_memory
from jaxload.data.batch_memory import MIN_SHARED_BYTES, make_room

SMALL, LARGE = (3, 5), (4, MIN_SHARED_BYTES // 8)


@pytest.fixture(params=[False, True], ids=["here", "worker"])
def in_worker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(batch_memory, "_in_worker", request.param)
    return request.param


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_what_is_written_is_there_and_the_rest_is_zero(in_worker: bool, shape):
    room = make_room(shape)
    row = room.array.nbytes // shape[0]
    room.write(row, memoryview(bytes([0x80, 0x3F]) * 4))
    room.write(2 * row, memoryview(b""))
    room.close()
    expected = np.zeros(shape)
    expected[1, :4] = 1.0
    np.testing.assert_array_equal(room.array.astype(float), expected)
    if isinstance(room.array, grain.multiprocessing.SharedMemoryArray):
        room.array.unlink_on_del()


def test_only_large_arrays_of_a_worker_are_shared(in_worker: bool):
    kinds = []
    for shape in (SMALL, LARGE):
        room = make_room(shape)
        room.close()
        array = room.array
        shared = isinstance(array, grain.multiprocessing.SharedMemoryArray)
        if shared:
            array.unlink_on_del()
        kinds.append(shared)
    assert kinds == [False, in_worker]
