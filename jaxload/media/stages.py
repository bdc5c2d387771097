"""Prepares a dataset: scans files, chooses shapes, encodes clips, writes a manifest.

Each stage writes its result to disk and is skipped if the result exists, so that a
killed run resumes where it stopped, and several machines can share one preparation.
"""

import dataclasses
from collections.abc import Sequence

from jaxload.console import Console, phase
from jaxload.errors import InputError
from jaxload.files import remove_leftovers
from jaxload.media.claim import claim
from jaxload.media.encode_part import EncodePart
from jaxload.media.listing import Listing, MediaFile
from jaxload.media.part_tables import (
    has_failed,
    is_encoded,
    is_scanned,
    parts_directory,
)
from jaxload.media.parts import cut_into_parts
from jaxload.media.preparation import Preparation
from jaxload.media.prepared import (
    Prepared,
    finish,
    scan_problems,
    write_scan_table,
)
from jaxload.media.recovery import Part
from jaxload.media.review import Review, counts
from jaxload.media.runners import Run
from jaxload.media.scan_part import ScanPart
from jaxload.media.shape_choice import settle_shapes


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
) -> Prepared | None:
    """Runs this machine's share of the parts, and writes the manifest if all are done.

    Returns None if parts of other machines are not done; the last machine to finish
    writes the manifest.
    """
    out = preparation.out
    fingerprint = preparation.fingerprint(listing)
    claim(out, fingerprint, listing)
    if not listing.files:
        report = review.write_report(listing.problems, ())
        reasons = counts(problem.reason for problem in listing.problems if problem.bad)
        raise InputError(
            f"{preparation.media}: none of its {listing.num_found:,} files can be used "
            f"({reasons}); fix the files that {report} lists"
        )
    files = cut_into_parts(listing.files)
    mine = [i for i in range(len(files)) if i % share.of == share.index]
    for directory in (out, parts_directory(out)):
        remove_leftovers(directory)

    # --- Scans ---
    scans = [
        ScanPart(preparation=preparation, index=i, files=files[i])
        for i in mine
        if not is_scanned(out, i)
    ]
    _run(run, "scanning", scans, [files[i] for i in mine], console)
    if all(is_scanned(out, i) for i in range(len(files))):
        problems = scan_problems(out, listing, len(files))
        review.check(listing, problems)
        write_scan_table(out, len(files))
    elif preparation.shapes is None:
        return None  # Choosing shapes needs the scans of all files.
    shapes = settle_shapes(preparation, len(files))

    # --- Records ---
    encodes = [
        EncodePart(preparation=preparation, index=i, files=files[i], shapes=shapes)
        for i in mine
        if not is_encoded(out, i) or has_failed(out, i)
    ]
    _run(run, "encoding", encodes, [files[i] for i in mine], console)
    remove_leftovers(out)  # Partial files of workers that died.
    # Checked at the end, because other machines encode parts at the same time.
    if not all(is_encoded(out, i) for i in range(len(files))):
        return None
    return finish(preparation, listing, len(files), shapes, review)


def _run(
    run: Run,
    title: str,
    parts: Sequence[Part],
    mine: Sequence[Sequence[MediaFile]],
    console: Console,
) -> None:
    if not parts:
        return
    total, left = sum(map(len, mine)), sum(len(part.files) for part in parts)
    with phase(console, f"{title} files", total, done=total - left) as advance:
        run(parts, on_file=advance, console=console)
