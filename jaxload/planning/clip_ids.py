"""Ids of the clips that the rows of a manifest are cut into, generated on demand.

A row may stand for tens of thousands of clips, so that a list of all clips would not
fit in memory. Stored are the rows of each shape, and how many clips each row has there.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from jaxload.data.workload import Rows, read_rows
from jaxload.errors import InputError
from jaxload.planning.survey import columns_of
from jaxload.shapes.assignment import assign
from jaxload.shapes.clips import tabulate, usable_frames, without_stills
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.cuts import cut_videos
from jaxload.shapes.geometry import Geometry
from jaxload.shapes.shape import Shape


@dataclasses.dataclass(frozen=True)
class _Runs:
    """Consecutive clips of one row and one shape, as columns."""

    row: np.ndarray
    """Number of the row, from 0."""

    start: np.ndarray
    """First frame of the first clip."""

    count: np.ndarray
    """Number of clips, which follow each other without a gap."""


class ClipIds:
    """Rows and first frames of the clips of each shape, in the order of the rows."""

    def __init__(
        self,
        path: Path,
        rules: ShapeRules,
        shapes: tuple[Shape, ...],
        geometry: Geometry,
    ):
        """Reads the manifest, and assigns its clips to the shapes."""
        self._max_frames = rules.max_frames
        ids, runs = [], [[] for _ in shapes]
        for rows in read_rows(path, with_ids=True):
            if rows.ids is None:
                raise InputError(
                    f"{path}: a histogram has no ids, and a schedule lists ids; give "
                    "the manifest itself"
                )
            ids.append(rows.ids)
            for shape, found in enumerate(_runs(rows, rules, shapes, geometry)):
                runs[shape].append(found)
        self._ids = pa.chunked_array(ids)
        self._runs = [_joined(found) for found in runs]
        self._ends = [np.cumsum(found.count) for found in self._runs]

    def num_clips(self, shape: int) -> int:
        """Returns the number of clips of a shape, given its index."""
        return int(self._ends[shape][-1]) if len(self._ends[shape]) else 0

    def look_up(
        self, shape: int, clips: np.ndarray
    ) -> tuple[list[str | int], list[int]]:
        """Returns the id and the first frame of some clips of a shape.

        The id is that of the row, or the row's number, from 0, if it has none. The
        first frame is counted at the model's frame rate.
        """
        runs, ends = self._runs[shape], self._ends[shape]
        index = np.searchsorted(ends, clips, side="right")
        rows = runs.row[index]
        nth = clips - (ends[index] - runs.count[index])
        starts = runs.start[index] + nth * self._max_frames
        ids = [self._ids[row].as_py() or row for row in rows.tolist()]
        return ids, starts.tolist()


def _runs(
    rows: Rows, rules: ShapeRules, shapes: tuple[Shape, ...], geometry: Geometry
) -> list[_Runs]:
    """Returns the clips of some rows, by shape."""
    columns = columns_of(rows)
    frames = usable_frames(columns, rules, geometry)
    cuts = cut_videos(frames, rules)
    height, width = (
        np.where(frames > 0, size, 1).astype(np.int64)
        for size in (columns.height, columns.width)
    )
    kept = [
        without_stills(clips, columns.num_frames > 1)[0]
        for clips in tabulate(cuts, height, width, columns.count, geometry)
    ]
    full, rest = (
        np.where(clips.count > 0, assign(clips, shapes, rules)[0], -1) for clips in kept
    )
    row = rows.first + np.arange(len(rows))
    # Two runs for each row, in order: its full clips, then the remainder.
    shape_of = np.stack([full, rest], axis=1).ravel()
    count = np.stack([cuts.num_full, cuts.rest > 0], axis=1).ravel()
    count[np.repeat(frames == 0, 2)] = 0
    start = np.stack([0 * row, cuts.num_full * rules.max_frames], axis=1).ravel()
    row = np.repeat(row, 2)
    found = []
    for shape in range(len(shapes)):
        (here,) = np.nonzero((shape_of == shape) & (count > 0))
        found.append(_Runs(row[here], start[here], count[here]))
    return found


def _joined(runs: Sequence[_Runs]) -> _Runs:
    names = [field.name for field in dataclasses.fields(_Runs)]
    return _Runs(
        **{name: np.concatenate([getattr(r, name) for r in runs]) for name in names}
    )
