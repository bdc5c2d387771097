"""Prepares a dataset: scans files, chooses shapes, encodes clips, writes a manifest.

Each stage writes its result to disk and is skipped if the result exists, so that a
killed run resumes where it stopped, and several machines can share one preparation.
"""

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from jaxload.console import phase
from jaxload.data.manifest import write_manifest
from jaxload.errors import InputError
from jaxload.files import remove_leftovers, replaced, write_atomically
from jaxload.media.claiming import claim
from jaxload.media.cutting import FrameCount, LeftOutClip, num_usable
from jaxload.media.frames import Scan
from jaxload.media.listing import Listing, MediaFile
from jaxload.media.part_tables import (
    EncodedPart,
    has_failed,
    is_encoded,
    is_scanned,
    parts_directory,
    read_encoded,
    read_scan_table,
    read_scans,
    shape_counts,
)
from jaxload.media.preparation import (
    EncodePart,
    Part,
    Preparation,
    ScanPart,
    cut_into_parts,
)
from jaxload.media.problem import Problem
from jaxload.media.recovery import Recovery
from jaxload.media.workers import Recover, run_here, run_in_processes
from jaxload.shapes.clips import ClipCounter, Columns, ShapeRules
from jaxload.shapes.cover import cover
from jaxload.shapes.shape import Shape

_SHAPES = "shapes.json"
SCANS = "media.parquet"
_ENOUGH_SAMPLES = 16

Run = Callable[..., None]
"""(parts, on_file=, recover=) -> None: runs the parts, here or elsewhere."""


def runner(num_workers: int) -> Run:
    """Returns a function that runs parts in local processes, or with 0 in this one."""
    if num_workers:
        return functools.partial(run_in_processes, num_workers=num_workers)

    def run(parts: Sequence[Part], *, on_file: Callable, recover: Recover) -> None:
        run_here(parts, on_file=on_file)

    return run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """Parts that this machine does: those with `i % of == index`."""

    index: int = 0
    of: int = 1


WHOLE = Share()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """Result of a preparation."""

    counts: dict[Shape, int]
    left_out: tuple[LeftOutClip, ...]
    problems: tuple[Problem, ...]
    frames: FrameCount
    num_bytes: int
    num_files: int
    """Files that were listed."""

    num_used: int
    """Files that gave at least one clip."""


