"""Reads captions from tables of files: .csv, .jsonl and .parquet."""

import codecs
import contextlib
import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from jaxload.codecs.text_encoder import MAX_CHARACTERS
from jaxload.errors import InputError
from jaxload.media.captions import Caption, cut, shown
from jaxload.media.parquet_texts import read_texts
from jaxload.media.problem import Problem

TABLE_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
FILE_COLUMNS = ("file_name", "file", "path", "video", "image")
CAPTION_COLUMNS = ("caption", "text", "prompt")

# Longest line and cell of a table, in characters: the file may be no table at all, or
# lack a closing quote.
_MAX_LINE = 1 << 22

_MAX_PATH = 4_096  # Characters of a path: more than a file system takes.
_CHUNK = 1 << 20


class Row(NamedTuple):
    """One row of a table of captions."""

    number: int
    """Number of the row in Parquet, or of its first line in a text file; from 1."""

    path: str
    caption: Caption | None
    """None if the cell is null, or empty in a CSV, which has no nulls."""


class _Cells(NamedTuple):
    """Two cells of a row, as they are in the table."""

    number: int
    path: object
    caption: object


class _BadRow(NamedTuple):
    number: int
    reason: str


def read_table(
    path: Path, name: str, max_characters: int = MAX_CHARACTERS
) -> tuple[list[Row], list[Problem]]:
    """Reads captions from a .csv, .jsonl or .parquet file, called `name` in problems.

    Returns the rows, and a problem for each row that cannot be read. Raises InputError
    if the whole file is unusable, or if an unclosed quote may have swallowed rows.
    """
    readers = {".csv": _csv_rows, ".jsonl": _json_rows, ".parquet": _parquet_rows}
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise InputError(
            f"{shown(path)}: expected captions in a {', '.join(readers)} file, got "
            f"{suffix!r}; convert the file"
        )
    rows: list[Row] = []
    bad: list[_BadRow] = []
    for cells in readers[suffix](path):
        row = cells if isinstance(cells, _BadRow) else _make_row(cells, max_characters)
        bad.append(row) if isinstance(row, _BadRow) else rows.append(row)
    unit = "row" if suffix == ".parquet" else "line"
    if bad and not rows:
        raise InputError(
            f"{shown(path)}: no row can be read; {unit} {bad[0].number}: "
            f"{bad[0].reason}; fix the file, or remove it from the folder"
        )
    return rows, [
        Problem(
            name=name,
            reason="metadata row cannot be read",
            detail=f"{unit} {row.number}: {row.reason}",
            bad=False,
        )
        for row in bad
    ]


@contextlib.contextmanager
def _lines(path: Path, newline: str) -> Iterator[Iterator[str]]:
    """Opens a file of UTF-8 and yields its lines, with their ends.

    Lines end at any line end if `newline` is empty, as in a file that Python opens.
    Raises InputError if the file is not UTF-8, cannot be read, or has no short lines.
    """
    try:
        with path.open("rb") as file:
            _check_utf8(path, file)
            file.seek(0)
            text = io.TextIOWrapper(file, "utf-8-sig", newline=newline)
            yield _short_lines(path, text)
    except OSError as error:
        raise InputError(
            f"{shown(path)}: expected a file of captions, got {error.strerror}; check "
            "the path and its permissions"
        ) from error


def _short_lines(path: Path, text: io.TextIOBase) -> Iterator[str]:
    number = 0
    while line := text.readline(_MAX_LINE):
        number += 1
        if len(line) == _MAX_LINE:
            raise InputError(
                f"{shown(path)}, line {number}: expected lines of less than "
                f"{_MAX_LINE:,} characters, got a longer one; save the file as text"
            )
        yield line


def _check_utf8(path: Path, file: BinaryIO) -> None:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    line = 1
    while True:
        chunk = file.read(_CHUNK)
        try:
            decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            # Bytes of a character that an earlier chunk began hold no line end.
            line += error.object.count(b"\n", 0, error.start)
            raise InputError(
                f"{shown(path)}, line {line}: expected UTF-8, got the byte "
                f"{error.object[error.start]:#04x}; save the file as UTF-8"
            ) from error
        if not chunk:
            return
        line += chunk.count(b"\n")


def _column(path: Path, what: str, wanted: Sequence[str], found: list[str]) -> str:
    name = next((name for name in wanted if name in found), None)
    if name is None or found.count(name) > 1:
        raise InputError(
            f"{shown(path)}: expected one column with the {what}, called "
            f"{' or '.join(wanted)}, got the columns {_start(found)}; rename the "
            "columns, and in a CSV separate them by commas"
        )
    return name


def _start(names: list[str]) -> str:
    return str(names[:20])[:200]


