"""Chooses the shapes of a dataset from the scans of all its files."""

import json
from collections.abc import Collection

import numpy as np

from jaxload.errors import InputError
from jaxload.files import parse_json, written_once
from jaxload.media.cutting import num_usable
from jaxload.media.frames import Scan
from jaxload.media.history import History
from jaxload.media.part_tables import parts_directory, read_scans
from jaxload.media.preparation import Preparation
from jaxload.shapes.clips import ClipCounter, Columns
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.cover import cover
from jaxload.shapes.shape import Shape

_SHAPES = "shapes.json"
_ENOUGH_SAMPLES = 16


def settle_shapes(preparation: Preparation, history: History) -> tuple[Shape, ...]:
    """Returns the shapes of a dataset: those of a given plan, or else chosen ones.

    Shapes are chosen once all parts are scanned, at most `preparation.max_shapes` of
    them, to keep the most content. The choice is written to disk, and later calls read
    it: files of later updates are assigned to the same shapes.
    """
    if preparation.shapes is not None:
        return preparation.shapes
    path = parts_directory(preparation.out) / _SHAPES
    if not path.exists():
        counter = ClipCounter(preparation.rules, preparation.geometry)
        for i in range(len(history.parts)):
            scans, _ = read_scans(preparation.out, i)
            found = [scans[f.name] for f in history.files_of(i) if f.name in scans]
            counter.add(_columns(found, preparation.rules))
        clips = counter.clips()
        if not len(clips):
            raise InputError(
                f"{preparation.media}: no file is large enough for a clip; use other "
                "media, or lower shapes.min_fps"
            )
        chosen = cover(
            clips,
            rules=preparation.rules,
            max_shapes=preparation.max_shapes,
            min_samples=_min_samples(int(clips.count.sum()), preparation.max_shapes),
        )
        with written_once(path) as partial:
            partial.write_text(json.dumps([str(shape) for shape in chosen.shapes]))
    try:
        texts = parse_json(path.read_bytes())
        return tuple(Shape.parse(text, preparation.geometry) for text in texts)
    except (OSError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: expected a list of shapes, got what cannot be read ({error}); "
            "restore the file, or choose another --out"
        ) from error


def _min_samples(num_clips: int, max_shapes: int) -> int:
    """Returns the least number of clips per shape, because each shape costs a program.

    The result is half of an even share of the clips, and at most `_ENOUGH_SAMPLES`.
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
