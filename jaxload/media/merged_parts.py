"""Merges the parts of a preparation, without files that were removed or replaced."""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jaxload.data.shard import Shard
from jaxload.files import replaced
from jaxload.media.cutting import FrameCount, LeftOutClip
from jaxload.media.history import History
from jaxload.media.listing import Listing
from jaxload.media.part_tables import (
    EncodedPart,
    read_encoded,
    read_scan_table,
    read_scans,
    shape_counts,
)
from jaxload.media.problem import Problem, without_moot
from jaxload.shapes.geometry import Geometry
from jaxload.shapes.shape import Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergedParts:
    """Sums over all encoded parts."""

    counts: dict[Shape, int]
    left_out: tuple[LeftOutClip, ...]
    problems: tuple[Problem, ...]
    frames: FrameCount
    num_used: int
    """Number of files that gave at least one clip."""

    shards: tuple[Shard, ...]
    is_masked: np.ndarray
    """True for each row of a removed or replaced file."""


def encoded_parts(out: Path, history: History) -> Iterator[EncodedPart]:
    """Reads the parts one by one, because millions of captions would fill memory."""
    return (read_encoded(out, i) for i in range(len(history.parts)))


def merge_parts(
    out: Path, history: History, geometry: Geometry, *, first_new: int
) -> MergedParts:
    """Merges all encoded parts; frames are counted from the part `first_new` on."""
    counts: Counter[Shape] = Counter()
    left_out: list[LeftOutClip] = []
    problems: list[Problem] = []
    shards: list[Shard] = []
    is_used = [np.zeros(0, bool)]
    frames, num_used = FrameCount(), 0
    for i, part in enumerate(encoded_parts(out, history)):
        names = _names(history, i)
        is_used.append(_is_among(part.entries["source"], names))
        entries = part.entries.filter(is_used[-1])
        counts.update(shape_counts(entries, geometry))
        num_used += len(entries["source"].unique())
        problems += [problem for problem in part.problems if problem.name in names]
        left_out += [clip for clip in part.left_out if clip.source in names]
        shards += [part.shard] if part.shard else []
        if i >= first_new:
            frames += part.frames
    return MergedParts(
        counts=dict(counts),
        left_out=tuple(left_out),
        problems=tuple(problems),
        frames=frames,
        num_used=num_used,
        shards=tuple(shards),
        is_masked=~np.concatenate(is_used),
    )


def scan_problems(out: Path, listing: Listing, history: History) -> list[Problem]:
    """Returns the problems of the listing and of all scans."""
    problems = list(listing.problems)
    for i in range(len(history.parts)):
        names = _names(history, i)
        problems += [p for p in read_scans(out, i)[1] if p.name in names]
    return without_moot(problems)


def write_scan_table(out: Path, history: History) -> None:
    """Writes a table of all scans for `jaxload.plan --manifest` to read."""
    tables = []
    for i in range(len(history.parts)):
        table = read_scan_table(out, i).replace_schema_metadata(None)
        tables.append(table.filter(_is_among(table["id"], _names(history, i))))
    with replaced(out / "media.parquet") as partial:
        pq.write_table(pa.concat_tables(tables), partial)


def _names(history: History, part: int) -> set[str]:
    return {file.name for file in history.files_of(part)}


def _is_among(names: pa.ChunkedArray, wanted: Collection[str]) -> np.ndarray:
    return np.fromiter((name in wanted for name in names.to_pylist()), bool, len(names))
