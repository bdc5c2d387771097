"""Completes a preparation: merges its parts and writes the manifest."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxload.data.generation import all_masked, mask, num_covered, ranges_of
from jaxload.data.manifest import write_manifest
from jaxload.data.manifest_metadata import read_generations
from jaxload.data.shard import Shard
from jaxload.errors import InputError
from jaxload.media.changes import is_newest
from jaxload.media.claim import claim
from jaxload.media.cutting import FrameCount, LeftOutClip
from jaxload.media.history import Change, History
from jaxload.media.listing import Listing
from jaxload.media.merged_parts import (
    encoded_parts,
    merge_parts,
    scan_problems,
    write_scan_table,
)
from jaxload.media.preparation import Preparation, in_words
from jaxload.media.problem import Problem, without_moot
from jaxload.media.review import Review, counts
from jaxload.shapes.shape import Shape
from jaxload.shapes.size_cover import Size


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """Result of a preparation."""

    counts: dict[Shape, int]
    left_out: tuple[LeftOutClip, ...]
    problems: tuple[Problem, ...]
    frames: FrameCount
    """Frames of the files that were encoded since the manifest was last written."""

    num_bytes: int
    num_files: int
    """Number of files in the media folder that may be media, usable or not."""

    num_used: int
    """Number of files that gave at least one clip."""

    is_first: bool
    """True if there was no manifest before."""

    changes: Mapping[str, Change]
    """Files that differ from those of the manifest before, by name."""

    num_masked: int
    """Number of rows of the manifest before that are masked now."""

    @property
    def is_changed(self) -> bool:
        """True if the dataset is new, or its media differ from those before."""
        return self.is_first or bool(self.changes)


def finish(
    preparation: Preparation,
    listing: Listing,
    history: History,
    sizes: tuple[Size, ...],
    review: Review,
) -> Prepared:
    """Merges the parts and writes the manifest, which completes the dataset.

    A manifest that covers the same media and shards is left as it is.
    """
    out = preparation.out
    generations, shards_before = read_generations(out, preparation.geometry.patch)
    _check_newest(out, history)  # Otherwise, the manifest may cover more than history.
    covered = num_covered(generations)
    first_new = history.num_parts(covered)
    merged = merge_parts(out, history, preparation.geometry, first_new=first_new)
    _check_prefix(out, merged.shards, shards_before)
    is_masked_before = mask(all_masked(generations), len(merged.is_masked))
    newly_masked = merged.is_masked & ~is_masked_before
    problems = without_moot([*scan_problems(out, listing, history), *merged.problems])
    prepared = Prepared(
        counts=merged.counts,
        left_out=merged.left_out,
        problems=tuple(sorted(problems)),
        frames=merged.frames,
        num_bytes=sum(shard.num_bytes for shard in merged.shards),
        num_files=listing.num_found,
        num_used=merged.num_used,
        is_first=not generations,
        changes=history.changes_since(covered),
        num_masked=int(newly_masked.sum()),
    )
    review.check(listing, prepared.problems, prepared.left_out, prepared.changes)
    if not prepared.counts:
        raise InputError(
            f"{preparation.media}: none of {listing.num_found:,} files gave a clip "
            f"({_reasons(prepared)}); check the config section shapes"
        )
    if merged.shards == shards_before and not history.differs_from(covered):
        return prepared
    write_scan_table(out, history)
    # Claimed again, because another preparation may have claimed the directory since.
    fingerprint = preparation.fingerprint()
    claim(out, fingerprint)
    _check_newest(out, history)
    write_manifest(
        out,
        (part.entries for part in encoded_parts(out, history)),
        merged.shards,
        {
            **fingerprint,
            "sizes": in_words(sizes),
            "media": f"{len(listing.files)} files, {listing.digest()}",
        },
        earlier=generations,
        masked=ranges_of(newly_masked),
        num_updates=len(history.updates),
        patch=preparation.geometry.patch,
    )
    return prepared


def _check_newest(out: Path, history: History) -> None:
    if not is_newest(out, history):
        raise InputError(
            f"--out {out}: another process has recorded later changes of the media; "
            "run the same command again"
        )


def _check_prefix(out: Path, now: Sequence[Shard], before: Sequence[Shard]) -> None:
    """Refuses shards that would move the rows of earlier generations."""
    found = [(shard.name, shard.num_records) for shard in now[: len(before)]]
    expected = [(shard.name, shard.num_records) for shard in before]
    if found != expected:
        differ = next(
            i for i, pair in enumerate(expected) if found[i : i + 1] != [pair]
        )
        name, num_records = expected[differ]
        raise InputError(
            f"{out / name}: cannot be made again with its {num_records} records; "
            "restore it from a copy, or choose another --out"
        )


def _reasons(prepared: Prepared) -> str:
    bad = [problem for problem in prepared.problems if problem.bad]
    return counts(thing.reason for thing in (*bad, *prepared.left_out))
