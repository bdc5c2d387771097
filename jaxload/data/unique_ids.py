"""Refuses a manifest in which two samples share an id."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from jaxload.errors import InputError

_BATCH_ROWS = 1 << 16


def check_unique_ids(path: Path, is_masked: np.ndarray) -> None:
    """Raises InputError if two rows that are not masked share an id.

    Args:
        path: File of the manifest.
        is_masked: True for each masked row, whose id may be that of another row.
    """
    # Hashes take a tenth of the memory of millions of ids.
    hashes = [np.zeros(0, np.int64)]
    for ids, _ in _used_rows(path, is_masked):
        hashes.append(np.fromiter(map(hash, ids), np.int64, len(ids)))
    ordered = np.sort(np.concatenate(hashes))
    suspects = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    if not suspects:
        return
    source_of: dict[str, str] = {}
    for ids, sources in _used_rows(path, is_masked):
        for name, source in zip(ids, sources, strict=True):
            if hash(name) not in suspects:
                continue
            if name in source_of:
                raise InputError(shared_id(source_of[name], source, name))
            source_of[name] = source


def shared_id(one: str, other: str, name: str) -> str:
    """Returns the message about two files with samples of one id."""
    return (
        f"media files {one!r} and {other!r}: both have a sample with the id {name!r}, "
        "because the id of a clip is its file, @ and its first frame; rename one of "
        "the files"
    )


def _used_rows(
    path: Path, is_masked: np.ndarray
) -> Iterator[tuple[list[str], list[str]]]:
    """Yields ids and sources of the rows that are not masked, in batches."""
    first = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_BATCH_ROWS, columns=["id", "source"]):
            used = ~is_masked[first : first + len(batch)]
            first += len(batch)
            columns = [
                batch[name].filter(used).to_pylist() for name in ("id", "source")
            ]
            yield columns[0], columns[1]
