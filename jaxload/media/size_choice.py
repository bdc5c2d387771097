"""Chooses the frame sizes of a dataset from the scans of all its files.

Each update of the media has sizes of its own: those of the update before, and more if
there are fewer than `shapes.max_sizes`. They are recorded before anything is encoded,
so that all machines, and all later runs, encode a part with the same sizes.
"""

import json
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from jaxload.errors import InputError
from jaxload.files import parse_json, written_once
from jaxload.media.cutting import num_usable
from jaxload.media.frames import Scan
from jaxload.media.history import History
from jaxload.media.part_tables import parts_directory, read_scans
from jaxload.media.preparation import Preparation
from jaxload.shapes.clips import ClipCounter, Clips, Columns
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.geometry import Geometry
from jaxload.shapes.shape import Shape
from jaxload.shapes.size_cover import Size, cover_sizes, stills_of

_SHAPES = "shapes.json"  # Earlier versions chose shapes, with frames, and only once.


def settle_sizes(
    preparation: Preparation, history: History
) -> tuple[tuple[Size, ...], ...]:
    """Returns the sizes of each update: those of a given plan, or else chosen ones.

    Sizes are chosen once all parts are scanned, to keep the most content.
    """
    if preparation.sizes is not None:
        return (preparation.sizes,) * len(history.updates)
    sizes: list[tuple[Size, ...]] = []
    for update in range(len(history.updates)):
        given = sizes[-1] if sizes else ()
        parts = history.parts_of(update)
        if given and not parts:  # Files were removed, or only seen again.
            sizes.append(given)
            continue
        if not _is_recorded(preparation.out, update):
            chosen = _choose(preparation, history, parts, given)
            write_sizes(preparation.out, update, chosen)
        sizes.append(read_sizes(preparation.out, update, preparation.geometry))
    return tuple(sizes)


def copy_sizes(
    source: Path, out: Path, history: History, planned: tuple[Size, ...]
) -> None:
    """Records the sizes of another dataset for each update that encodes files.

    Shapes of an earlier version give their sizes to all updates.

    Args:
        source: Directory of the other dataset.
        out: Directory to record the sizes in.
        history: Updates of the other dataset.
        planned: Sizes that a plan gave to the other dataset, if it chose none.
    """
    geometry, sizes = Geometry(patch=(1, 1, 1)), planned
    for update in range(len(history.updates)):
        if _is_recorded(source, update):
            sizes = read_sizes(source, update, geometry)
        if history.parts_of(update):
            write_sizes(out, update, sizes)


def write_sizes(out: Path, update: int, sizes: Sequence[Size]) -> None:
    """Records the sizes of an update, unless another process has recorded some."""
    with written_once(_path(out, update)) as partial:
        partial.write_text(json.dumps([f"{h}x{w}" for h, w in sizes]))


def read_sizes(out: Path, update: int, geometry: Geometry) -> tuple[Size, ...]:
    """Reads the sizes of an update, by ascending area."""
    path = _path(out, update)
    if update == 0 and not path.exists():
        path = path.with_name(_SHAPES)
    try:
        texts = parse_json(path.read_bytes())
        frames = "" if path.name == _SHAPES else "1x"
        sizes = {Shape.parse(f"{frames}{text}", geometry).size for text in texts}
        if not sizes:
            raise ValueError("an empty list")
    except (OSError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: expected a list of sizes, got what cannot be read ({error}); "
            "restore the file, or choose another --out"
        ) from error
    return tuple(still.size for still in stills_of(sizes, geometry))


def _path(out: Path, update: int) -> Path:
    name = f"sizes-{update:05d}.json" if update else "sizes.json"
    return parts_directory(out) / name


def _is_recorded(out: Path, update: int) -> bool:
    path = _path(out, update)
    return path.exists() or (update == 0 and path.with_name(_SHAPES).exists())


def _choose(
    preparation: Preparation,
    history: History,
    parts: range,
    given: tuple[Size, ...],
) -> tuple[Size, ...]:
    """Chooses the sizes of an update, which encodes some parts."""
    clips = _clips(preparation, history, parts)
    if not given and not len(clips):
        raise InputError(
            f"{preparation.media}: no file is large enough for a clip; use other "
            "media, or lower shapes.min_fps"
        )
    num_clips = int(clips.count.sum())
    if given:
        num_clips += int(_clips(preparation, history, range(parts.start)).count.sum())
    rules = preparation.rules
    return cover_sizes(clips, rules=rules, given=given, num_clips=num_clips).sizes


def _clips(preparation: Preparation, history: History, parts: range) -> Clips:
    """Counts the clips of the files of some parts that are still there."""
    counter = ClipCounter(preparation.rules, preparation.geometry)
    for i in parts:
        scans, _ = read_scans(preparation.out, i)
        found = [scans[f.name] for f in history.files_of(i) if f.name in scans]
        counter.add(_columns(found, preparation.rules))
    return counter.clips()


def _columns(scans: Collection[Scan], rules: ShapeRules) -> Columns:
    """Returns scans as columns of a manifest, with frames at the model's rate.

    A video of which only one frame is taken is left out, as it becomes no clip.
    """
    scans = [s for s in scans if s.num_frames == 1 or num_usable(s, rules) != 1]
    return Columns(
        num_frames=np.array([num_usable(scan, rules) for scan in scans], float),
        height=np.array([scan.height for scan in scans], float),
        width=np.array([scan.width for scan in scans], float),
        fps=np.full(len(scans), np.nan),
        count=np.ones(len(scans), np.int64),
    )
