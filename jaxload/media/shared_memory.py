"""Memory that processes share, and that the kernel frees when they end."""

import bisect
import mmap
import os
from multiprocessing import reduction
from typing import Any

import numpy as np

_ALIGNMENT = 4_096


class SharedMemory:
    """Anonymous shared memory; pass it to a child process as an argument to share it.

    Unlike a segment in /dev/shm, the memory has no name. The kernel therefore frees it
    when the last process that maps it ends, even if all processes are killed.
    """

    def __init__(self, num_bytes: int, fd: int | None = None):
        self.num_bytes = num_bytes
        if fd is None:
            fd = os.memfd_create("jaxload-pixels", os.MFD_CLOEXEC)
            os.ftruncate(fd, num_bytes)
        self._fd = fd
        self._map = mmap.mmap(fd, num_bytes)

    def array(self, offset: int, shape: tuple[int, ...]) -> np.ndarray:
        """Returns the memory from `offset` on as an array of uint8."""
        count = int(np.prod(shape))
        return np.frombuffer(self._map, np.uint8, count, offset).reshape(shape)

    def close(self) -> None:
        """Closes the file descriptor; arrays that refer to the memory stay valid."""
        os.close(self._fd)

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (reduction.DupFd(self._fd), self.num_bytes)


def _attach(fd: Any, num_bytes: int) -> SharedMemory:
    return SharedMemory(num_bytes, fd.detach())


class Allocator:
    """Allocates and frees byte ranges of a memory."""

    def __init__(self, num_bytes: int):
        self._num_bytes = num_bytes
        self._used: list[tuple[int, int]] = []
        """Start and end of each range in use, ascending."""

    def allocate(self, num_bytes: int) -> int | None:
        """Allocates the first free range of a size and returns its start, or None."""
        start = 0
        for used_start, used_end in [*self._used, (self._num_bytes, 0)]:
            if used_start - start >= num_bytes:
                bisect.insort(self._used, (start, start + aligned(num_bytes)))
                return start
            start = used_end
        return None

    def free(self, offset: int) -> None:
        """Frees the range that starts at an offset."""
        del self._used[bisect.bisect_left(self._used, (offset, 0))]

    @property
    def num_used(self) -> int:
        """Number of bytes in use."""
        return sum(end - start for start, end in self._used)


def aligned(num_bytes: int) -> int:
    """Rounds a size up to the alignment of ranges."""
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
