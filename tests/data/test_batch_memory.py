"""Tests of jaxload.data.batch_memory."""

import grain
import numpy as np
import pytest

from jaxload.data import batch_memory
from jaxload.data.batch_memory import MIN_SHARED_BYTES, make_buffer

SMALL, LARGE = (3, 5), (4, MIN_SHARED_BYTES // 8)


@pytest.fixture(params=[False, True], ids=["here", "worker"])
def in_worker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(batch_memory, "_in_worker", request.param)
    return request.param


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_what_is_written_is_there_and_the_rest_is_zero(in_worker: bool, shape):
    buffer = make_buffer(shape)
    row = buffer.array.nbytes // shape[0]
    buffer.write(row, memoryview(bytes([0x80, 0x3F]) * 4))
    buffer.write(2 * row, memoryview(b""))
    buffer.close()
    expected = np.zeros(shape)
    expected[1, :4] = 1.0
    np.testing.assert_array_equal(buffer.array.astype(float), expected)
    if isinstance(buffer.array, grain.multiprocessing.SharedMemoryArray):
        buffer.array.unlink_on_del()


def test_only_large_arrays_of_a_worker_are_shared(in_worker: bool):
    are_shared = []
    for shape in (SMALL, LARGE):
        buffer = make_buffer(shape)
        buffer.close()
        array = buffer.array
        shared = isinstance(array, grain.multiprocessing.SharedMemoryArray)
        if shared:
            array.unlink_on_del()
        are_shared.append(shared)
    assert are_shared == [False, in_worker]
