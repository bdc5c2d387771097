"""Digests of a checkpoint's files, which show damage before anything is restored."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jaxload.errors import InputError
from jaxload.files import read_json, write_atomically

FILE_NAME = "digests.json"

MARK = {"digests": FILE_NAME}
"""Custom metadata of a checkpoint that has digests; older versions wrote none."""

_METADATA = "_CHECKPOINT_METADATA"
_WRITTEN_LAST = (_METADATA, "commit_success.txt")
"""Files that Orbax writes when it commits a checkpoint, after all others."""

_NUM_THREADS = 4  # Hashing releases Python's global lock.
_DAMAGED = "the file is damaged"


class DamagedError(InputError):
    """Damaged file of a checkpoint, named by the message; a caller adds the remedy."""


def write_digests(directory: Path) -> None:
    """Writes the size and digest of each file, before Orbax commits the directory."""
    late = {directory / name for name in _WRITTEN_LAST}
    _write(directory, [path for path in _files(directory) if path not in late], {})


def seal_digests(directory: Path) -> None:
    """Adds the files that Orbax wrote when it committed the directory."""
    known = read_json(directory / FILE_NAME, remedy=_DAMAGED)
    _write(directory, [directory / name for name in _WRITTEN_LAST], known)


def check_digests(directory: Path, *, on_file: Callable[[], object]) -> bool:
    """Compares all files with their digests; returns False if there are no digests.

    Calls `on_file` after each file.

    Raises:
        DamagedError: A file is missing or changed; the message names the file.
    """
    expected = _read(directory)
    if expected is None:
        return False
    present = {_name(directory, path) for path in _files(directory)}
    for name in expected:
        if name not in present:
            raise DamagedError(
                f"{directory}: expected its file {name!r:.200}, found none"
            )
    paths = [directory / name for name in expected]
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        for path, found in zip(paths, pool.map(_describe, paths), strict=True):
            _compare(path, expected[_name(directory, path)], found)
            on_file()
    return True


def num_files(directory: Path) -> int:
    """Returns the number of files that `check_digests` compares."""
    return len(_read(directory) or ())


def require_file(path: Path) -> None:
    """Raises DamagedError if a file is missing or empty."""
    if not path.is_file():
        raise _missing(path)
    if not path.stat().st_size:
        raise DamagedError(f"{path}: expected content, got an empty file")


def read_checked(path: Path) -> dict[str, Any]:
    """Reads a JSON file of a checkpoint; raises DamagedError if that fails."""
    require_file(path)
    try:
        return read_json(path, remedy=_DAMAGED)
    except InputError as error:
        raise DamagedError(str(error)) from error


def _read(directory: Path) -> dict[str, Any] | None:
    """Returns the descriptions of files by name; None for an older checkpoint."""
    path = directory / FILE_NAME
    if path.exists():
        found = read_checked(path)
        if not found:
            raise DamagedError(f"{path}: expected digests, got none")
        return found
    metadata = directory / _METADATA
    if not metadata.exists():
        return None
    if read_checked(metadata).get("custom_metadata") == MARK:
        raise _missing(path)
    return None


def _write(directory: Path, paths: Iterable[Path], known: dict[str, Any]) -> None:
    paths = list(paths)
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        found = list(pool.map(_describe, paths))
    names = [_name(directory, path) for path in paths]
    content = known | dict(zip(names, found, strict=True))
    write_atomically(directory / FILE_NAME, json.dumps(content, indent=2) + "\n")


def _describe(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return {"bytes": file.tell(), "sha256": digest}
    except OSError as error:
        raise DamagedError(f"{path}: cannot be read ({error.strerror})") from error


def _compare(path: Path, expected: Any, found: dict[str, Any]) -> None:
    if expected == found:
        return
    for key, got in found.items():
        want = expected.get(key) if isinstance(expected, dict) else expected
        if want != got:
            raise DamagedError(
                f"{path}: expected {key}={want!r:.80}, got {got!r}: the file, or "
                f"{FILE_NAME}, is damaged"
            )
    raise DamagedError(
        f"{path}: expected its size and digest in {FILE_NAME}, got {expected!r:.80}"
    )


def _missing(path: Path) -> DamagedError:
    return DamagedError(f"{path}: expected a file of the checkpoint, found none")


def _files(directory: Path) -> list[Path]:
    # Ignores directories that vanish, as those of a checkpoint that a run removes.
    found = os.walk(directory)
    paths = sorted(Path(parent, name) for parent, _, names in found for name in names)
    return [path for path in paths if path != directory / FILE_NAME]


def _name(directory: Path, path: Path) -> str:
    return path.relative_to(directory).as_posix()
