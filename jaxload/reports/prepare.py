"""Reports a preparation: prints a table, writes a CSV file and draws a preview."""

import csv
import io
import operator
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from jaxload.codecs.codec import Codec, load_codec
from jaxload.codecs.decoded import decode_clip
from jaxload.console import Console, visible
from jaxload.data.manifest import Manifest, read_manifest
from jaxload.data.record import decode_record
from jaxload.data.source import open_records
from jaxload.errors import InputError
from jaxload.files import write_atomically
from jaxload.media.captions import shown
from jaxload.media.cutting import LeftOutClip
from jaxload.media.history import Change
from jaxload.media.prepared import Prepared
from jaxload.media.problem import Problem
from jaxload.shapes.geometry import Geometry
from jaxload.shapes.shape import Shape
from jaxload.shapes.token_order import to_latent

REPORT = "report.csv"
PREVIEW = "preview.png"

_COLUMN_NAMES = ("size", "pixels", "frames", "tokens", "clips", "all frames")
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_NUM_EXAMPLES = 3
_MAX_ROWS = 12  # Clips that the preview shows.
_MAX_LENGTHS = 3  # Clips of one size.
_COLUMNS = 3  # Frames of each clip: the first, the middle and the last.


def print_prepared(prepared: Prepared, console: Console) -> None:
    """Prints the kept clips by size, and the files and clips left out by reason."""
    table = Table(title="Prepared clips", box=None, padding=(0, 1))
    for name in _COLUMN_NAMES:
        table.add_column(name, justify="right")
    by_size: dict[tuple[int, int], list[Shape]] = defaultdict(list)
    for shape in sorted(prepared.counts, key=lambda shape: (shape.tokens, shape)):
        by_size[shape.size].append(shape)
    for (height, width), shapes in by_size.items():
        frames = [shape.pixels[0] for shape in shapes]
        counts = [prepared.counts[shape] for shape in shapes]
        table.add_row(
            f"{height}x{width}",
            "x".join(map(str, shapes[0].pixels[1:])),
            _range(frames),
            _range([shape.tokens for shape in shapes]),
            f"{sum(counts):,}",
            f"{sum(map(operator.mul, frames, counts)):,}",
        )
    console.print(table)
    for line in _lines(prepared):
        console.say(line)


def _range(values: Sequence[int]) -> str:
    """Describes ascending numbers by the first and the last."""
    ends = dict.fromkeys((values[0], values[-1]))
    return " to ".join(f"{value:,}" for value in ends)


def _lines(prepared: Prepared) -> Iterator[str]:
    if not prepared.is_first:
        yield _changes(prepared)
    frames, num_clips = prepared.frames, sum(prepared.counts.values())
    yield (
        f"kept {num_clips:,} clips from {prepared.num_used:,} of "
        f"{prepared.num_files:,} files, "
        f"{prepared.num_bytes / 1e6:,.1f} MB"
    )
    if frames.decoded:
        yield (
            f"frames: {frames.decoded:,} decoded, {frames.kept:,} kept; dropped "
            f"{frames.resampled:,} to reach the model's frame rate, {frames.uneven:,} "
            f"to round clips to the codec's stride, {frames.left_out:,} in clips left "
            "out"
        )
    for outcome, reason, names in _groups(prepared):
        examples = ", ".join(map(shown, names[:_NUM_EXAMPLES]))
        yield f"  {outcome} {len(names):,}: {reason}, such as {examples}"


def _changes(prepared: Prepared) -> str:
    """Describes an update in one line, with the number of files of each change."""
    counts = Counter(prepared.changes.values())
    num_changed = sum(counts.values()) - counts[Change.REMOVED]
    unchanged = f"{prepared.num_files - num_changed:,} unchanged"
    if not counts:
        return f"nothing to update: {unchanged}"
    changes = [
        f"{counts[change]:,} {change}"
        for change in Change
        if change not in (Change.RETRIED, Change.SEEN) or counts[change]
    ]
    return (
        f"files: {', '.join(changes)}, {unchanged}; {prepared.num_masked:,} clips of "
        "before are masked"
    )


