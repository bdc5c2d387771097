"""Runs a function in a separate process that is pinned to one core."""

import concurrent.futures
import multiprocessing
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

_T = TypeVar("_T")


def run(function: Callable[..., _T], *arguments: object) -> tuple[_T, int]:
    """Returns the function's result, and the peak memory of its process in bytes."""
    cores = os.sched_getaffinity(0)
    # The child inherits the affinity, so its libraries start threads for one core.
    os.sched_setaffinity(0, {max(cores)})
    try:
        with concurrent.futures.ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), pa.set_cpu_count, (1,)
        ) as pool:
            result = pool.submit(function, *arguments).result()
            return result, pool.submit(_peak_bytes).result()
    finally:
        os.sched_setaffinity(0, cores)


def _peak_bytes() -> int:
    # Not getrusage: its maximum includes the parent's memory at the time of the fork.
    status = Path("/proc/self/status").read_text()
    (kibibytes,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return 1024 * int(kibibytes)
