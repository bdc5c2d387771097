"""Raw ArrayRecord baseline: reads records one by one and discards their bytes."""

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from jaxload.data.manifest import Manifest
from jaxload.data.source import open_records

# By default, glibc returns the memory of each large record to the system and faults it
# in again page by page, three times as slow from 1 MB on. Raw is measured at its best.
_KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TRIM_THRESHOLD_": "1000000000",
}


@contextlib.contextmanager
def _keeping_memory() -> Iterator[None]:
    """Makes processes started within this context keep the memory that they free."""
    before = {name: os.environ.get(name) for name in _KEEP_MEMORY}
    os.environ.update(_KEEP_MEMORY)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _read(manifest: Manifest, pipe: Connection) -> None:
    """Receives lists of rows; reads each list when told to go."""
    records = open_records(manifest)
    while (rows := pipe.recv()) is not None:
        pipe.send("ready")
        pipe.recv()
        for row in rows:
            records[row]
        pipe.send("done")


class RawReaders:
    """Processes that each read a share of the micro-batches."""

    def __init__(self, manifest: Manifest, num_processes: int):
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(num_processes):
            here, there = context.Pipe()
            process = context.Process(target=_read, args=(manifest, there), daemon=True)
            with _keeping_memory():
                process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def seconds(self, batches: Sequence[list[int]]) -> float:
        """Returns the time until the last process has read its last record."""
        count = len(self._pipes)
        for i, pipe in enumerate(self._pipes):
            pipe.send([row for batch in batches[i::count] for row in batch])
        for pipe in self._pipes:
            assert pipe.recv() == "ready"
        start = time.perf_counter()
        for pipe in self._pipes:
            pipe.send("go")
        for pipe in self._pipes:
            assert pipe.recv() == "done"
        return time.perf_counter() - start

    def close(self) -> None:
        """Ends the processes."""
        for pipe in self._pipes:
            pipe.send(None)
            pipe.close()
        for process in self._processes:
            process.join()
