"""Decides which parts are encoded, and which files that failed are tried again."""

from pathlib import Path

from jaxload.errors import InputError
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


def must_encode(out: Path, history: History, part: int, *, is_covered: bool) -> bool:
    """Returns whether a part has to be encoded, or encoded again.

    A part that the manifest covers is encoded again only if its shard is missing or
    damaged. Any other part is also encoded again if a codec or a worker failed.

    Raises:
        InputError: A shard of the manifest is missing or damaged, and its files have
            changed since.
    """
    if not is_encoded(out, part):
        if is_covered and not history.is_whole(part):
            raise InputError(
                f"{shard_path(out, part)}: is missing or damaged, and cannot be made "
                "again because its media have changed since; restore it from a copy, "
                "or choose another --out"
            )
        return True
    return not is_covered and has_failed(out, part)


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
