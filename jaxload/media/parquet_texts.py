"""Reads columns of text from a Parquet file in bounded memory."""

from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

_ROWS = 1_024  # At a time.
_MAX_GROUP_BYTES = 1 << 30


def read_texts(
    file: BinaryIO, names: Sequence[str]
) -> Iterator[tuple[str | None, ...]]:
    """Yields the texts of each row.

    A text that repeats is stored once in the file. It is also held once in memory, so
    that a small file of long texts cannot fill the memory.

    Raises:
        ValueError: A group of rows claims more than 1 GiB of text.
    """
    with pq.ParquetFile(file, read_dictionary=list(names)) as parquet:
        for i in range(parquet.num_row_groups):
            _check_size(parquet.metadata.row_group(i), names)
        for batch in parquet.iter_batches(_ROWS, columns=list(names)):
            yield from zip(*(_texts(batch[name]) for name in names), strict=True)


def _check_size(group: pq.RowGroupMetaData, names: Sequence[str]) -> None:
    columns = (group.column(i) for i in range(group.num_columns))
    num_bytes = sum(
        column.total_uncompressed_size
        for column in columns
        if column.path_in_schema in names
    )
    if num_bytes > _MAX_GROUP_BYTES:
        raise ValueError(
            f"{num_bytes:,} bytes of text in one group of rows, at most "
            f"{_MAX_GROUP_BYTES:,}"
        )


def _texts(column: pa.Array) -> Iterator[str | None]:
    if not isinstance(column, pa.DictionaryArray):
        yield from column.to_pylist()
        return
    decoded: dict[int, str | None] = {}
    for index in column.indices.to_pylist():
        if index is None:
            yield None
            continue
        if index not in decoded:
            decoded[index] = column.dictionary[index].as_py()
        yield decoded[index]
