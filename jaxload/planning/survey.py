"""Survey of a manifest: counts of its clips by frames and size, and invalid rows."""

import dataclasses
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
from jaxload.shapes.clips import (
    BAD_METADATA,
    TOO_SHORT_VIDEO,
    ClipCounter,
    Clips,
    Columns,
    too_long,
)
from jaxload.shapes.config import MAX_HOURS, ShapeRules
from jaxload.shapes.cover import LeftOut
from jaxload.shapes.geometry import Geometry

_NUM_EXAMPLES = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Survey:
    """Clip counts and invalid rows of a manifest."""

    clips: Clips
    num_rows: int
    bad: tuple[LeftOut, ...]
    """Invalid rows, as one entry; empty if there are none."""

    too_short: tuple[LeftOut, ...]
    """Clips of videos that would be stills, as one entry; empty if there are none."""


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
            bad = counter.add(columns_of(rows))
            for i in np.flatnonzero(bad)[: _NUM_EXAMPLES - len(examples)].tolist():
                examples.append((rows.first + i, _describe(rows, i, rules)))
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
        too_short=_too_short(counter.num_too_short, geometry),
    )


def _too_short(count: int, geometry: Geometry) -> tuple[LeftOut, ...]:
    if not count:
        return ()
    fewest = geometry.strides[0] + 1
    example = f"clips of videos of fewer than {fewest} frames"
    return (LeftOut(reason=TOO_SHORT_VIDEO, count=count, examples=(example,)),)


def _say_if_unchecked(check: IdCheck, console: Console) -> None:
    if not check.checked and check.num_rows > MAX_CHECKED_IDS:
        console.say(
            f"ids are not checked for duplicates: {check.num_rows:,} rows or more"
        )
    if check.num_missing:
        console.say(f"{check.num_missing:,} rows have no id")


def columns_of(rows: Rows) -> Columns:
    """Returns rows in the form that clips are counted from."""
    # In Columns, NaN means the model's frame rate, so an unreadable cell becomes -1.
    fps = rows.fps if rows.at_model_rate else np.nan_to_num(rows.fps, nan=-1.0)
    return Columns(
        num_frames=rows.num_frames,
        height=rows.height,
        width=rows.width,
        fps=fps,
        count=rows.count,
    )


def _describe(rows: Rows, index: int, rules: ShapeRules) -> str:
    frames, height, width, fps = (
        float(column[index])
        for column in (rows.num_frames, rows.height, rows.width, rows.fps)
    )
    text = f"{frames:g} frames of {height:g}x{width:g} at {fps:g} fps"
    if too_long(columns_of(rows), rules)[index]:
        text += f", longer than {MAX_HOURS} hours"
    return text
