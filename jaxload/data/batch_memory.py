"""Allocates the arrays of a micro-batch, in the training process or a worker process.

A worker process passes large arrays to the training process in shared memory, and small
ones through a pipe.
"""

import abc
import ctypes
import math
import os

import grain
import numpy as np

from jaxload.data.record import BFLOAT16

MIN_SHARED_BYTES = 1 << 20
"""Smallest array to put in shared memory; for smaller ones, a pipe is faster."""

_SHARED = "/dev/shm"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # From mallopt(3).
_KEPT_BYTES, _MAX_MMAP_BYTES = 1 << 30, 32 << 20

_in_worker = False


def enter_worker(index: int, count: int) -> None:
    """Marks this process as a worker, and makes malloc keep freed memory."""
    global _in_worker
    _in_worker = True
    # Returning memory to the system and faulting it in again, page by page, would take
    # longer than reading a record.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # Only in glibc.
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAX_MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


class Buffer(abc.ABC):
    """Array in bfloat16 that is filled in chunks of bytes."""

    def __init__(self, array: np.ndarray):
        self.array = array

    @abc.abstractmethod
    def write(self, start: int, data: memoryview) -> None:
        """Copies bytes into the array, beginning at byte `start`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Releases the resources for writing; the array stays valid."""


def make_buffer(shape: tuple[int, ...]) -> Buffer:
    """Allocates an array of zeros; a large one in a worker goes to shared memory."""
    num_bytes = math.prod(shape) * BFLOAT16.itemsize
    if _in_worker and num_bytes >= MIN_SHARED_BYTES and os.path.isdir(_SHARED):
        return _Shared(shape)
    return _Plain(shape)


class _Plain(Buffer):
    def __init__(self, shape: tuple[int, ...]):
        super().__init__(np.zeros(shape, BFLOAT16))
        self._bytes = self.array.reshape(-1).view(np.uint8).data

    def write(self, start: int, data: memoryview) -> None:
        self._bytes[start : start + len(data)] = data

    def close(self) -> None:
        self._bytes.release()


class _Shared(Buffer):
    """Array in shared memory, written with `pwrite` to the file behind it.

    Writing to the mapped memory would cost a page fault for every new page.
    """

    def __init__(self, shape: tuple[int, ...]):
        array = grain.multiprocessing.SharedMemoryArray(shape, BFLOAT16)
        super().__init__(array)
        name = array.metadata.name.lstrip("/")
        self._file = open(f"{_SHARED}/{name}", "r+b", buffering=0)  # noqa: SIM115

    def write(self, start: int, data: memoryview) -> None:
        written = os.pwrite(self._file.fileno(), data, start)
        if written != len(data):
            raise OSError(f"{_SHARED}: no space for {len(data)} bytes")

    def close(self) -> None:
        self._file.close()
