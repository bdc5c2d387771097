"""Candidate shapes, and the content that each distinct clip keeps in each of them."""

from collections.abc import Callable

import numpy as np

from jaxload.shapes.assignment import (
    best_of_grid,
    kept_pixels,
    shared_sizes,
    worth,
)
from jaxload.shapes.clips import Clips
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.shape import Shape

_MAX_STARTS = 60  # Most candidates for a search that starts once from each.
_MAX_SIZES = 400  # Most candidate sizes; those with the most content are kept.


class Candidates:
    """Candidate shapes, each a pair of indices (level of `frames`, row of `sizes`)."""

    def __init__(
        self,
        clips: Clips,
        rules: ShapeRules,
        on_attempt: Callable[[], None] = lambda: None,
    ):
        """Finds the candidates; each call of `gains` calls `on_attempt`."""
        self._on_attempt = on_attempt
        self.clips = clips
        self.frames = np.unique(clips.frames)
        inverse, pixels, height, width = best_of_grid(clips, rules)
        weight = (pixels[inverse] * clips.frames) * clips.count
        sizes, size_of = np.unique(
            np.stack([height, width]), axis=1, return_inverse=True
        )
        total = np.bincount(size_of.ravel()[inverse], weight, sizes.shape[1])
        order = np.argsort(-total, kind="stable")[:_MAX_SIZES]
        sizes = sizes[:, order[total[order] > 0]]
        # A choice of few shapes needs sizes that many clips can share, even if each
        # clip would keep more in another size.
        shared = shared_sizes(clips, rules, _MAX_SIZES - sizes.shape[1])
        self.sizes = np.unique(np.concatenate([sizes, shared], axis=1), axis=1).T
        self._best = pixels[inverse] * clips.frames
        self.weight = clips.count.astype(float)
        # For each size: the clips for which it is allowed, and their worth per frame.
        self.allowed = []
        for to_height, to_width in self.sizes.tolist():
            kept = kept_pixels(clips.height, clips.width, to_height, to_width, rules)
            rows = np.flatnonzero(kept)
            self.allowed.append((rows, worth(kept[rows], to_height * to_width)))

    def weigh_samples(self, share: float) -> None:
        """Sets the weights of clips, as a mix of two objectives.

        The mean share of content kept per sample has weight `share`; the share of total
        content kept has weight `1 - share`.
        """
        count, best = self.clips.count, np.maximum(self._best, 1.0)
        by_content = (1 - share) / max(1.0, float(self._best @ count))
        self.weight = count * (by_content + share / (best * count.sum()))

    def shape(self, level: int, size: int) -> Shape:
        """Returns a candidate shape, from the indices of its frames and size."""
        height, width = self.sizes[size]
        pixels = (int(self.frames[level]), int(height), int(width))
        return Shape.of_pixels(pixels, self.clips.geometry)

    def starts(self) -> list[tuple[int, int]]:
        """Returns all candidates if a search can start from each, else none."""
        levels, sizes = len(self.frames), len(self.sizes)
        if levels * sizes > _MAX_STARTS:
            return []
        return [(level, size) for level in range(levels) for size in range(sizes)]

    def worth(self, chosen: list[tuple[int, int]]) -> float:
        """Returns the weighted worth of all clips, each in the best of some shapes."""
        content = [self.content(*c) for c in chosen]
        return float(np.max(content, axis=0) @ self.weight) if content else 0.0

    def content(self, level: int, size: int) -> np.ndarray:
        """Returns the worth of each distinct clip in one shape; 0 if not allowed."""
        rows, pixels = self.allowed[size]
        content = np.zeros(len(self.clips))
        long_enough = self.clips.frames[rows] >= self.frames[level]
        content[rows] = np.where(long_enough, self.frames[level] * pixels, 0.0)
        return content

    def samples(self, chosen: list[tuple[int, int]]) -> np.ndarray:
        """Returns the number of samples in each shape if only these are chosen."""
        content = np.stack([self.content(*c) for c in chosen])
        taken = content.max(axis=0) > 0
        best, count = content.argmax(axis=0)[taken], self.clips.count[taken]
        return np.bincount(best, count, len(chosen))

    def gains(self, kept: np.ndarray) -> np.ndarray:
        """Returns the weighted worth that each candidate would add, [levels, sizes]."""
        gains = np.zeros((len(self.frames), len(self.sizes)))
        for size, (rows, pixels) in enumerate(self.allowed):
            more = self.frames[:, None] * pixels - kept[rows]
            more[self.frames[:, None] > self.clips.frames[rows]] = 0.0
            gains[:, size] = np.maximum(more, 0.0) @ self.weight[rows]
        self._on_attempt()
        return gains
