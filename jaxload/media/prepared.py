"""Merges the parts of a preparation and writes the manifest."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from jaxload.data.manifest import write_manifest
from jaxload.errors import InputError
from jaxload.files import replaced
from jaxload.media.claim import claim
from jaxload.media.cutting import FrameCount, LeftOutClip
from jaxload.media.listing import Listing
from jaxload.media.part_tables import (
    EncodedPart,
    read_encoded,
    read_scan_table,
    read_scans,
    shape_counts,
)
from jaxload.media.preparation import Preparation
from jaxload.media.problem import Problem, without_moot
from jaxload.media.review import Review, counts
from jaxload.shapes.geometry import Geometry
from jaxload.shapes.shape import Shape

SCANS = "media.parquet"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """Result of a preparation."""

    counts: dict[Shape, int]
    left_out: tuple[LeftOutClip, ...]
    problems: tuple[Problem, ...]
    frames: FrameCount
    num_bytes: int
    num_files: int
    """Number of files in the media folder that may be media, usable or not."""

    num_used: int
    """Number of files that gave at least one clip."""


def scan_problems(out: Path, listing: Listing, num_parts: int) -> list[Problem]:
    """Returns the problems of the listing and of all scans."""
    problems = list(listing.problems)
    for i in range(num_parts):
        problems += read_scans(out, i)[1]
    return without_moot(problems)


def write_scan_table(out: Path, num_parts: int) -> None:
    """Writes a table of all scans, once, for `jaxload.plan --manifest` to read."""
    if not (out / SCANS).exists():
        tables = [read_scan_table(out, i) for i in range(num_parts)]
        table = pa.concat_tables(t.replace_schema_metadata(None) for t in tables)
        with replaced(out / SCANS) as partial:
            pq.write_table(table, partial)


def finish(
    preparation: Preparation,
    listing: Listing,
    num_parts: int,
    shapes: tuple[Shape, ...],
    review: Review,
) -> Prepared:
    """Merges the parts and writes the manifest, which completes the dataset."""
    out = preparation.out
    write_scan_table(out, num_parts)
    problems = scan_problems(out, listing, num_parts)
    parts = _encoded_parts(out, num_parts)
    prepared = _collect(parts, listing, problems, preparation.geometry)
    review.check(listing, prepared.problems, prepared.left_out)
    if not prepared.counts:
        raise InputError(
            f"{preparation.media}: none of {listing.num_found:,} files gave a clip "
            f"({_reasons(prepared)}); check the config section shapes"
        )
    # Claimed again, because another preparation may have claimed the directory since.
    fingerprint = preparation.fingerprint(listing)
    claim(out, fingerprint, listing)
    shards = [part.shard for part in _encoded_parts(out, num_parts) if part.shard]
    write_manifest(
        out,
        (part.entries for part in _encoded_parts(out, num_parts)),
        shards,
        {**fingerprint, "shapes": ", ".join(map(str, shapes))},
    )
    return prepared


def _encoded_parts(out: Path, num_parts: int) -> Iterator[EncodedPart]:
    """Reads the parts one by one, because millions of captions would fill memory."""
    return (read_encoded(out, i) for i in range(num_parts))


def _collect(
    parts: Iterable[EncodedPart],
    listing: Listing,
    problems: list[Problem],
    geometry: Geometry,
) -> Prepared:
    counts: Counter[Shape] = Counter()
    left_out: list[LeftOutClip] = []
    frames, num_bytes, num_used = FrameCount(), 0, 0
    for part in parts:
        counts.update(shape_counts(part.entries, geometry))
        problems += part.problems
        left_out += part.left_out
        frames += part.frames
        num_bytes += part.shard.num_bytes if part.shard else 0
        num_used += len(part.entries["source"].unique())
    return Prepared(
        counts=dict(counts),
        left_out=tuple(left_out),
        problems=tuple(sorted(without_moot(problems))),
        frames=frames,
        num_bytes=num_bytes,
        num_files=listing.num_found,
        num_used=num_used,
    )


def _reasons(prepared: Prepared) -> str:
    bad = [problem for problem in prepared.problems if problem.bad]
    return counts(thing.reason for thing in (*bad, *prepared.left_out))
