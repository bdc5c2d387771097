"""Prepares a dataset: scans files, chooses sizes, encodes clips, writes a manifest.

Each stage writes its result to disk and is skipped if the result exists, so that a
killed run resumes where it stopped, and several machines can share one preparation.
"""

import dataclasses
from collections.abc import Sequence

from jaxload.console import Console, phase
from jaxload.data.generation import num_covered
from jaxload.data.manifest_metadata import read_generations
from jaxload.errors import InputError
from jaxload.files import remove_leftovers
from jaxload.media.attempts import check_covered, failed_files, must_encode
from jaxload.media.changes import update_history
from jaxload.media.claim import claim
from jaxload.media.clip_ids import check_clip_ids
from jaxload.media.encode_part import EncodePart
from jaxload.media.history import read_history
from jaxload.media.listing import Listing, MediaFile
from jaxload.media.merged_parts import scan_problems, write_scan_table
from jaxload.media.part_tables import is_encoded, is_scanned, parts_directory
from jaxload.media.preparation import Preparation
from jaxload.media.prepared import Prepared, finish
from jaxload.media.recovery import Part
from jaxload.media.review import Review, counts
from jaxload.media.runners import Run
from jaxload.media.scan_part import ScanPart
from jaxload.media.size_choice import settle_sizes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """Share of the parts that this machine runs: parts i with `i % of == index`."""

    index: int = 0
    of: int = 1


WHOLE = Share()


def prepare(
    preparation: Preparation,
    listing: Listing,
    *,
    run: Run,
    review: Review,
    console: Console,
    share: Share = WHOLE,
    retry_failed: bool = False,
) -> Prepared | None:
    """Runs this machine's share of the parts, and writes the manifest if all are done.

    Files that the dataset has already, unchanged, are not read again, and those that
    failed only with `retry_failed`.

    Returns None if parts of other machines are not done; the last machine to finish
    writes the manifest.
    """
    out = preparation.out
    # Before the claim, because its message states how to convert an older dataset.
    generations, shards = read_generations(out, preparation.geometry.patch)
    claim(out, preparation.fingerprint())
    if not listing.files:
        report = review.write_report(listing.problems, (), {})
        reasons = counts(problem.reason for problem in listing.problems if problem.bad)
        raise InputError(
            f"{preparation.media}: none of its {listing.num_found:,} files can be used "
            f"({reasons}); fix the files that {report} lists"
        )
    covered = num_covered(generations)
    check_covered(out, covered)
    num_records = {shard.name: shard.num_records for shard in shards}
    retried = failed_files(out, read_history(out)) if retry_failed else ()
    history = update_history(preparation, listing, console, review, retried)
    first_new = history.num_parts(covered)
    parts = range(len(history.parts))
    files = [history.files_of(i) for i in parts]
    mine = [i for i in parts if i % share.of == share.index]
    new_files = [files[i] for i in mine if i >= first_new]
    for directory in (out, parts_directory(out)):
        remove_leftovers(directory)

    # --- Scans ---
    scans = [
        ScanPart(preparation=preparation, index=i, files=files[i])
        for i in mine
        if not is_scanned(out, i)
    ]
    _run(run, "scanning", scans, new_files, console)
    check_clip_ids(preparation, history)
    if all(is_scanned(out, i) for i in parts):
        problems = scan_problems(out, listing, history)
        review.check(listing, problems, changes=history.changes_since(covered))
        if first_new < len(parts):
            write_scan_table(out, history)
    elif preparation.sizes is None:
        return None  # Choosing sizes needs the scans of all files.
    sizes = settle_sizes(preparation, history)

    # --- Records ---
    encodes = [
        EncodePart(
            preparation=preparation,
            index=i,
            files=files[i],
            sizes=sizes[history.update_of(i)],
        )
        for i in mine
        if must_encode(
            out, history, i, is_covered=i < first_new, num_records=num_records
        )
    ]
    _run(run, "encoding", encodes, new_files, console)
    remove_leftovers(out)  # Partial files of workers that died.
    # Checked at the end, because other machines encode parts at the same time.
    if not all(is_encoded(out, i) for i in parts):
        return None
    return finish(preparation, listing, history, sizes[-1], review)


def _run(
    run: Run,
    title: str,
    parts: Sequence[Part],
    new_files: Sequence[Sequence[MediaFile]],
    console: Console,
) -> None:
    if not parts:
        return
    left = sum(len(part.files) for part in parts)
    # Lost shards of earlier updates are encoded again, too.
    total = max(left, sum(map(len, new_files)))
    with phase(console, f"{title} files", total, done=total - left) as advance:
        run(parts, on_file=advance, console=console)
