"""Reads captions from text files beside the media and from tables of files."""

import csv
import io
import json
import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from jaxload.errors import InputError
from jaxload.media.problem import Problem

TABLE_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
FILE_COLUMNS = ("file_name", "file", "path", "video", "image")
CAPTION_COLUMNS = ("caption", "text", "prompt")


class Row(NamedTuple):
    """One row of a table of captions."""

    number: int
    """Number of the row in Parquet, or of its first line in a text file; from 1."""

    path: str
    caption: str | None
    """None if the cell is null, or empty in a CSV, which has no nulls."""


class _BadRow(NamedTuple):
    number: int
    reason: str


def clean(text: str) -> str:
    """Strips a caption and collapses each run of white space into one space.

    Line breaks count as white space, because editors wrap captions anywhere.
    """
    return " ".join(text.split())


def as_utf8(path: str | Path) -> str:
    """Returns a path as text, with bytes that are not UTF-8 escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def shown(path: str | Path) -> str:
    """Returns a path as text on one line, for messages."""
    return as_utf8(path).replace("\n", "\\n").replace("\r", "\\r")


class NameIndex:
    """Finds names by a key, which the function `key` derives from a name.

    Keys are compared exactly first, then in Unicode's NFC form: macOS writes file names
    in NFD, while tables of captions are mostly typed in NFC.
    """

    def __init__(self, names: Iterable[str], key: Callable[[str], str] = str):
        self._exact: dict[str, list[str]] = {}
        self.by_nfc: dict[str, list[str]] = {}
        for name in sorted(names):
            self._exact.setdefault(key(name), []).append(name)
            self.by_nfc.setdefault(_nfc(key(name)), []).append(name)

    def find(self, key: str) -> list[str]:
        """Returns the names that have this key, sorted."""
        return self._exact.get(key) or self.by_nfc.get(_nfc(key), [])


def read_text(path: Path) -> str:
    """Returns the caption in a text file; an empty file means an empty caption.

    A byte order mark is not part of the caption. Raises OSError, or UnicodeDecodeError
    if the file is not UTF-8.
    """
    return clean(path.read_bytes().decode("utf-8-sig"))


def read_table(path: Path, name: str) -> tuple[list[Row], list[Problem]]:
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
    for row in readers[suffix](path):
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


def _read_utf8(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{shown(path)}: expected a file of captions, got {error.strerror}; check "
            "the path and its permissions"
        ) from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{shown(path)}, line {line}: expected UTF-8, got the byte "
            f"{content[error.start]:#04x}; save the file as UTF-8"
        ) from error


def _column(path: Path, what: str, wanted: Sequence[str], found: list[str]) -> str:
    name = next((name for name in wanted if name in found), None)
    if name is None or found.count(name) > 1:
        raise InputError(
            f"{shown(path)}: expected one column with the {what}, called "
            f"{' or '.join(wanted)}, got the columns {found[:20]}; rename the columns, "
            "and in a CSV separate them by commas"
        )
    return name


def _make_row(number: int, path: object, caption: object) -> Row | _BadRow:
    """Returns a row, or the reason why its path or caption is invalid."""
    if not isinstance(path, str) or not path:
        return _BadRow(number, f"expected the path of a file, got {str(path)[:40]!r}")
    if caption is not None and not isinstance(caption, str):
        found = type(caption).__name__
        return _BadRow(number, f"expected text as the caption, got a {found}")
    try:
        # JSON can escape half of a surrogate pair, which UTF-8 cannot encode.
        f"{path}{caption}".encode()
    except UnicodeEncodeError:
        return _BadRow(number, "expected Unicode, got half of a surrogate pair")
    return Row(number, path, None if caption is None else clean(caption))


def _csv_rows(path: Path) -> Iterator[Row | _BadRow]:
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
            yield _make_row(number, cells[file], cells[caption].strip() or None)


def _csv_cells(path: Path) -> Iterator[tuple[int, list[str] | str]]:
    """Yields the number of each row's first line, and its cells or an error message."""
    # Strict: otherwise an unclosed quote makes the rest of the file one long caption.
    reader = csv.reader(io.StringIO(_read_utf8(path), newline=""), strict=True)
    width, last_line = 0, 0
    while True:
        line = last_line + 1
        try:
            row: list[str] | str = next(reader)
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


def _json_rows(path: Path) -> Iterator[Row | _BadRow]:
    # Not splitlines(), which also splits at U+2028, a valid character in JSON.
    for number, line in enumerate(_read_utf8(path).split("\n"), 1):
        if line and not line.isspace():
            yield _json_row(number, line)


def _json_row(number: int, line: str) -> Row | _BadRow:
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
            keys = [*record][:20]
            return _BadRow(number, f"expected {' or '.join(wanted)}, got {keys}")
        values.append(record[name])
    return _make_row(number, *values)


def _parquet_rows(path: Path) -> Iterator[Row | _BadRow]:
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
            table = parquet.read(columns=names)
        columns = [table[name].to_pylist() for name in names]
    except (pa.ArrowException, OSError, UnicodeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{shown(path)}: expected a Parquet file, got one that cannot be read "
            f"({reason}); copy or write it again"
        ) from error
    for number, (name, caption) in enumerate(zip(*columns, strict=True), 1):
        yield _make_row(number, name, caption)


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


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)
