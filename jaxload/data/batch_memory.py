"""Memory for the arrays of a micro-batch, in the process that trains or for it.

A worker process hands large arrays over in shared memory, small ones through a pipe.
"""

import abc
import ctypes
import math
import os

import grain
import numpy as np

from jaxload.data.record import BFLOAT16

MIN_SHARED_BYTES = 1 << 20
"""Smaller arrays are sooner sent through a pipe than put into shared memory."""

_SHARED = "/dev/shm"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # Of mallopt(3).
_KEPT_BYTES, _MAX_MMAP_BYTES = 1 << 30, 32 << 20

_in_worker = False


def enter_worker(index: int, count: int) -> None:
    """Has this process read for another one."""
    global _in_worker
    _in_worker = True
    # Keep what was freed for the next record: to give it back to the system, and ask
    # for it again page by page, takes longer than to read the record.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # Of glibc.
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAX_MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


class Room(abc.ABC):
    """An array in bfloat16 that is written piece by piece."""

    def __init__(self, array: np.ndarray):
        self.array = array

    @abc.abstractmethod
    def write(self, start: int, data: memoryview) -> None:
        """Copies bytes to a place in the array, counted in bytes."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the writing; the array stays."""


def make_room(shape: tuple[int, ...]) -> Room:
    """An array of zeros in the memory that suits its size and this process."""
    num_bytes = math.prod(shape) * BFLOAT16.itemsize
    if _in_worker and num_bytes >= MIN_SHARED_BYTES and os.path.isdir(_SHARED):
        return _Shared(shape)
    return _Plain(shape)


class _Plain(Room):
    def __init__(self, shape: tuple[int, ...]):
        super().__init__(np.zeros(shape, BFLOAT16))
        self._bytes = self.array.reshape(-1).view(np.uint8).data

    def write(self, start: int, data: memoryview) -> None:
        self._bytes[start : start + len(data)] = data

    def close(self) -> None:
        self._bytes.release()


class _Shared(Room):
    """Written as the file that it is: a copy would stop at every new page of it."""

    def __init__(self, shape: tuple[int, ...]):
        array = grain.multiprocessing.SharedMemoryArray(shape, BFLOAT16)
        super().__init__(array)
        name = array.metadata.name.lstrip("/")
        self._file = open(f"{_SHARED}/{name}", "r+b", buffering=0)  # noqa: SIM115

    def write(self, start: int, data: memoryview) -> None:
        written = os.pwrite(self._file.fileno(), data, start)
        if written != len(data):
            raise OSError(f"{_SHARED}: no room for {len(data)} bytes")

    def close(self) -> None:
        self._file.close()
