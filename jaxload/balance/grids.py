"""Chooses the shapes of programs whose samples all have one grid.

Samples have one of few frame sizes, and any number of frames. A sample goes to the
longest chosen shape of its size, and runs by as many of its first latent frames. The
best shapes are found by dynamic programming over the frames of each size, and then over
sizes.
"""

from collections.abc import Mapping

import numpy as np

from jaxload.balance.form import Grid
from jaxload.shapes.shape import Shape

_Group = tuple[int, int, bool]
"""Height, width, and whether samples are stills, which share no shape with clips."""

_Option = tuple[float, tuple[Shape, ...]]
"""Tokens kept by some shapes, and these shapes."""

_NOTHING: _Option = (0.0, ())


def choose_grids(
    counts: Mapping[Shape, int], *, max_grids: int, min_samples: int, may_cut: bool
) -> tuple[Grid, ...]:
    """Chooses the shapes that keep the most tokens, by ascending tokens.

    Args:
        counts: Number of samples of each shape.
        max_grids: Most shapes.
        min_samples: Fewest samples of a shape.
        may_cut: Whether a sample may run by its first latent frames.

    Returns:
        The shapes; none if no shape has enough samples.
    """
    groups: dict[_Group, list[Shape]] = {}
    for shape in sorted(counts):
        groups.setdefault((*shape.size, shape.frames == 1), []).append(shape)
    best = [_NOTHING]
    for shapes in groups.values():
        number = np.array([counts[shape] for shape in shapes], np.int64)
        found = _levels(shapes, number, max_grids, min_samples, may_cut=may_cut)
        best = _combined(best, found, max_grids)
    chosen = max(best, key=lambda option: (option[0], -len(option[1])))[1]
    ordered = sorted(chosen, key=lambda shape: (shape.tokens, shape))
    return tuple(Grid.of(shape) for shape in ordered)


def _combined(one: list[_Option], other: list[_Option], most: int) -> list[_Option]:
    """Returns the best union of two options for each number of shapes."""
    size = min(most, len(one) + len(other) - 2) + 1
    best = [_NOTHING] * size
    for i, (kept, shapes) in enumerate(one[:size]):
        for j, (more, added) in enumerate(other[: size - i]):
            if kept + more > best[i + j][0]:
                best[i + j] = (kept + more, shapes + added)
    return best


def _levels(
    shapes: list[Shape],
    number: np.ndarray,
    most: int,
    min_samples: int,
    *,
    may_cut: bool,
) -> list[_Option]:
    """Returns the best 0, 1, 2 ... shapes of one size, sorted by frames."""
    tokens = np.array([shape.tokens for shape in shapes], float)
    if not may_cut:
        return _largest(shapes, np.where(number >= min_samples, number * tokens, 0))
    size = len(shapes)
    ends = np.concatenate([[0], np.cumsum(number)])
    # Tokens kept by shape i if it serves the samples of shapes i to j.
    inside = ends[None, 1:] - ends[:-1, None]
    kept = np.where(inside >= min_samples, inside * tokens[:, None], -np.inf)
    kept = np.where(np.triu(np.ones((size, size), bool)), kept, -np.inf)
    # best[i]: most tokens of the samples from shape i on, with this many shapes.
    best = np.full(size + 1, -np.inf)
    best[size] = 0.0
    options, following = [_NOTHING], []
    for _ in range(min(most, size)):
        tried = kept + best[None, 1:]
        following.append(tried.argmax(axis=1) + 1)
        best = np.append(tried.max(axis=1), -np.inf)
        at = int(best.argmax())
        total, chosen = float(best[at]), []
        if total == -np.inf:
            break
        for after in reversed(following):
            chosen.append(shapes[at])
            at = int(after[at])
        options.append((total, tuple(chosen)))
    return options


def _largest(shapes: list[Shape], kept: np.ndarray) -> list[_Option]:
    """Returns the best 0, 1, 2 ... shapes if each serves its own samples alone."""
    options = [_NOTHING]
    for i in np.argsort(-kept, kind="stable").tolist():
        if kept[i] > 0:
            total, chosen = options[-1]
            options.append((total + float(kept[i]), (*chosen, shapes[i])))
    return options
