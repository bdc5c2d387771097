"""Survey of a manifest: counts of its clips by frames and size, and invalid rows."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxload.console import Console, count_up
from jaxload.data.workload import Rows, read_rows
from jaxload.data.workload_ids import (
    MAX_CHECKED_IDS,
    IdCheck,
    check_ids,
    row_labels,
)
from jaxload.errors import InputError
from jaxload.shapes.assignment import assign
from jaxload.shapes.clips import (
    BAD_METADATA,
    ClipCounter,
    Clips,
    Columns,
    tabulate,
    usable_frames,
)
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.cover import LeftOut
from jaxload.shapes.cuts import cut_videos
from jaxload.shapes.geometry import Geometry
from jaxload.shapes.shape import Shape

_NUM_EXAMPLES = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Survey:
    """Clip counts and invalid rows of a manifest."""

    clips: Clips
    num_rows: int
    bad: tuple[LeftOut, ...]
    """Invalid rows, as one entry; empty if there are none."""


def survey_manifest(
    path: Path,
    rules: ShapeRules,
    geometry: Geometry,
    *,
    max_bad_share: float,
    console: Console,
) -> Survey:
    """Counts the clips of a manifest; refuses one with too many invalid rows."""
    if not 0.0 <= max_bad_share <= 1.0:
        raise InputError(f"--max-bad-share {max_bad_share}: expected 0.0 to 1.0")
    _say_if_unchecked(check_ids(path), console)
    counter = ClipCounter(rules, geometry)
    num_rows = num_bad = 0
    examples: list[tuple[int, str]] = []
    with count_up(console, f"reading {path}", "rows") as advance:
        for rows in read_rows(path):
            bad = counter.add(_columns(rows))
            for i in np.flatnonzero(bad)[: _NUM_EXAMPLES - len(examples)].tolist():
                examples.append((rows.first + i, _describe(rows, i)))
            num_rows += len(rows)
            num_bad += int(bad.sum())
            advance(len(rows))
    labels = row_labels(path, [number for number, _ in examples])
    shown = tuple(
        f"{label}: {what}" for label, (_, what) in zip(labels, examples, strict=True)
    )
    if num_bad > max_bad_share * num_rows:
        raise InputError(
            f"manifest {path}: {num_bad:,} of {num_rows:,} rows are invalid, such as "
            f"{shown[0]}; expected at most {max_bad_share:.0%}; fix the manifest, or "
            "raise --max-bad-share"
        )
    left_out = LeftOut(reason=BAD_METADATA, count=num_bad, examples=shown)
    return Survey(
        clips=counter.clips(),
        num_rows=num_rows,
        bad=(left_out,) if num_bad else (),
    )


def _say_if_unchecked(check: IdCheck, console: Console) -> None:
    if not check.checked and check.num_rows > MAX_CHECKED_IDS:
        console.say(
            f"ids are not checked for duplicates: {check.num_rows:,} rows or more"
        )
    if check.num_missing:
        console.say(f"{check.num_missing:,} rows have no id")


def sample_ids(
    path: Path, rules: ShapeRules, shapes: tuple[Shape, ...], geometry: Geometry
) -> list[list[str]]:
    """Returns the ids of the samples of each shape, in the order of the rows."""
    ids: list[list[str]] = [[] for _ in shapes]
    for rows in read_rows(path, with_ids=True):
        if rows.ids is None:
            raise InputError(
                f"{path}: a histogram has no ids, and a schedule lists ids; give the "
                "manifest itself"
            )
        for index, clip_id in _assigned_ids(rows, rules, shapes, geometry):
            ids[index].append(clip_id)
    return ids


def _assigned_ids(
    rows: Rows, rules: ShapeRules, shapes: tuple[Shape, ...], geometry: Geometry
) -> Iterator[tuple[int, str]]:
    """Yields each clip that has a shape: the index of the shape, and the clip's id."""
    columns = _columns(rows)
    frames = usable_frames(columns, rules, geometry)
    cuts = cut_videos(frames, rules)
    height, width = (
        np.where(frames > 0, size, 1).astype(np.int64)
        for size in (columns.height, columns.width)
    )
    full, rest = (
        assign(clips, shapes, rules)[0]
        for clips in tabulate(cuts, height, width, columns.count, geometry)
    )
    assert rows.ids is not None
    names = rows.ids.to_pylist()
    for i in np.flatnonzero((frames > 0) & ((full >= 0) | (rest >= 0))).tolist():
        for clip in cuts.clips(i, names[i] or f"row {rows.first + i}"):
            index = int(full[i] if clip.is_full else rest[i])
            if index >= 0:
                yield index, clip.id


def _columns(rows: Rows) -> Columns:
    # In Columns, NaN means the model's frame rate, so an unreadable cell becomes -1.
    fps = rows.fps if rows.at_model_rate else np.nan_to_num(rows.fps, nan=-1.0)
    return Columns(
        num_frames=rows.num_frames,
        height=rows.height,
        width=rows.width,
        fps=fps,
        count=rows.count,
    )


def _describe(rows: Rows, index: int) -> str:
    frames, height, width, fps = (
        float(column[index])
        for column in (rows.num_frames, rows.height, rows.width, rows.fps)
    )
    return f"{frames:g} frames of {height:g}x{width:g} at {fps:g} fps"
