"""Finds the files of a media folder that differ from the history of a dataset.

A file is unchanged if its size, time stamp and caption are those recorded. If only the
time stamp differs, the digest of the content decides, so that touching a file or
copying a folder changes nothing.
"""

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jaxload.console import Console, phase
from jaxload.media.content import content_digest
from jaxload.media.history import (
    Change,
    FileChange,
    History,
    KnownFile,
    encoded_by,
    num_updates,
    read_history,
    write_update,
)
from jaxload.media.listing import Listing, MediaFile
from jaxload.media.part_tables import read_digests
from jaxload.media.preparation import Preparation
from jaxload.media.review import Review

_NUM_THREADS = 8  # Threads that read contents, to hide latency of network storage.


def update_history(
    preparation: Preparation,
    listing: Listing,
    console: Console,
    review: Review,
    retried: Collection[str] = (),
) -> History:
    """Records the differences of a listing from the history; returns the new history.

    Raises InputError, and records nothing, if too many files were removed.

    Of several processes that do this at once, one writes the update, and the others
    take it over. `retried` names unchanged files to encode again.
    """
    out = preparation.out
    while True:
        history = read_history(out)
        update = _differences(preparation, history, listing, console, retried)
        if not update:
            return history
        removed = [c.file.name for c in update if c.change == Change.REMOVED]
        review.check_removed(preparation.media, removed, len(history.files))
        write_update(out, len(history.updates), update)
        # The update on disk may be that of another process.
        encoded = encoded_by(read_history(out).updates[len(history.updates)])
        retried = [name for name in retried if name not in encoded]


def is_newest(out: Path, history: History) -> bool:
    """Returns whether no other process has recorded a later change of the media.

    Other time stamps alone are no change; those of several machines may differ.
    """
    known = len(history.updates)
    return num_updates(out) == known or not read_history(out).differs_from(known)


def _differences(
    preparation: Preparation,
    history: History,
    listing: Listing,
    console: Console,
    retried: Collection[str],
) -> list[FileChange]:
    changes = []
    doubtful: list[tuple[MediaFile, KnownFile]] = []
    for file in listing.files:
        known = history.files.get(file.name)
        if known is None:
            changes.append(FileChange(change=Change.NEW, file=file))
        elif file.num_bytes != known.file.num_bytes:
            changes.append(FileChange(change=Change.CHANGED, file=file))
        elif file.mtime_ns != known.file.mtime_ns:
            doubtful.append((file, known))
        elif file.caption != known.file.caption:
            changes.append(FileChange(change=Change.RECAPTIONED, file=file))
        elif file.name in retried:
            changes.append(FileChange(change=Change.RETRIED, file=file))
    changes += _compare_contents(preparation, doubtful, console)
    # A file that cannot be listed now may be there again the next time.
    there = {file.name for file in listing.files}
    there |= {problem.name for problem in listing.problems if problem.bad}
    changes += [
        FileChange(change=Change.REMOVED, file=known.file)
        for name, known in history.files.items()
        if name not in there
    ]
    return sorted(changes, key=lambda change: change.file.name)


def _compare_contents(
    preparation: Preparation,
    doubtful: Sequence[tuple[MediaFile, KnownFile]],
    console: Console,
) -> Iterator[FileChange]:
    """Yields the changes of files of equal size whose time stamps differ."""
    if not doubtful:
        return
    recorded: dict[str, str] = {}
    for part in sorted({known.part for _, known in doubtful}):
        recorded |= read_digests(preparation.out, part)
    paths = [preparation.media / file.name for file, _ in doubtful]
    with (
        phase(console, "comparing contents", len(doubtful)) as advance,
        ThreadPoolExecutor(_NUM_THREADS) as pool,
    ):
        digests = pool.map(_digest_if_readable, paths)
        for (file, known), digest in zip(doubtful, digests, strict=True):
            before = known.digest or recorded.get(file.name)
            # Earlier versions recorded no time stamps and no digests.
            is_same = known.file.mtime_ns is None or digest == before
            change = Change.SEEN
            if digest is None or not is_same:
                change = Change.CHANGED
            elif file.caption != known.file.caption:
                change = Change.RECAPTIONED
            yield FileChange(change=change, file=file, digest=digest)
            advance()


def _digest_if_readable(path: Path) -> str | None:
    try:
        return content_digest(path)
    except OSError:
        return None  # The scan reports the reason.
