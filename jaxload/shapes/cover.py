"""Chooses the few shapes that keep the most content of many distinct clips.

A clip goes to the allowed shape that keeps the most of the clip and, among equals, to
the shape with the fewest tokens.

The choice of shapes is a facility location problem. It is solved greedily, then by
exchanging one shape for another while that helps. If only content counted, a mixed
dataset would lose every image, since a clip outweighs hundreds of images. The share of
content kept per sample therefore counts too, as long as enough content is kept in
total.
"""

import dataclasses
from collections.abc import Callable, Mapping

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
from jaxload.shapes.shape import Shape

Choice = tuple[int, int]
"""Candidate shape: the index of its frames and the index of its size."""

TOO_SHORT = "too short for the shapes of its size"
TOO_SMALL = "too small for the shapes of its aspect"
ASPECT = "aspect that no shape has"

_MAX_EXCHANGES = 32
_MAX_GIVEN_UP = 4  # Shapes with the smallest losses that an exchange tries to replace.
_MAX_ADDITIONS = 200  # Candidates to try if each shape needs many samples.
_SAMPLE_WEIGHTS = (0.5, 0.2, 0.05, 0.0)
_ENOUGH_CONTENT = 0.96  # Share to keep of the content that all candidates would keep.


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
    candidates = Candidates(coarse, rules, on_attempt)
    enough = _ENOUGH_CONTENT * grid_content(coarse, rules)
    shapes: tuple[Shape, ...] = ()
    for weight in _SAMPLE_WEIGHTS:
        candidates.weigh_samples(weight)
        shapes = _choose(candidates, max_shapes, min_samples)
        if shapes and assign(coarse, shapes, rules)[1] @ coarse.count >= enough:
            break
    return _covered_by(clips, shapes, rules, min_samples)


def cover_exactly(
    counts: Mapping[Shape, int], *, max_shapes: int, min_samples: int
) -> Cover:
    """Chooses among the shapes of prepared samples, which are not resized again.

    Content is tokens times samples.
    """
    if not counts:
        raise InputError("no sample to plan for: expected a dataset with at least one")

    def content(shape: Shape) -> int:
        return shape.tokens * counts[shape]

    rare = [shape for shape in sorted(counts) if counts[shape] < min_samples]
    # Sorted by content; the shape itself breaks ties, so that the order is total.
    common = sorted(set(counts) - set(rare), key=lambda shape: (-content(shape), shape))
    if not common:
        raise InputError(
            f"no shape has {min_samples} samples, one batch for each replica; the "
            f"largest count is {max(counts.values())}; use fewer replicas, a smaller "
            "mesh.fsdp or balance.batch_multiple, or more data"
        )
    kept = sorted(common[:max_shapes], key=lambda shape: (shape.tokens, shape))
    left_out = (
        (f"fewer than {min_samples} samples, a batch for each replica", rare),
        (
            f"not among the {max_shapes} shapes with the most content",
            common[max_shapes:],
        ),
    )
    return Cover(
        shapes=tuple(kept),
        num_samples=tuple(counts[shape] for shape in kept),
        content=float(sum(map(content, kept))),
        grid_content=float(sum(map(content, counts))),
        left_out=tuple(
            LeftOut(
                reason=reason,
                count=sum(counts[shape] for shape in shapes),
                examples=tuple(f"{shape} ({counts[shape]})" for shape in shapes[:3]),
            )
            for reason, shapes in left_out
            if shapes
        ),
    )


def _covered_by(
    clips: Clips, shapes: tuple[Shape, ...], rules: ShapeRules, min_samples: int
) -> Cover:
    """Assigns clips to shapes; drops shapes that get too few samples."""
    # Coarse clips, because the content of all candidates is slow to compute.
    coarse = coarsened(clips)
    while shapes:
        shape_of, _ = assign(clips, shapes, rules)
        num_samples = np.zeros(len(shapes), np.int64)
        np.add.at(num_samples, shape_of[shape_of >= 0], clips.count[shape_of >= 0])
        fewest = int(num_samples.argmin())
        if num_samples[fewest] >= min_samples:
            content = float(assign(coarse, shapes, rules)[1] @ coarse.count)
            return Cover(
                shapes=shapes,
                num_samples=tuple(num_samples.tolist()),
                content=content,
                grid_content=grid_content(coarse, rules),
                left_out=_left_out(clips, shape_of < 0, shapes, rules),
            )
        shapes = shapes[:fewest] + shapes[fewest + 1 :]
    raise _too_few(coarse, rules, min_samples)


