"""Checks that the ids of a manifest are unique, and labels its rows for messages."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from jaxload.data.table_cells import read_ids
from jaxload.data.table_files import read_batches, stated_num_rows
from jaxload.errors import InputError

MAX_CHECKED_IDS = 20_000_000
_MAX_SUSPECTS = 1_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class IdCheck:
    """Result of `check_ids` for a manifest without repeated ids."""

    checked: bool
    """False if the manifest is a histogram, or too long to be checked."""

    num_rows: int
    """Number of rows; a lower bound for a CSV file that is too long."""

    num_missing: int = 0
    """Number of checked rows without an id."""


def check_ids(path: Path) -> IdCheck:
    """Raises InputError if two rows share an id.

    A manifest of more than `MAX_CHECKED_IDS` rows is not checked.
    """
    num_rows = stated_num_rows(path)
    if num_rows > MAX_CHECKED_IDS:
        return IdCheck(checked=False, num_rows=num_rows)
    has_ids, num_missing, hashes = True, 0, []
    for first, num_new, ids in _ids(path):
        num_rows = first + num_new
        if num_rows > MAX_CHECKED_IDS:
            return IdCheck(checked=False, num_rows=num_rows)
        if ids is None:
            has_ids = False
            continue
        hashes.append(_hash(ids[ids != ""]))
        num_missing += num_new - len(hashes[-1])
    if has_ids:
        suspects, num_repeats = _find_repeats(np.concatenate(hashes))
        if num_repeats:
            _raise_if_equal(path, suspects, num_repeats)
    return IdCheck(checked=has_ids, num_rows=num_rows, num_missing=num_missing)


def row_labels(path: Path, numbers: Sequence[int]) -> list[str]:
    """Returns labels of rows for messages, such as `row 17 (id 'abc')`, in order."""
    labels: dict[int, str] = {}
    waiting = sorted(set(numbers), reverse=True)
    for first, num_new, ids in _ids(path) if waiting else ():
        while waiting and waiting[-1] < first + num_new:
            number = waiting.pop()
            labels[number] = f"row {number}"
            if ids is not None:
                text = ids[number - first]
                labels[number] += f" (id {text!r:.80})" if text else " (no id)"
        if not waiting:
            break
    return [labels[number] for number in numbers]


def _ids(path: Path) -> Iterator[tuple[int, int, np.ndarray | None]]:
    """Yields the first row number, the number of rows and the ids of each batch."""
    # Also reads `count`, because a histogram has no `id` to read.
    for file, first, batch in read_batches(path, {"id", "count"}, 1_000_000):
        ids = read_ids(file, batch)
        texts = None if ids is None else ids.to_numpy(zero_copy_only=False)
        yield first, batch.num_rows, texts


def _hash(ids: np.ndarray) -> np.ndarray:
    return np.fromiter(map(hash, ids), np.int64, len(ids))


def _find_repeats(hashes: np.ndarray) -> tuple[np.ndarray, int]:
    """Returns some hashes that occur repeatedly, and the total number of repeats."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    repeats = np.sort(order[1:][ordered[1:] == ordered[:-1]])
    return hashes[repeats[:_MAX_SUSPECTS]], repeats.size


def _raise_if_equal(path: Path, suspects: np.ndarray, num_repeats: int) -> None:
    """Reads the ids again, and raises if ids with equal hashes are indeed equal."""
    first_rows: dict[str, int] = {}
    found: list[str] = []
    for first, _, ids in _ids(path):
        assert ids is not None
        for i in np.flatnonzero(np.isin(_hash(ids), suspects)):
            row = first_rows.setdefault(ids[i], int(first + i))
            if ids[i] and row != first + i and len(found) < 3:
                found.append(f"{ids[i]!r:.80} (rows {row} and {first + i})")
        if len(found) == 3:
            break
    if found:
        raise InputError(
            f"{path}: expected every id once, got repeats, {num_repeats} in all: "
            f"{', '.join(found)}{', ...' if num_repeats > 3 else ''}; "
            "remove the rows or rename them"
        )
