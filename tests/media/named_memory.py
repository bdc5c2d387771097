"""Lists segments of shared memory that have a name, and so outlive their processes."""

import os


def named_memory() -> set[str]:
    """Returns the names in /dev/shm, without those of Python's multiprocessing.

    Tests that run at the same time use multiprocessing's semaphores and segments.
    """
    others = ("sem.mp-", "psm_")
    return {name for name in os.listdir("/dev/shm") if not name.startswith(others)}
