"""Searches for the candidates that keep the most content.

The search is greedy, then exchanges one candidate for another while that helps. If only
content counted, a mixed dataset would lose every image, since a clip outweighs hundreds
of images. The share of content kept per sample therefore counts too, as long as enough
content is kept in total.
"""

import numpy as np

from jaxload.shapes.assignment import assign, grid_content
from jaxload.shapes.candidates import Candidates
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.shape import Shape

Choice = tuple[int, int]
"""Candidate shape: the index of its frames and the index of its size."""

# Exchanges, and shapes with the smallest losses that each exchange tries to replace.
_EXCHANGES = (32, 4)
_EXCHANGES_OF_SIZES = (256, 32)  # More, because there are fewer candidates to compare.
_MAX_ADDITIONS = 200  # Candidates to try if each shape needs many samples.
_SAMPLE_WEIGHTS = (0.5, 0.2, 0.05, 0.0)
_ENOUGH_CONTENT = 0.96  # Share to keep of the content that all candidates would keep.


def search(
    candidates: Candidates,
    rules: ShapeRules,
    *,
    max_shapes: int,
    min_samples: int,
    given: tuple[Choice, ...] = (),
) -> tuple[Shape, ...]:
    """Returns at most `max_shapes` shapes, by ascending tokens.

    Each has at least `min_samples` samples. The `given` candidates are always among
    them, with any number of samples.
    """
    clips, own_frames = candidates.clips, candidates.own_frames
    enough = _ENOUGH_CONTENT * grid_content(clips, rules)
    shapes: tuple[Shape, ...] = ()
    for weight in _SAMPLE_WEIGHTS:
        candidates.weigh_samples(weight)
        shapes = _choose(candidates, max_shapes, min_samples, given)
        _, content = assign(clips, shapes, rules, own_frames=own_frames)
        if shapes and content @ clips.count >= enough:
            break
    return shapes


def _choose(
    candidates: Candidates,
    max_shapes: int,
    min_samples: int,
    given: tuple[Choice, ...],
) -> tuple[Shape, ...]:
    """Chooses shapes greedily, then by exchanges; returns them by ascending tokens.

    The given candidates come first in each choice and stay there.
    """
    starts = [[*given], *([*given, c] for c in candidates.starts() if c not in given)]
    options = (
        _exchange(candidates, _grow(candidates, start, max_shapes), len(given))
        for start in starts
        if len(start) <= max(max_shapes, len(given))
    )
    chosen = max(options, key=candidates.worth)
    if _fewest(candidates, chosen, len(given))[1] < min_samples:
        chosen = _with_enough(candidates, chosen, max_shapes, min_samples, len(given))
    shapes = (candidates.shape(*c) for c in chosen)
    return tuple(sorted(shapes, key=lambda shape: (shape.tokens, shape)))


def _fewest(
    candidates: Candidates, chosen: list[Choice], num_given: int
) -> tuple[int, float]:
    """Returns the chosen candidate with the fewest samples, and their number.

    Given candidates do not count; without others, the number is infinite.
    """
    if len(chosen) <= num_given:
        return -1, np.inf
    samples = candidates.samples(chosen).astype(float)
    samples[:num_given] = np.inf
    fewest = int(samples.argmin())
    return fewest, float(samples[fewest])


def _with_enough(
    candidates: Candidates,
    chosen: list[Choice],
    max_shapes: int,
    min_samples: int,
    num_given: int,
) -> list[Choice]:
    """Drops shapes with too few samples, then adds shapes that leave enough to all."""
    chosen = list(chosen)
    fewest, samples = _fewest(candidates, chosen, num_given)
    while samples < min_samples:
        # Samples of the dropped shape go to other shapes, which may then have enough.
        del chosen[fewest]
        fewest, samples = _fewest(candidates, chosen, num_given)
    while len(chosen) < max_shapes:
        gains = candidates.gains(_kept(candidates, chosen))
        order = np.argsort(-gains, axis=None, kind="stable")[:_MAX_ADDITIONS]
        for level, size in zip(*np.unravel_index(order, gains.shape), strict=True):
            more = [*chosen, (int(level), int(size))]
            _, samples = _fewest(candidates, more, num_given)
            if gains[level, size] > 0 and samples >= min_samples:
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


def _exchange(
    candidates: Candidates, chosen: list[Choice], num_given: int
) -> list[Choice]:
    """Replaces one of the least useful shapes by a better one, repeatedly.

    Keeps the first `num_given` shapes.
    """
    chosen = list(chosen)
    most, tries = _EXCHANGES_OF_SIZES if candidates.own_frames else _EXCHANGES
    for _ in range(most if chosen else 0):
        content = np.stack([candidates.content(*c) for c in chosen])
        shape_of = content.argmax(axis=0)
        nothing = np.zeros_like(content[:1])
        top = np.sort(np.concatenate([content, nothing]), axis=0)[-2:]
        losses = np.bincount(
            shape_of, (top[1] - top[0]) * candidates.weight, len(chosen)
        )
        order = num_given + np.argsort(losses[num_given:], kind="stable")
        for out in order[:tries].tolist():
            kept = np.where(shape_of == out, top[0], top[1])
            best, gain = _best_addition(candidates, kept)
            if gain > losses[out] * (1 + 1e-6):
                chosen[out] = best
                break
        else:
            break
    return chosen