def _make_row(cells: _Cells, max_characters: int) -> Row | _BadRow:
    """Returns a row, or the reason why its path or caption is invalid."""
    number, path, caption = cells
    if not isinstance(path, str) or not path:
        return _BadRow(number, f"expected the path of a file, got {str(path)[:40]!r}")
    if len(path) > _MAX_PATH:
        found = f"{len(path):,}: {path[:40]!r}"
        return _BadRow(
            number, f"expected a path of at most {_MAX_PATH:,} characters, got {found}"
        )
    if caption is not None and not isinstance(caption, str):
        found = type(caption).__name__
        return _BadRow(number, f"expected text as the caption, got a {found}")
    try:
        # JSON can escape half of a surrogate pair, which UTF-8 cannot encode.
        f"{path}{caption}".encode()
    except UnicodeEncodeError:
        return _BadRow(number, "expected Unicode, got half of a surrogate pair")
    return Row(number, path, None if caption is None else cut(caption, max_characters))


def _csv_rows(path: Path) -> Iterator[_Cells | _BadRow]:
    cells_by_row = _csv_cells(path)
    first = next(cells_by_row, (1, []))[1]
    header = [cell.strip() for cell in first] if isinstance(first, list) else [first]
    file = header.index(_column(path, "file", FILE_COLUMNS, header))
    caption = header.index(_column(path, "caption", CAPTION_COLUMNS, header))
    for number, cells in cells_by_row:
        if isinstance(cells, str):
            yield _BadRow(number, cells)
        else:
            # pandas and others write a missing caption as an empty cell.
            yield _Cells(number, cells[file], cells[caption].strip() or None)


def _csv_cells(path: Path) -> Iterator[tuple[int, list[str] | str]]:
    """Yields the number of each row's first line, and its cells or an error message."""
    with _lines(path, newline="") as lines:  # Cells may contain any line end.
        # Strict: otherwise an unclosed quote makes the rest of the file one caption.
        yield from _checked_rows(path, csv.reader(lines, strict=True))


def _checked_rows(path: Path, reader: Any) -> Iterator[tuple[int, list[str] | str]]:
    width, last_line = 0, 0
    while True:
        line = last_line + 1
        try:
            row = _next_row(reader)
        except StopIteration:
            return
        except csv.Error as error:
            row = str(error)
        last_line = reader.line_num
        width = width or len(row)
        if isinstance(row, list) and row and len(row) != width:
            row = f"expected {width} cells, got {len(row)}"
        if isinstance(row, str) and last_line > line:
            raise InputError(
                f"{shown(path)}, line {line}: expected one row, got text up to line "
                f"{last_line} ({row}); look for a quote that is not closed"
            )
        if row:
            yield line, row


def _next_row(reader: Any) -> list[str] | str:
    """Reads a row with long cells, which the CSV module refuses by default."""
    limit = csv.field_size_limit(_MAX_LINE)
    try:
        return next(reader)
    finally:
        csv.field_size_limit(limit)  # The limit applies to the whole process.


def _json_rows(path: Path) -> Iterator[_Cells | _BadRow]:
    with _lines(path, newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            if not line.isspace():
                yield _json_row(number, line)


def _json_row(number: int, line: str) -> _Cells | _BadRow:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return _BadRow(number, f"expected a JSON object, got invalid JSON ({error})")
    if not isinstance(record, dict):
        return _BadRow(number, f"expected a JSON object, got {line[:40]!r}")
    values: list[object] = []
    for wanted in (FILE_COLUMNS, CAPTION_COLUMNS):
        # Chosen for each row, as one file may list {"video": ...} and {"image": ...}.
        name = next((name for name in wanted if name in record), None)
        if name is None:
            keys = _start([*record])
            return _BadRow(number, f"expected {' or '.join(wanted)}, got {keys}")
        values.append(record[name])
    return _Cells(number, *values)


def _parquet_rows(path: Path) -> Iterator[_Cells | _BadRow]:
    try:
        # Opened here, because pyarrow accepts only paths in UTF-8.
        with path.open("rb") as file, pq.ParquetFile(file) as parquet:
            schema = parquet.schema_arrow
            names = [
                _column(path, "file", FILE_COLUMNS, schema.names),
                _column(path, "caption", CAPTION_COLUMNS, schema.names),
            ]
            for name in names:
                _check_text(path, name, schema.field(name).type)
        with path.open("rb") as file:
            for number, texts in enumerate(read_texts(file, names), start=1):
                yield _Cells(number, *texts)
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{shown(path)}: expected a Parquet file, got one that cannot be read "
            f"({reason}); copy or write it again"
        ) from error


def _check_text(path: Path, name: str, data_type: pa.DataType) -> None:
    value = (
        data_type.value_type if isinstance(data_type, pa.DictionaryType) else data_type
    )
    texts = (pa.string(), pa.large_string(), pa.string_view(), pa.null())
    if value not in texts:
        raise InputError(
            f"{shown(path)}: expected text in the column {name!r}, got {data_type}; "
            "write it as strings"
        )
