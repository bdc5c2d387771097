"""Memory for the arrays of a micro-batch, in the training process or a worker.

A worker process passes large arrays in shared memory and small ones through a pipe.
"""

import abc
import ctypes
import math
import os

import grain
import numpy as np

from jaxload.data.record import BFLOAT16

MIN_SHARED_BYTES = 1 << 20
"""Least size of an array for shared memory; a pipe is faster for smaller arrays."""

_SHARED = "/dev/shm"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # From mallopt(3).
_KEPT_BYTES, _MAX_MMAP_BYTES = 1 << 30, 32 << 20

_in_worker = False


def enter_worker(index: int, count: int) -> None:
    """Marks this process as a worker, and has it keep freed memory."""
    global _in_worker
    _in_worker = True
    # Keep freed memory for the next record: returning it to the system and faulting it
    # in again page by page takes longer than reading the record.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # Only in glibc.
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAX_MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


class Room(abc.ABC):
    """An array in bfloat16 that is written chunk by chunk."""

    def __init__(self, array: np.ndarray):
        self.array = array

    @abc.abstractmethod
    def write(self, start: int, data: memoryview) -> None:
        """Copies bytes into the array, beginning at byte `start`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the writing; the array stays valid."""


def make_room(shape: tuple[int, ...]) -> Room:
    """Returns an array of zeros, in shared memory if large and in a worker process."""
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
    """Shared memory, written through its file.

    Writing through its mapping would take a page fault at every new page.
    """

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