def _groups(prepared: Prepared) -> Iterator[tuple[str, str, list[str]]]:
    """Yields outcome, reason and names; within an outcome, frequent reasons first."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in _left_out_rows(prepared.problems, prepared.left_out):
        groups[row.outcome, row.reason].append(row.name)
    order = ("bad", "left out", "noted")
    for outcome, reason in sorted(
        groups, key=lambda group: (order.index(group[0]), -len(groups[group]), group)
    ):
        yield outcome, reason, groups[outcome, reason]


class _Row(NamedTuple):
    """Row of the report."""

    outcome: str
    name: str
    """Path of the file, relative to the media folder."""

    reason: str = ""
    detail: str = ""
    start: int | str = ""
    """First frame of the clip; empty for a whole file."""


def _left_out_rows(
    problems: Iterable[Problem], left_out: Iterable[LeftOutClip]
) -> Iterator[_Row]:
    for problem in problems:
        outcome = "bad" if problem.bad else "noted"
        yield _Row(outcome, problem.name, problem.reason, problem.detail)
    for clip in left_out:
        start = "" if clip.start is None else clip.start
        yield _Row("left out", clip.source, clip.reason, clip.detail, start)


def write_report(
    out: Path,
    problems: Iterable[Problem],
    left_out: Iterable[LeftOutClip],
    changes: Mapping[str, Change],
) -> Path:
    """Writes a CSV file of files and clips with a problem, left out or changed."""
    rows = [
        *_left_out_rows(problems, left_out),
        *(_Row(str(change), name) for name, change in changes.items()),
    ]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(_Row._fields)
    writer.writerows(map(_without_formulas, sorted(rows)))
    path = out / REPORT
    write_atomically(path, text.getvalue())
    return path


def _without_formulas(row: _Row) -> _Row:
    """Returns a row that a spreadsheet does not evaluate, with the same files."""
    name, detail = row.name, row.detail
    if name.startswith(_FORMULA_STARTS):
        name = f"./{name}"
    if detail.startswith(_FORMULA_STARTS):
        detail = f"'{detail}"  # Spreadsheets take the rest as text.
    return row._replace(name=name, detail=detail)


def draw_preview(out: Path, geometry: Geometry) -> None:
    """Draws clips of each size, decoded from their records, as the model sees them."""
    manifest = read_manifest(out, geometry)
    codec = load_codec(manifest.fingerprint["codec"])
    shapes = _shapes_to_draw(manifest)
    size = (2 * _COLUMNS, 1.3 * len(shapes))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(shapes), _COLUMNS, squeeze=False)
    for axes, (row, pictures) in zip(
        grid, _pictures(manifest, shapes, codec), strict=True
    ):
        for cell, picture in zip(axes, pictures, strict=False):
            cell.imshow(picture)
        for cell in axes:
            cell.axis("off")
        axes[0].set_title(row, fontsize=8, loc="left", parse_math=False)
    figure.savefig(out / PREVIEW, dpi=100)


def _shapes_to_draw(manifest: Manifest) -> list[Shape]:
    """Selects the most frequent length of each size first, then further lengths."""
    rows, seen = manifest.rows_by_shape, Counter[tuple[int, int]]()
    ranked = []
    for shape in sorted(rows, key=lambda shape: (-len(rows[shape]), shape)):
        ranked.append((seen[shape.size], -len(rows[shape]), shape))
        seen[shape.size] += 1
    few = sorted(entry for entry in ranked if entry[0] < _MAX_LENGTHS)[:_MAX_ROWS]
    return sorted((shape for *_, shape in few), key=lambda s: (s.tokens, s))


def _pictures(
    manifest: Manifest, shapes: Iterable[Shape], codec: Codec
) -> Iterator[tuple[str, list[np.ndarray]]]:
    records = open_records(manifest)
    ids = manifest.read_column("id")
    for shape in shapes:
        row = int(manifest.rows_by_shape[shape][0])
        tokens = decode_record(records[row]).tokens
        latent = to_latent(tokens, shape.token_grid, shape.geometry.patch)
        try:
            video = decode_clip(codec, latent)
        except InputError as error:
            raise InputError(
                f"dataset {manifest.directory}: complete, but without preview.png: "
                f"{error}, and run the same command again"
            ) from error
        chosen = sorted({0, len(video) // 2, len(video) - 1})
        # ASCII, because the figure's font lacks some characters of file names.
        name = visible(ids[row].as_py()).encode("ascii", "backslashreplace").decode()
        title = f"{'x'.join(map(str, shape.pixels))}  {name}"
        yield title, [video[i] for i in chosen]
