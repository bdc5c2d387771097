"""Chooses the few shapes that keep the most content of many kinds of clips.

Of the shapes that a clip fits, it goes to the one that keeps the most of it and, among
equals, to the one with the fewest tokens.

Which shapes to choose is a problem of facility location: greedily, then by exchanging
one shape for another while that helps. Content alone would leave out every image of a
mixed data set, since a clip outweighs hundreds; so each sample also counts for itself,
as much as the content allows.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from jaxload.errors import InputError
from jaxload.shapes.assignment import (
    SLACK,
    assign,
    coarsened,
    grid_content,
    kept_pixels,
)
from jaxload.shapes.candidates import Kinds
from jaxload.shapes.clips import Clips, ShapeRules
from jaxload.shapes.shape import Shape

Choice = tuple[int, int]
"""A candidate shape: the index of its frames, and of its size."""

TOO_SHORT = "too short for the shapes of its size"
TOO_SMALL = "too small for every shape"
ASPECT = "aspect that no shape has"

_MAX_EXCHANGES = 32
_MAX_GIVEN_UP = 4  # Shapes, of those that are missed least, that an exchange tries.
_MAX_ADDITIONS = 200  # Shapes that are tried where each needs many samples.
_SAMPLE_WEIGHTS = (0.5, 0.2, 0.05, 0.0)
_ENOUGH_CONTENT = 0.96  # Of the grid's; what is above may be given up for samples.


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Samples that are not trained on, and why."""

    reason: str
    count: int
    examples: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cover:
    """Shapes by ascending tokens, with what each of them takes."""

    shapes: tuple[Shape, ...]
    num_samples: tuple[int, ...]
    content: float
    """Pixels times frames that the shapes keep."""

    grid_content: float
    """The same if every candidate shape were there."""

    left_out: tuple[LeftOut, ...]

    @property
    def kept(self) -> float:
        """Share of the grid's content that the shapes keep."""
        return self.content / self.grid_content


def cover(
    clips: Clips, *, rules: ShapeRules, max_shapes: int, min_samples: int
) -> Cover:
    """Chooses at most `max_shapes` shapes, each for at least `min_samples` clips."""
    if not len(clips):
        raise InputError("no sample to plan for: expected at least one usable row")
    coarse = coarsened(clips)
    kinds = Kinds(coarse, rules)
    enough = _ENOUGH_CONTENT * grid_content(coarse, rules)
    shapes: tuple[Shape, ...] = ()
    for weight in _SAMPLE_WEIGHTS:
        kinds.weigh_samples(weight)
        shapes = _choose(kinds, max_shapes, min_samples)
        if shapes and assign(coarse, shapes, rules)[1] @ coarse.count >= enough:
            break
    return _covered_by(clips, shapes, rules, min_samples)


