"""Converts table cells of any type: numbers to float64, ids to text."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from jaxload.errors import InputError


def read_numbers(cells: pa.Array, what: str) -> np.ndarray:
    """Converts cells of any type to float64; `what` names the cells in messages."""
    if _is_text(cells.type):
        cells = cells.dictionary_encode()
    if not pa.types.is_dictionary(cells.type):
        return _plain_numbers(cells, what)
    values = np.append(_plain_numbers(cells.dictionary, what), np.nan)
    return values[cells.indices.cast(pa.int64()).fill_null(-1).to_numpy()]


def read_ids(file: Path, batch: pa.RecordBatch) -> pa.StringArray | None:
    """Returns the ids of a batch, "" where missing; None if there is no id column."""
    if "id" not in batch.schema.names:
        return None
    cells = batch["id"]
    try:
        return cells.cast(pa.string()).fill_null("")
    except pa.ArrowException as error:
        raise InputError(
            f"{file}: column 'id': expected text in UTF-8, got {cells.type}; write it "
            "as text"
        ) from error


def _is_text(data_type: pa.DataType) -> bool:
    return pa.types.is_string(data_type) or pa.types.is_large_string(data_type)


def _plain_numbers(cells: pa.Array, what: str) -> np.ndarray:
    data_type = cells.type
    if _is_text(data_type):
        texts = cells.to_numpy(zero_copy_only=False)
        return np.fromiter((_parse(text, what) for text in texts), float, len(texts))
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    if not pa.types.is_null(data_type) and not any(
        check(data_type) for check in checks
    ):
        raise InputError(
            f"{what}: expected numbers, got {data_type}; write it as numbers"
        )
    floats = cells.cast(pa.float64(), safe=False).fill_null(np.nan)
    return floats.to_numpy(zero_copy_only=False)


def _parse(text: str | None, what: str) -> float:
    if text is None or "_" in text:  # Python accepts "_" between digits.
        return np.nan
    if "\n" in text:
        raise InputError(
            f"{what}: expected a number, got {text[:40]!r}, which has a line break; "
            "look for a quote that is not closed"
        )
    try:
        return float(text)
    except ValueError:
        return np.nan
