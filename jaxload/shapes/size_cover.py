"""Chooses the few frame sizes that keep the most content of clips of any length.

A clip keeps its own frames, and goes to the size that keeps the most of each frame.
Preparing a dataset and planning for a list of its files choose sizes by this module, so
that both give the same sizes.
"""

import dataclasses
from collections.abc import Callable, Collection

import numpy as np

from jaxload.errors import InputError
from jaxload.shapes.assignment import assign, coarsened, grid_content
from jaxload.shapes.candidates import Candidates
from jaxload.shapes.clips import Clips
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.cover import Cover, count_left_out, too_few, without_rare
from jaxload.shapes.geometry import Geometry
from jaxload.shapes.search import search
from jaxload.shapes.shape import Shape

Size = tuple[int, int]
"""Height and width of a latent."""

_ENOUGH_SAMPLES = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class SizeCover:
    """Chosen sizes, and the latent shapes of clips that keep their own frames."""

    sizes: tuple[Size, ...]
    """Heights and widths of latents, by ascending area."""

    cover: Cover
    """All shapes that clips get in these sizes; there may be hundreds."""


def cover_sizes(
    clips: Clips,
    *,
    rules: ShapeRules,
    given: Collection[Size] = (),
    num_clips: int | None = None,
    on_attempt: Callable[[], None] = lambda: None,
) -> SizeCover:
    """Chooses at most `rules.max_sizes` sizes.

    A size is chosen only if it gets half of an even share of the clips or 16 clips,
    whichever is less, because a codec may compile a program for each size.

    Args:
        clips: Clips to choose for.
        rules: Limits on sizes, and on resizing and cropping.
        given: Sizes that a dataset already has. They are kept, and others are added if
            they gain content and there are fewer than `rules.max_sizes`.
        num_clips: Number of all clips of the dataset, if `clips` are only some.
        on_attempt: Called when candidates are compared, to show the progress.
    """
    if not len(clips) and not given:
        raise InputError("no sample to plan for: expected at least one usable row")
    stills = stills_of(given, clips.geometry)
    if num_clips is None:
        num_clips = int(clips.count.sum())
    min_samples = max(1, min(_ENOUGH_SAMPLES, num_clips // (2 * rules.max_sizes)))
    coarse = coarsened(clips, own_frames=True)
    chosen = stills
    if len(clips) and len(stills) < rules.max_sizes:
        candidates = Candidates(
            coarse,
            rules,
            on_attempt,
            own_frames=True,
            given=[still.pixels[1:] for still in stills],
        )
        chosen = search(
            candidates,
            rules,
            max_shapes=rules.max_sizes,
            min_samples=min_samples,
            given=tuple((0, candidates.index_of(*s.pixels[1:])) for s in stills),
        )
    chosen, size_of = without_rare(
        clips, chosen, rules, min_samples, own_frames=True, given=stills
    )
    if not chosen:
        raise too_few(coarsened(clips), rules, min_samples, what="size")
    shapes, num_samples = _count_shapes(clips, chosen, size_of)
    _, content = assign(coarse, chosen, rules, own_frames=True)
    return SizeCover(
        sizes=tuple(still.size for still in chosen),
        cover=Cover(
            shapes=shapes,
            num_samples=num_samples,
            content=float(content @ coarse.count),
            grid_content=grid_content(coarse, rules),
            left_out=count_left_out(clips, size_of < 0, chosen, rules),
        ),
    )


def stills_of(sizes: Collection[Size], geometry: Geometry) -> tuple[Shape, ...]:
    """Returns the shapes of one frame of some sizes, by ascending area."""
    stills = (Shape(1, *size, geometry) for size in sizes)
    return tuple(sorted(stills, key=lambda still: (still.tokens, still)))


def shapes_of(
    sizes: Collection[Size], rules: ShapeRules, geometry: Geometry
) -> tuple[Shape, ...]:
    """Returns all shapes that clips can have in some sizes."""
    most, _, _ = geometry.to_latent((rules.max_frames, *geometry.token_pixels))
    return tuple(
        still.first_frames(frames)
        for still in stills_of(sizes, geometry)
        for frames in range(1, most + 1)
    )


def _count_shapes(
    clips: Clips, chosen: tuple[Shape, ...], size_of: np.ndarray
) -> tuple[tuple[Shape, ...], tuple[int, ...]]:
    """Counts the samples of each shape, by ascending tokens."""
    found = np.flatnonzero(size_of >= 0)
    pairs, inverse = np.unique(
        np.stack([clips.frames[found], size_of[found]]), axis=1, return_inverse=True
    )
    num_samples = np.zeros(pairs.shape[1], np.int64)
    np.add.at(num_samples, inverse.ravel(), clips.count[found])
    counts = {}
    for (frames, index), count in zip(
        pairs.T.tolist(), num_samples.tolist(), strict=True
    ):
        _, height, width = chosen[index].pixels
        shape = Shape.of_pixels((frames, height, width), clips.geometry)
        counts[shape] = count
    shapes = sorted(counts, key=lambda shape: (shape.tokens, shape))
    return tuple(shapes), tuple(counts[shape] for shape in shapes)