def cover_exactly(
    counts: Mapping[Shape, int], *, max_shapes: int, min_samples: int
) -> Cover:
    """Chooses among the shapes that prepared samples have; none fits another's.

    Content is tokens times samples.
    """
    if not counts:
        raise InputError("no sample to plan for: expected a data set with at least one")

    def content(shape: Shape) -> int:
        return shape.tokens * counts[shape]

    rare = [shape for shape in sorted(counts) if counts[shape] < min_samples]
    # Content first; the shape itself breaks ties, so that the order is total.
    common = sorted(set(counts) - set(rare), key=lambda shape: (-content(shape), shape))
    if not common:
        raise InputError(
            f"no shape has {min_samples} samples, which a batch for each replica "
            f"takes; the largest count is {max(counts.values())}; use fewer replicas, "
            "a smaller mesh.fsdp or balance.batch_multiple, or more data"
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
    """What shapes take, without those that too few samples go to."""
    # What is kept is compared with the grid, which would take long for every kind.
    coarse = coarsened(clips)
    while shapes:
        place, _ = assign(clips, shapes, rules)
        num_samples = np.zeros(len(shapes), np.int64)
        np.add.at(num_samples, place[place >= 0], clips.count[place >= 0])
        fewest = int(num_samples.argmin())
        if num_samples[fewest] >= min_samples:
            content = float(assign(coarse, shapes, rules)[1] @ coarse.count)
            return Cover(
                shapes=shapes,
                num_samples=tuple(num_samples.tolist()),
                content=content,
                grid_content=grid_content(coarse, rules),
                left_out=_left_out(clips, place < 0, shapes, rules),
            )
        shapes = shapes[:fewest] + shapes[fewest + 1 :]
    raise InputError(
        f"no shape has {min_samples} samples or more, among {int(clips.count.sum())} "
        "clips; use fewer replicas, or more data"
    )


def _choose(kinds: Kinds, max_shapes: int, min_samples: int) -> tuple[Shape, ...]:
    """Greedy choice, improved by exchanges; by ascending tokens."""
    starts = [[], *([c] for c in kinds.few_shapes())]
    options = (_exchange(kinds, _grow(kinds, s, max_shapes)) for s in starts)
    chosen = max(options, key=kinds.worth)
    if chosen and kinds.samples(chosen).min() < min_samples:
        chosen = _with_enough(kinds, chosen, max_shapes, min_samples)
    shapes = (kinds.shape(*c) for c in chosen)
    return tuple(sorted(shapes, key=lambda shape: (shape.tokens, shape)))


def _with_enough(
    kinds: Kinds, chosen: list[Choice], max_shapes: int, min_samples: int
) -> list[Choice]:
    """Gives up shapes for too few samples, then adds such as leave enough to all."""
    chosen = list(chosen)
    while chosen and (samples := kinds.samples(chosen)).min() < min_samples:
        # What the smallest had goes to the others, which may save the next smallest.
        del chosen[int(samples.argmin())]
    while len(chosen) < max_shapes:
        gains = kinds.gains(_kept(kinds, chosen))
        order = np.argsort(-gains, axis=None, kind="stable")[:_MAX_ADDITIONS]
        for level, size in zip(*np.unravel_index(order, gains.shape), strict=True):
            more = [*chosen, (int(level), int(size))]
            if gains[level, size] > 0 and kinds.samples(more).min() >= min_samples:
                chosen = more
                break
        else:
            break
    return chosen


def _grow(kinds: Kinds, chosen: list[Choice], max_shapes: int) -> list[Choice]:
    """Adds the shape that helps most until there are enough or none helps."""
    chosen = list(chosen)
    kept = _kept(kinds, chosen)
    while len(chosen) < max_shapes:
        best, gain = _best_addition(kinds, kept)
        if gain <= 0:
            break
        chosen.append(best)
        kept = np.maximum(kept, kinds.content(*best))
    return chosen


def _kept(kinds: Kinds, chosen: list[Choice]) -> np.ndarray:
    """What each kind keeps in the best of some shapes."""
    kept = np.zeros(len(kinds.clips))
    for c in chosen:
        kept = np.maximum(kept, kinds.content(*c))
    return kept


def _best_addition(kinds: Kinds, kept: np.ndarray) -> tuple[Choice, float]:
    gains = kinds.gains(kept)
    if not gains.size:  # No clip fits any shape.
        return (0, 0), 0.0
    level, size = np.unravel_index(gains.argmax(), gains.shape)
    return (int(level), int(size)), float(gains[level, size])


def _exchange(kinds: Kinds, chosen: list[Choice]) -> list[Choice]:
    """Gives up one of the shapes that are missed least for a better one, repeatedly."""
    chosen = list(chosen)
    for _ in range(_MAX_EXCHANGES if chosen else 0):
        content = np.stack([kinds.content(*c) for c in chosen])
        place = content.argmax(axis=0)
        nothing = np.zeros_like(content[:1])
        top = np.sort(np.concatenate([content, nothing]), axis=0)[-2:]
        losses = np.bincount(place, (top[1] - top[0]) * kinds.weight, len(chosen))
        for out in np.argsort(losses, kind="stable")[:_MAX_GIVEN_UP].tolist():
            kept = np.where(place == out, top[0], top[1])
            best, gain = _best_addition(kinds, kept)
            if gain > losses[out] * (1 + 1e-6):
                chosen[out] = best
                break
        else:
            break
    return chosen


def why_left_out(
    clips: Clips, shapes: tuple[Shape, ...], rules: ShapeRules
) -> list[str]:
    """For clips that fit no shape, the first thing that is in the way of each."""
    small, short = np.ones(len(clips), bool), np.zeros(len(clips), bool)
    for shape in shapes:
        _, to_height, to_width = shape.pixels
        scale = np.maximum(to_height / clips.height, to_width / clips.width)
        small &= scale > rules.max_upscale + SLACK
        kept = kept_pixels(clips.height, clips.width, to_height, to_width, rules)
        short |= kept > 0
    return np.where(small, TOO_SMALL, np.where(short, TOO_SHORT, ASPECT)).tolist()


def _left_out(
    clips: Clips, without: np.ndarray, shapes: tuple[Shape, ...], rules: ShapeRules
) -> tuple[LeftOut, ...]:
    """Counts the clips that fit no shape by the first thing that is in the way."""
    reason = np.array(why_left_out(clips, shapes, rules), object)
    result = []
    for name in (TOO_SHORT, TOO_SMALL, ASPECT):
        those = np.flatnonzero(without & (reason == name))
        if len(those):
            common = those[np.argsort(-clips.count[those], kind="stable")[:3]]
            examples = tuple(
                f"{clips.frames[i]}x{clips.height[i]}x{clips.width[i]} "
                f"({clips.count[i]})"
                for i in common
            )
            count = int(clips.count[those].sum())
            result.append(LeftOut(reason=name, count=count, examples=examples))
    return tuple(result)