def _too_few(clips: Clips, rules: ShapeRules, min_samples: int) -> InputError:
    """Returns the error of clips that give no shape `min_samples` samples."""
    inverse, pixels, _, _ = best_of_grid(clips, rules)
    has_shape = pixels[inverse] > 0
    if has_shape.any():
        return InputError(
            f"no shape has {min_samples} samples or more, among "
            f"{int(clips.count[has_shape].sum())} clips; use fewer replicas, or more "
            "data"
        )
    common = int(clips.count.argmax())
    return InputError(
        f"{int(clips.count.sum())} clips, such as {_example(clips, common)}: expected "
        f"an aspect that a shape may have, at most {MAX_ASPECT:g} to 1 after "
        f"shapes.max_crop={rules.max_crop:g} of the area is cropped; use other media, "
        "or raise shapes.max_crop"
    )


def _choose(
    candidates: Candidates, max_shapes: int, min_samples: int
) -> tuple[Shape, ...]:
    """Chooses shapes greedily, then by exchanges; returns them by ascending tokens."""
    starts = [[], *([c] for c in candidates.starts())]
    options = (_exchange(candidates, _grow(candidates, s, max_shapes)) for s in starts)
    chosen = max(options, key=candidates.worth)
    if chosen and candidates.samples(chosen).min() < min_samples:
        chosen = _with_enough(candidates, chosen, max_shapes, min_samples)
    shapes = (candidates.shape(*c) for c in chosen)
    return tuple(sorted(shapes, key=lambda shape: (shape.tokens, shape)))


def _with_enough(
    candidates: Candidates, chosen: list[Choice], max_shapes: int, min_samples: int
) -> list[Choice]:
    """Drops shapes with too few samples, then adds shapes that leave enough to all."""
    chosen = list(chosen)
    while chosen and (samples := candidates.samples(chosen)).min() < min_samples:
        # Samples of the dropped shape go to other shapes, which may then have enough.
        del chosen[int(samples.argmin())]
    while len(chosen) < max_shapes:
        gains = candidates.gains(_kept(candidates, chosen))
        order = np.argsort(-gains, axis=None, kind="stable")[:_MAX_ADDITIONS]
        for level, size in zip(*np.unravel_index(order, gains.shape), strict=True):
            more = [*chosen, (int(level), int(size))]
            if gains[level, size] > 0 and candidates.samples(more).min() >= min_samples:
                chosen = more
                break
        else:
            break
    return chosen


def _grow(
    candidates: Candidates, chosen: list[Choice], max_shapes: int
) -> list[Choice]:
    """Adds the shape that helps most, up to `max_shapes` or until none helps."""
    chosen = list(chosen)
    kept = _kept(candidates, chosen)
    while len(chosen) < max_shapes:
        best, gain = _best_addition(candidates, kept)
        if gain <= 0:
            break
        chosen.append(best)
        kept = np.maximum(kept, candidates.content(*best))
    return chosen


def _kept(candidates: Candidates, chosen: list[Choice]) -> np.ndarray:
    """Returns the worth of each distinct clip in the best of some shapes."""
    kept = np.zeros(len(candidates.clips))
    for c in chosen:
        kept = np.maximum(kept, candidates.content(*c))
    return kept


def _best_addition(candidates: Candidates, kept: np.ndarray) -> tuple[Choice, float]:
    gains = candidates.gains(kept)
    if not gains.size:  # No shape is allowed for any clip.
        return (0, 0), 0.0
    level, size = np.unravel_index(gains.argmax(), gains.shape)
    return (int(level), int(size)), float(gains[level, size])


def _exchange(candidates: Candidates, chosen: list[Choice]) -> list[Choice]:
    """Replaces one of the least useful shapes by a better one, repeatedly."""
    chosen = list(chosen)
    for _ in range(_MAX_EXCHANGES if chosen else 0):
        content = np.stack([candidates.content(*c) for c in chosen])
        shape_of = content.argmax(axis=0)
        nothing = np.zeros_like(content[:1])
        top = np.sort(np.concatenate([content, nothing]), axis=0)[-2:]
        losses = np.bincount(
            shape_of, (top[1] - top[0]) * candidates.weight, len(chosen)
        )
        for out in np.argsort(losses, kind="stable")[:_MAX_GIVEN_UP].tolist():
            kept = np.where(shape_of == out, top[0], top[1])
            best, gain = _best_addition(candidates, kept)
            if gain > losses[out] * (1 + 1e-6):
                chosen[out] = best
                break
        else:
            break
    return chosen


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


def _left_out(
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
