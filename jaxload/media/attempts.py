"""Decides which parts are encoded, and which files that failed are tried again."""

from collections.abc import Mapping
from pathlib import Path

from jaxload.errors import InputError
from jaxload.files import read_json
from jaxload.media.history import History, num_updates
from jaxload.media.part_tables import (
    has_failed,
    has_table,
    is_encoded,
    is_scanned,
    read_encoded,
    read_scans,
    shard_path,
)

CONVERSION = "conversion.json"
"""File with the dataset that a directory was converted from."""


def must_encode(
    out: Path,
    history: History,
    part: int,
    *,
    is_covered: bool,
    num_records: Mapping[str, int],
) -> bool:
    """Returns whether a part has to be encoded, or encoded again.

    A part that the manifest covers is encoded again only if its shard is missing,
    damaged or too short. Any other part is also encoded again if a codec or a worker
    failed.

    Args:
        out: Directory of the dataset.
        history: History of the media.
        part: Number of the part.
        is_covered: True if the manifest covers the part.
        num_records: Records of each shard of the manifest, by name.

    Raises:
        InputError: A shard of the manifest cannot be used, and files of its records
            have changed since.
    """
    if not is_covered:
        return not is_encoded(out, part) or has_failed(out, part)
    if is_encoded(out, part):
        shard = read_encoded(out, part).shard
        # A shard that was lost and encoded again lacks clips if a codec failed.
        found = shard.num_records if shard else 0
        if found == num_records.get(shard_path(out, part).name, 0):
            return False
    if part < _num_converted(out):
        raise InputError(
            f"{shard_path(out, part)}: is missing or damaged, and cannot be made again "
            "because its dataset was converted; restore it from a copy, or convert "
            "that dataset again"
        )
    if not _can_be_repeated(out, history, part):
        raise InputError(
            f"{shard_path(out, part)}: is missing or damaged, and cannot be made "
            "again because its media have changed since; restore it from a copy, "
            "or choose another --out"
        )
    return True


def _num_converted(out: Path) -> int:
    """Returns the number of parts that were converted from another dataset."""
    path = out / CONVERSION
    if not path.exists():
        return 0
    found = read_json(path, remedy="restore it from a copy")
    return int(found.get("num_parts", 0))


def _can_be_repeated(out: Path, history: History, part: int) -> bool:
    """Returns whether the files that gave records of a part are all as they were."""
    now = {file.name for file in history.files_of(part)}
    if len(now) == len(history.parts[part]):
        return True
    return has_table(out, part) and now.issuperset(
        read_encoded(out, part).entries["source"].to_pylist()
    )


def failed_files(out: Path, history: History) -> set[str]:
    """Returns the names of the files that gave no clip because of a failure."""
    failed: set[str] = set()
    for i in range(len(history.parts)):
        problems = [
            *(read_scans(out, i)[1] if is_scanned(out, i) else ()),
            *(read_encoded(out, i).problems if has_table(out, i) else ()),
        ]
        there = {file.name for file in history.files_of(i)}
        failed |= {p.name for p in problems if p.bad and p.name in there}
    return failed


def check_covered(out: Path, num_covered: int) -> None:
    """Refuses a manifest that covers more updates than the directory records."""
    found = num_updates(out)
    if num_covered > found:
        raise InputError(
            f"--out {out}: expected the lists of media of {num_covered} preparations "
            f"(files*.parquet), as in its manifest, got {found}; restore them, or "
            "choose another --out"
        )
