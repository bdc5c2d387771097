"""Writes the ArrayRecord shards of a dataset."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from array_record.python.array_record_module import ArrayRecordWriter

from jaxload.errors import InputError

# One record per group, so that a reader reads only the requested record. Compression
# would save little, as latents hardly compress, and slow down every read.
_OPTIONS = "group_size:1,uncompressed"


class ShardWriter:
    """Writes records to a file; raises InputError if the disk is full."""

    def __init__(self, path: Path):
        self._path = path
        with self._input_errors():
            self._writer = ArrayRecordWriter(str(path), _OPTIONS)

    def write(self, record: bytes) -> None:
        """Appends a record."""
        with self._input_errors():
            self._writer.write(record)

    def close(self) -> None:
        """Writes the end of the file, without which it cannot be read."""
        with self._input_errors():
            self._writer.close()

    @contextlib.contextmanager
    def _input_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # The only type that ArrayRecord raises.
            raise InputError(
                f"{self._path.parent}: a shard cannot be written ({error}); free "
                "disk space and run the same command again; finished parts are kept"
            ) from error
