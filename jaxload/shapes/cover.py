"""Chooses the few shapes that keep the most content of many distinct clips.

A clip goes to the allowed shape that keeps the most of the clip and, among equals, to
the shape with the fewest tokens.

The choice of shapes is a facility location problem, which `jaxload.shapes.search`
solves.
"""

import dataclasses
from collections.abc import Callable, Collection

import numpy as np

from jaxload.errors import InputError
from jaxload.shapes.assignment import (
    MAX_ASPECT,
    assign,
    best_of_grid,
    coarsened,
    grid_content,
    kept_pixels,
    suits_aspect,
)
from jaxload.shapes.candidates import Candidates
from jaxload.shapes.clips import Clips
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.search import search
from jaxload.shapes.shape import Shape

TOO_SHORT = "too short for the shapes of its size"
TOO_SMALL = "too small for the shapes of its aspect"
ASPECT = "aspect that no shape has"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Samples that are dropped, and the reason."""

    reason: str
    count: int
    examples: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cover:
    """Chosen shapes by ascending tokens, with the number of samples of each."""

    shapes: tuple[Shape, ...]
    num_samples: tuple[int, ...]
    content: float
    """Content that the shapes keep: pixels times frames, or tokens if prepared."""

    grid_content: float
    """Content that would be kept if all candidate shapes were used."""

    left_out: tuple[LeftOut, ...]

    @property
    def kept(self) -> float:
        """Content that the shapes keep, as a share of `grid_content`."""
        return self.content / self.grid_content


def cover(
    clips: Clips,
    *,
    rules: ShapeRules,
    max_shapes: int,
    min_samples: int,
    on_attempt: Callable[[], None] = lambda: None,
) -> Cover:
    """Chooses at most `max_shapes` shapes, each for at least `min_samples` clips.

    `on_attempt` is called when candidates are compared, to show the progress.
    """
    if not len(clips):
        raise InputError("no sample to plan for: expected at least one usable row")
    coarse = coarsened(clips)
    shapes = search(
        Candidates(coarse, rules, on_attempt),
        rules,
        max_shapes=max_shapes,
        min_samples=min_samples,
    )
    shapes, shape_of = without_rare(clips, shapes, rules, min_samples)
    if not shapes:
        raise too_few(coarse, rules, min_samples)
    num_samples = np.zeros(len(shapes), np.int64)
    np.add.at(num_samples, shape_of[shape_of >= 0], clips.count[shape_of >= 0])
    # Of coarse clips, because the content of all candidates is slow to compute.
    return Cover(
        shapes=shapes,
        num_samples=tuple(num_samples.tolist()),
        content=float(assign(coarse, shapes, rules)[1] @ coarse.count),
        grid_content=grid_content(coarse, rules),
        left_out=count_left_out(clips, shape_of < 0, shapes, rules),
    )


def without_rare(
    clips: Clips,
    shapes: tuple[Shape, ...],
    rules: ShapeRules,
    min_samples: int,
    *,
    own_frames: bool = False,
    given: Collection[Shape] = (),
) -> tuple[tuple[Shape, ...], np.ndarray]:
    """Drops shapes that get too few samples, except those that are `given`.

    Returns the others, and the index of each clip's shape, or -1.
    """
    while True:
        shape_of, _ = assign(clips, shapes, rules, own_frames=own_frames)
        num_samples = np.zeros(len(shapes), np.int64)
        np.add.at(num_samples, shape_of[shape_of >= 0], clips.count[shape_of >= 0])
        rare = [
            (count, i)
            for i, count in enumerate(num_samples.tolist())
            if count < min_samples and shapes[i] not in given
        ]
        if not rare:
            return shapes, shape_of
        _, fewest = min(rare)
        shapes = shapes[:fewest] + shapes[fewest + 1 :]


def too_few(
    clips: Clips, rules: ShapeRules, min_samples: int, what: str = "shape"
) -> InputError:
    """Returns the error of clips that give no shape or size `min_samples` samples."""
    inverse, pixels, _, _ = best_of_grid(clips, rules)
    has_shape = pixels[inverse] > 0
    if has_shape.any():
        return InputError(
            f"no {what} has {min_samples} samples or more, among "
            f"{int(clips.count[has_shape].sum())} clips; use "
            f"{'fewer replicas, or ' if what == 'shape' else ''}more data"
        )
    common = int(clips.count.argmax())
    return InputError(
        f"{int(clips.count.sum())} clips, such as {_example(clips, common)}: expected "
        f"an aspect that a shape may have, at most {MAX_ASPECT:g} to 1 after "
        f"shapes.max_crop={rules.max_crop:g} of the area is cropped; use other media, "
        "or raise shapes.max_crop"
    )


def why_left_out(
    clips: Clips, shapes: tuple[Shape, ...], rules: ShapeRules
) -> list[str]:
    """Returns the first reason why each clip has no allowed shape."""
    short, suited = np.zeros(len(clips), bool), np.zeros(len(clips), bool)
    for shape in shapes:
        sizes = (clips.height, clips.width, *shape.pixels[1:])
        short |= kept_pixels(*sizes, rules) > 0
        suited |= suits_aspect(*sizes, rules)
    # A clip of another aspect may be small as well, but a larger one would not do.
    return np.where(short, TOO_SHORT, np.where(suited, TOO_SMALL, ASPECT)).tolist()


def count_left_out(
    clips: Clips, without: np.ndarray, shapes: tuple[Shape, ...], rules: ShapeRules
) -> tuple[LeftOut, ...]:
    """Counts the clips without an allowed shape, by their first reason."""
    reason = np.array(why_left_out(clips, shapes, rules), object)
    result = []
    for name in (TOO_SHORT, TOO_SMALL, ASPECT):
        rows = np.flatnonzero(without & (reason == name))
        if len(rows):
            common = rows[np.argsort(-clips.count[rows], kind="stable")[:3]].tolist()
            examples = tuple(_example(clips, i) for i in common)
            count = int(clips.count[rows].sum())
            result.append(LeftOut(reason=name, count=count, examples=examples))
    return tuple(result)


def _example(clips: Clips, row: int) -> str:
    size = f"{clips.frames[row]}x{clips.height[row]}x{clips.width[row]}"
    return f"{size} ({clips.count[row]})"
