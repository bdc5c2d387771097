"""Reads a manifest or a histogram of media for planning, in chunks of rows."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jaxload.data.manifest_metadata import FILE_NAME, METADATA_KEY
from jaxload.data.table_cells import read_ids, read_numbers
from jaxload.data.table_files import SIZES, read_batches
from jaxload.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """A chunk of rows, as columns; values are not validated."""

    num_frames: np.ndarray
    """Number of frames. This and the next three columns are float64, with NaN for a
    cell that is empty or not a number."""

    height: np.ndarray
    width: np.ndarray
    fps: np.ndarray
    """Frames per second; 0 for images."""

    count: np.ndarray
    """Number of samples per row, in int64; always 1 except in a histogram."""

    first: int
    """Number of the first row, from 0, counted through the files of a directory."""

    ids: pa.StringArray | None
    """Ids, "" if missing; None for a histogram, or if they were not requested."""

    at_model_rate: bool = False
    """True for a histogram without fps, which counts frames at the model's frame rate;
    `fps` is then NaN."""

    def __len__(self) -> int:
        return len(self.num_frames)


def is_prepared(path: Path) -> bool:
    """Returns whether `path` is the directory of a dataset that jaxload prepared."""
    try:
        metadata = pq.read_schema(path / FILE_NAME).metadata
    except (OSError, pa.ArrowException):
        return False
    return METADATA_KEY in (metadata or {})


def read_rows(
    path: Path, *, with_ids: bool = False, chunk_rows: int = 1_000_000
) -> Iterator[Rows]:
    """Reads a manifest or a histogram, at most `chunk_rows` rows at a time.

    A manifest has the columns id, num_frames, height, width and fps; a histogram has
    num_frames (or frames), height, width, count and perhaps fps, and no id. Other
    columns are ignored. A CSV row with too few or too many cells becomes NaN.

    Args:
        path: A .csv or .parquet file, or a directory of .parquet files, which are
            read in the order of their names.
        with_ids: Whether to read the ids too, which takes longer.
        chunk_rows: Most rows per chunk, which bounds the memory.

    Raises:
        InputError: If the file as a whole is unusable; raised while iterating.
    """
    wanted = {*SIZES, "fps", "count"} | ({"id"} if with_ids else set())
    for file, first, batch in read_batches(path, wanted, chunk_rows):
        rows = _to_rows(file, first, batch)
        for start in range(0, len(rows), chunk_rows):
            yield _slice(rows, start, start + chunk_rows)


def _to_rows(file: Path, first: int, batch: pa.RecordBatch) -> Rows:
    columns = {
        name: read_numbers(batch[name], f"{file}: column {name!r}")
        for name in batch.schema.names
        if name != "id"
    }
    count = columns.pop("count", None)
    at_model_rate = "fps" not in columns
    if at_model_rate:
        columns["fps"] = np.full(batch.num_rows, np.nan)
    if count is None:
        count = np.ones(batch.num_rows)
    wrong = np.flatnonzero(
        ~((count >= 0) & (count == np.floor(count)) & (count < 2**53))
    )
    if wrong.size:
        raise InputError(
            f"{file}: row {first + wrong[0]}: expected a whole number as count, got "
            f"{count[wrong[0]]}; correct the row"
        )
    return Rows(
        **columns,
        count=count.astype(np.int64),
        first=first,
        ids=read_ids(file, batch),
        at_model_rate=at_model_rate,
    )


def _slice(rows: Rows, start: int, stop: int) -> Rows:
    if start == 0 and stop >= len(rows):
        return rows
    names = (*SIZES, "fps", "count")
    return dataclasses.replace(
        rows,
        first=rows.first + start,
        ids=None if rows.ids is None else rows.ids[start:stop],
        **{name: getattr(rows, name)[start:stop] for name in names},
    )
