"""Survey of a manifest: counts its clips by shape and collects its invalid rows."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console

from jaxload.console import count_rows
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
    ShapeRules,
    cut,
    level,
    usable_frames,
)
from jaxload.shapes.cover import LeftOut
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
    path: Path, rules: ShapeRules, *, max_bad_share: float, console: Console
) -> Survey:
    """Counts the clips of a manifest; refuses one with too many invalid rows."""
    if not 0.0 <= max_bad_share <= 1.0:
        raise InputError(f"--max-bad-share {max_bad_share}: expected 0.0 to 1.0")
    _say_if_unchecked(check_ids(path), console)
    counter = ClipCounter(rules)
    num_rows = num_bad = 0
    examples: list[tuple[int, str]] = []
    with count_rows(console, f"reading {path}") as advance:
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
            f"manifest {path}: {num_bad:,} of {num_rows:,} rows make no sense, such as "
            f"{shown[0]}; expected at most {max_bad_share:.0%}; mend the manifest, or "
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
        console.print(
            f"ids are not checked for duplicates: {check.num_rows:,} rows or more",
            highlight=False,
        )
    if check.num_missing:
        console.print(f"{check.num_missing:,} rows have no id", highlight=False)


def sample_ids(
    path: Path, rules: ShapeRules, shapes: tuple[Shape, ...]
) -> list[list[str]]:
    """Returns the ids of the samples of each shape, in the order of the rows.

    A video that is cut into several clips gives `id@0`, `id@81` and so on. The number
    is the clip's first frame, at the model's frame rate.
    """
    ids: list[list[str]] = [[] for _ in shapes]
    for rows in read_rows(path, with_ids=True):
        if rows.ids is None:
            raise InputError(
                f"{path}: a histogram has no ids, of which a schedule is made; give "
                "the manifest itself"
            )
        for name, start, place in _placed_clips(rows, rules, shapes):
            ids[place].append(name if start is None else f"{name}@{start}")
    return ids


def _placed_clips(
    rows: Rows, rules: ShapeRules, shapes: tuple[Shape, ...]
) -> Iterator[tuple[str, int | None, int]]:
    """Yields each clip's id, first frame and index into `shapes`.

    The first frame is None if the video gives one clip only.
    """
    columns = _columns(rows)
    frames = usable_frames(columns, rules)
    full, rest = cut(frames, rules)
    good = frames > 0
    size = {
        "height": np.where(good, columns.height, 1).astype(np.int64),
        "width": np.where(good, columns.width, 1).astype(np.int64),
        "count": columns.count,
    }
    longest = np.full(len(rows), rules.max_frames)
    full_place, _ = assign(Clips(frames=longest, **size), shapes, rules)
    rest_place, _ = assign(
        Clips(frames=level(np.maximum(rest, 1)), **size), shapes, rules
    )
    assert rows.ids is not None
    names = rows.ids.to_pylist()
    for i in np.flatnonzero(good).tolist():
        several = full[i] + (rest[i] > 0) > 1
        starts = range(0, int(full[i]) * rules.max_frames, rules.max_frames)
        name = names[i] or f"row {rows.first + i}"
        if full_place[i] >= 0:
            for start in starts:
                yield name, start if several else None, int(full_place[i])
        if rest[i] > 0 and rest_place[i] >= 0:
            start = int(full[i]) * rules.max_frames
            yield name, start if several else None, int(rest_place[i])


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
