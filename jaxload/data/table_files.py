"""Reads the requested columns of CSV or Parquet files as record batches."""

import contextlib
import difflib
import functools
import sys
from collections.abc import Callable, Iterator, Set
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from jaxload.errors import InputError

SIZES = ("num_frames", "height", "width")
_MAX_WAITING_BAD_ROWS = 1_000_000
_CSV_BLOCK_BYTES = 1 << 24
_PARQUET_BUFFER_BYTES = 1 << 20


def read_batches(
    path: Path, wanted: Set[str], chunk_rows: int
) -> Iterator[tuple[Path, int, pa.RecordBatch]]:
    """Yields each batch of the wanted columns, with its file and first row number."""
    first, columns = 0, None
    for file in _files(path):
        with _reading(file):
            previous, columns = columns, _find_columns(file)
            if previous not in (None, columns):
                raise InputError(
                    f"{file}: expected the columns {[*previous.values()]} as in the "
                    f"file before, got {[*columns.values()]}; write the same columns"
                )
            names = {ours: name for ours, name in columns.items() if ours in wanted}
            batches_of = _csv_batches if _is_csv(file) else _parquet_batches
            for batch in batches_of(file, [*names.values()], chunk_rows):
                yield file, first, batch.rename_columns([*names])
                first += batch.num_rows
    if first == 0:
        raise _empty(path)


def stated_num_rows(path: Path) -> int:
    """Returns the number of rows in the metadata of Parquet files; 0 for a CSV file."""
    return sum(map(_stated_num_rows, _files(path)))


def _files(path: Path) -> list[Path]:
    expected = "expected a .csv or .parquet file or a directory of .parquet files"
    if not path.exists():
        raise InputError(f"manifest {path}: {expected}, found none; check the path")
    if path.is_dir():
        files = sorted(path.glob("[!._]*.parquet"))
        if not files:
            raise InputError(
                f"manifest {path}: {expected}, got a directory without any; check "
                "the path"
            )
        return files
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(
            f"manifest {path}: {expected}, got {path.suffix!r}; convert the file"
        )
    return [path]


def _is_csv(file: Path) -> bool:
    return file.suffix.lower() == ".csv"


def _empty(path: Path) -> InputError:
    return InputError(
        f"{path}: empty manifest: expected at least one row, got none; check the path, "
        "or write the manifest again"
    )


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Converts errors of pyarrow to an InputError that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError) as error:
        reason = " ".join(str(error).split())[:200]
        if "Empty CSV" in reason:
            raise _empty(file) from error
        if _is_csv(file):
            raise InputError(
                f"{file}: expected CSV in UTF-8, got a file that cannot be read "
                f"({reason}); look for a quote that is not closed, or export the file "
                "again"
            ) from error
        raise InputError(
            f"{file}: not a Parquet file, or damaged ({reason}); copy or write it again"
        ) from error


def _stated_num_rows(file: Path) -> int:
    with _reading(file):
        return 0 if _is_csv(file) else pq.read_metadata(file).num_rows


def _find_columns(file: Path) -> dict[str, str]:
    """Maps our names of columns to the names in a file, a manifest or a histogram."""
    found = _csv_names(file) if _is_csv(file) else pq.read_schema(file).names
    columns = {name: name for name in ("id", *SIZES, "fps")}
    if "count" in found and "id" not in found:
        columns = {name: name for name in (*SIZES, "count")}
        if "num_frames" not in found and "frames" in found:
            columns["num_frames"] = "frames"
        if "fps" in found:
            columns["fps"] = "fps"
    for name in columns.values():
        if found.count(name) != 1:
            others = [other for other in found if other not in columns]
            close = difflib.get_close_matches(name, others, n=1)
            raise InputError(
                f"{file}: expected one column {name!r}, got {found.count(name)} among "
                f"{found[:20]!r:.300}; "
                + (f"did you mean {close[0]!r}? " if close else "")
                + "A manifest has id, num_frames, height, width and fps; a histogram "
                "has no id but count"
            )
    return columns


def _csv_names(file: Path) -> list[str]:
    # Closed, because threads that read ahead may abort the process when it ends.
    with _open_csv(file) as reader:
        return reader.schema.names


def _parquet_batches(
    file: Path, names: list[str], chunk_rows: int
) -> Iterator[pa.RecordBatch]:
    # Without a buffer size, pyarrow reads whole columns of a row group at once.
    with pq.ParquetFile(file, buffer_size=_PARQUET_BUFFER_BYTES) as parquet:
        for batch in parquet.iter_batches(chunk_rows, columns=names):
            yield batch.select(names)


def _open_csv(
    file: Path,
    names: list[str] | None = None,
    on_bad_row: Callable[[pa_csv.InvalidRow], str] = lambda row: "skip",
) -> pa_csv.CSVStreamingReader:
    # Read as text, because an invalid cell must not end the reading. Dictionaries,
    # because the few distinct texts then have to be parsed only once.
    _silence()
    types = {name: pa.dictionary(pa.int32(), pa.string()) for name in names or ()}
    return pa_csv.open_csv(
        file,
        # With threads, pyarrow does not know the number of a bad row.
        pa_csv.ReadOptions(use_threads=False, block_size=_CSV_BLOCK_BYTES),
        pa_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=on_bad_row),
        pa_csv.ConvertOptions(
            include_columns=names,
            column_types=types | {"id": pa.string()},
        ),
    )


@functools.cache
def _silence() -> None:
    """Leaves out errors that pyarrow prints about rows that are not UTF-8.

    For the rest of the process: pyarrow cannot pass the text of such a row to the
    handler of bad rows, prints an error, and then refuses the file.
    """
    show = sys.unraisablehook

    def show_others(unraisable: "sys.UnraisableHookArgs") -> None:
        is_handler = getattr(unraisable.object, "__module__", "") == __name__
        if not (is_handler and isinstance(unraisable.exc_value, UnicodeDecodeError)):
            show(unraisable)

    sys.unraisablehook = show_others


def _csv_batches(
    file: Path, names: list[str], chunk_rows: int
) -> Iterator[pa.RecordBatch]:
    del chunk_rows  # Blocks of a CSV are bounded in bytes instead.
    bad: list[int] = []

    def note(row: pa_csv.InvalidRow) -> str:
        # A line break is a sign of an unclosed quote, which may hide many rows.
        if "\n" in row.text or len(bad) == _MAX_WAITING_BAD_ROWS:
            return "error"
        bad.append(row.number - 2)  # pyarrow counts from 1, with the header.
        return "skip"

    with _open_csv(file, names, note) as reader:
        first = 0
        for batch in reader:
            whole = _insert_bad_rows(batch, bad, first)
            yield whole
            first += whole.num_rows
        if bad:
            rest = pa.RecordBatch.from_pylist([], schema=reader.schema)
            yield _insert_bad_rows(rest, bad, first)


def _insert_bad_rows(
    batch: pa.RecordBatch, bad: list[int], first: int
) -> pa.RecordBatch:
    """Inserts a row of nulls for each bad row in the batch and removes it from `bad`.

    `bad` may also list rows after the batch, because the reader parses ahead.
    """
    num_good_before = np.array(bad, np.int64) - first - np.arange(len(bad))
    here = num_good_before[num_good_before <= batch.num_rows]
    if not here.size:
        return batch
    del bad[: here.size]
    order = np.insert(np.arange(batch.num_rows), here, -1)
    return batch.take(pa.array(order, mask=order < 0))