def prepare(
    preparation: Preparation,
    listing: Listing,
    *,
    run: Run,
    max_bad_share: float,
    console: Console,
    share: Share = WHOLE,
) -> Prepared | None:
    """Does this machine's share of the parts, and writes the manifest after the last.

    Returns None if other machines still have parts to do; the last machine to finish
    writes the manifest.
    """
    out = preparation.out
    fingerprint = preparation.fingerprint(listing)
    claim(out, fingerprint, listing)
    if not listing.files:
        raise InputError(
            f"{preparation.media}: none of its files can be used, such as "
            f"{listing.problems[0].name}: {listing.problems[0].reason}; mend them"
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
        problems = _scan_problems(out, listing, len(files))
        _check_bad_share(problems, listing, max_bad_share)
        _write_scans(out, len(files))
    elif preparation.shapes is None:
        return None  # Choosing shapes needs the scans of all files.
    shapes = _settle_shapes(preparation, len(files))

    # --- Records ---
    encodes = [
        EncodePart(preparation=preparation, index=i, files=files[i], shapes=shapes)
        for i in mine
        if not is_encoded(out, i) or has_failed(out, i)
    ]
    _run(run, "encoding", encodes, [files[i] for i in mine], console)
    # Checked only now, because other machines have encoded parts meanwhile.
    if not all(is_encoded(out, i) for i in range(len(files))):
        return None
    return _finish(preparation, listing, len(files), shapes, max_bad_share)


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
        run(parts, on_file=advance, recover=Recovery(console))


def _check_bad_share(
    problems: Sequence[Problem], listing: Listing, max_bad_share: float
) -> None:
    bad = [problem for problem in problems if problem.bad]
    # Files that could not be listed count as bad files too.
    num_files = len({*(file.name for file in listing.files), *(p.name for p in bad)})
    if len(bad) > max_bad_share * num_files:
        first = bad[0]
        detail = f" ({first.detail})" if first.detail else ""
        raise InputError(
            f"{len(bad):,} of {num_files:,} files are bad, such as {first.name}: "
            f"{first.reason}{detail}; expected at most {max_bad_share:.0%}; raise "
            "--max-bad-share to go on, or mend them and choose another --out"
        )


def _scan_problems(out: Path, listing: Listing, num_parts: int) -> list[Problem]:
    problems = list(listing.problems)
    for i in range(num_parts):
        problems += read_scans(out, i)[1]
    return problems


def _write_scans(out: Path, num_parts: int) -> None:
    """Writes a table of all scans, once, for `jaxload.plan --manifest` to read."""
    if not (out / SCANS).exists():
        tables = [read_scan_table(out, i) for i in range(num_parts)]
        table = pa.concat_tables(t.replace_schema_metadata(None) for t in tables)
        with replaced(out / SCANS) as partial:
            pq.write_table(table, partial)


def _settle_shapes(preparation: Preparation, num_parts: int) -> tuple[Shape, ...]:
    """Returns the shapes of the plan, or chooses those that keep the most content."""
    if preparation.shapes is not None:
        return preparation.shapes
    path = parts_directory(preparation.out) / _SHAPES
    if not path.exists():
        counter = ClipCounter(preparation.rules)
        for i in range(num_parts):
            scans, _ = read_scans(preparation.out, i)
            counter.add(_columns(scans.values(), preparation.rules))
        clips = counter.clips()
        if not len(clips):
            raise InputError(
                f"{preparation.media}: no file decodes to something large enough for a "
                "clip; run with other media, or another shapes.min_fps"
            )
        chosen = cover(
            clips,
            rules=preparation.rules,
            max_shapes=preparation.max_shapes,
            min_samples=_min_samples(int(clips.count.sum()), preparation.max_shapes),
        )
        write_atomically(path, json.dumps([str(shape) for shape in chosen.shapes]))
    return tuple(Shape.parse(shape) for shape in json.loads(path.read_text()))


def _min_samples(num_clips: int, max_shapes: int) -> int:
    """Returns the fewest clips that a shape may have, as each shape costs a program.

    The result is half of an even share, and at most what is enough for any batch.
    """
    return max(1, min(_ENOUGH_SAMPLES, num_clips // (2 * max_shapes)))


def _columns(scans: Collection[Scan], rules: ShapeRules) -> Columns:
    """Returns scans as columns of a manifest, with frames at the model's rate."""
    return Columns(
        num_frames=np.array([num_usable(scan, rules) for scan in scans], float),
        height=np.array([scan.height for scan in scans], float),
        width=np.array([scan.width for scan in scans], float),
        fps=np.full(len(scans), np.nan),
        count=np.ones(len(scans), np.int64),
    )


def _finish(
    preparation: Preparation,
    listing: Listing,
    num_parts: int,
    shapes: tuple[Shape, ...],
    max_bad_share: float,
) -> Prepared:
    """Merges the parts and writes the manifest, which completes the dataset."""
    out = preparation.out
    _write_scans(out, num_parts)
    problems = _scan_problems(out, listing, num_parts)
    prepared = _collect(_encoded_parts(out, num_parts), listing, problems)
    _check_bad_share(prepared.problems, listing, max_bad_share)
    if not prepared.counts:
        raise InputError(
            f"{preparation.media}: none of {len(listing.files)} files gave a clip, "
            f"{_most_frequent(prepared)}; see shapes in the config"
        )
    # Claimed again, in case another preparation took the directory meanwhile.
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
    parts: Iterable[EncodedPart], listing: Listing, problems: list[Problem]
) -> Prepared:
    counts: Counter[Shape] = Counter()
    left_out: list[LeftOutClip] = []
    frames, num_bytes, num_used = FrameCount(), 0, 0
    for part in parts:
        counts.update(shape_counts(part.entries))
        problems += part.problems
        left_out += part.left_out
        frames += part.frames
        num_bytes += part.shard.num_bytes if part.shard else 0
        num_used += len(part.entries["source"].unique())
    return Prepared(
        counts=dict(counts),
        left_out=tuple(left_out),
        problems=tuple(sorted(problems)),
        frames=frames,
        num_bytes=num_bytes,
        num_files=len(listing.files),
        num_used=num_used,
    )


def _most_frequent(prepared: Prepared) -> str:
    reasons = Counter(
        thing.reason for thing in (*prepared.problems, *prepared.left_out)
    )
    return f"most often: {reasons.most_common(1)[0][0]}"
