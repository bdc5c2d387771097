"""History of a dataset's media: their first listing, and every update since.

The first listing and each update is one table. A table of an update has a row for each
file that differs from the state before. Tables are written once and never changed, so
all machines that share a preparation see the same history.

The files that an update encodes form parts of their own, which are numbered after the
parts of earlier updates. A part is never encoded again for files that changed: the
newer version of a file belongs to a newer part, and the rows of the older version are
masked.
"""

import bisect
import dataclasses
import enum
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jaxload.errors import InputError
from jaxload.files import replaced, written_once
from jaxload.media.listing import MediaFile
from jaxload.media.parts import MIN_PARTS, MIN_PARTS_OF_UPDATE, cut_into_parts


class Change(enum.StrEnum):
    """Difference of a file from the state before."""

    NEW = "new"
    CHANGED = "changed"
    RECAPTIONED = "recaptioned"
    RETRIED = "retried"
    """Unchanged, but tried again because it failed before."""

    REMOVED = "removed"
    SEEN = "seen"
    """Unchanged, with another time stamp."""


ENCODED = frozenset({Change.NEW, Change.CHANGED, Change.RECAPTIONED, Change.RETRIED})
"""Changes for which a file is encoded."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileChange:
    """One row of an update."""

    change: Change
    file: MediaFile
    digest: str | None = None
    """Digest of the content, if the update had to compare contents."""


def encoded_by(update: Iterable[FileChange]) -> frozenset[str]:
    """Returns the names of the files that an update encodes."""
    return frozenset(row.file.name for row in update if row.change in ENCODED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnownFile:
    """State of a file after an update."""

    file: MediaFile
    change: Change
    part: int
    """Part that encodes the file."""

    digest: str | None
    """Digest of the content; None if it is only in the scans of the part."""


class History:
    """State of the media after some updates, the first of which is the first listing.

    Attributes:
        updates: The updates.
        parts: Files of each part, as they were when the part was made.
        files: State of each file that exists after the last update.
    """

    def __init__(self, updates: Iterable[Sequence[FileChange]]):
        self.updates: tuple[Sequence[FileChange], ...] = ()
        self.parts: tuple[tuple[MediaFile, ...], ...] = ()
        self.files: dict[str, KnownFile] = {}
        self._num_parts = [0]  # After 0, 1, 2 ... updates.
        for update in updates:
            self._apply(update)
            self._num_parts.append(len(self.parts))

    def num_parts(self, num_updates: int) -> int:
        """Returns the number of parts after the first `num_updates` updates."""
        return self._num_parts[num_updates]

    def parts_of(self, update: int) -> range:
        """Returns the parts that an update encodes."""
        return range(self._num_parts[update], self._num_parts[update + 1])

    def update_of(self, part: int) -> int:
        """Returns the update that encodes a part."""
        return bisect.bisect_right(self._num_parts, part) - 1

    def differs_from(self, num_updates: int) -> bool:
        """Returns whether the media differ from those after `num_updates` updates."""
        later = self.updates[num_updates:]
        return any(row.change != Change.SEEN for update in later for row in update)

    def changes_since(self, num_updates: int) -> dict[str, Change]:
        """Returns the changed files and how they differ from an earlier state.

        Empty if there is no earlier state.
        """
        if not num_updates or not self.differs_from(num_updates):
            return {}
        before = History(self.updates[:num_updates]).files
        changed = {
            row.file.name
            for update in self.updates[num_updates:]
            for row in update
            if row.change in (Change.NEW, Change.CHANGED)
        }
        found = {name: Change.REMOVED for name in before.keys() - self.files.keys()}
        for name, known in self.files.items():
            if name not in before:
                found[name] = Change.NEW
            elif known.part != before[name].part:
                found[name] = Change.CHANGED if name in changed else known.change
        return found

    def files_of(self, part: int) -> tuple[MediaFile, ...]:
        """Returns the files of a part that no later update has removed or replaced."""
        known = (self.files.get(file.name) for file in self.parts[part])
        return tuple(k.file for k in known if k is not None and k.part == part)

    def _apply(self, update: Sequence[FileChange]) -> None:
        encoded = [row.file for row in update if row.change in ENCODED]
        least = MIN_PARTS_OF_UPDATE if self.updates else MIN_PARTS
        first = len(self.parts)
        self.parts += tuple(cut_into_parts(encoded, least))
        part_of = {
            file.name: first + i
            for i, files in enumerate(self.parts[first:])
            for file in files
        }
        for row in update:
            name = row.file.name
            if row.change == Change.REMOVED:
                del self.files[name]
            elif row.change == Change.SEEN:
                known = self.files[name]
                self.files[name] = dataclasses.replace(
                    known, file=row.file, digest=row.digest or known.digest
                )
            else:
                self.files[name] = KnownFile(
                    file=row.file, change=row.change, part=part_of[name], digest=None
                )
        self.updates += (update,)


_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("num_bytes", pa.int64()),
        ("caption", pa.string()),
        ("mtime_ns", pa.int64()),
        ("change", pa.string()),
        ("digest", pa.string()),
    ]
)


def _path(out: Path, index: int) -> Path:
    return out / (f"files-{index:05d}.parquet" if index else "files.parquet")


def num_updates(out: Path) -> int:
    """Returns the number of updates on disk."""
    count = 0
    while _path(out, count).exists():
        count += 1
    return count


def read_history(out: Path) -> History:
    """Reads all updates."""
    try:
        return History(_read(_path(out, i)) for i in range(num_updates(out)))
    except KeyError as error:
        raise InputError(
            f"--out {out}: the lists of its media files contradict each other at "
            f"{error}; restore files*.parquet, or choose another --out"
        ) from error


def copy_updates(source: Path, out: Path, count: int) -> None:
    """Copies the first `count` updates to another dataset."""
    for index in range(count):
        with replaced(_path(out, index)) as partial:
            shutil.copyfile(_path(source, index), partial)


def write_update(out: Path, index: int, update: Sequence[FileChange]) -> None:
    """Writes an update, unless another process has written one of this index."""
    files = [row.file for row in update]
    columns = {
        "name": [file.name for file in files],
        "num_bytes": [file.num_bytes for file in files],
        "caption": [file.caption for file in files],
        "mtime_ns": [file.mtime_ns for file in files],
        "change": [str(row.change) for row in update],
        "digest": [row.digest for row in update],
    }
    with written_once(_path(out, index)) as partial:
        pq.write_table(pa.table(columns, schema=_SCHEMA), partial)


def _read(path: Path) -> list[FileChange]:
    try:
        return [_parse(**row) for row in pq.read_table(path).to_pylist()]
    except (pa.ArrowException, OSError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: not a list of media files ({error}); restore the file, or "
            "choose another --out"
        ) from error


def _parse(
    *, change: str = Change.NEW, digest: str | None = None, **file: Any
) -> FileChange:
    # Earlier versions recorded only name, size and caption.
    return FileChange(change=Change(change), file=MediaFile(**file), digest=digest)
