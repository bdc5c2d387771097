"""Kinds of clips against candidate shapes: what choosing shapes has to know."""

import numpy as np

from jaxload.shapes.assignment import (
    best_of_grid,
    kept_pixels,
    shared_sizes,
    worth,
)
from jaxload.shapes.clips import Clips, ShapeRules
from jaxload.shapes.shape import FRAME_STRIDE, Shape

_MAX_STARTS = 60  # Shapes that a choice is begun with, where there are no more.
_MAX_SIZES = 400  # Candidate sizes, of those that suit the most content.


class Kinds:
    """Kinds of clips against candidate shapes: (frames, one of the sizes)."""

    def __init__(self, clips: Clips, rules: ShapeRules):
        self.clips = clips
        self.frames = np.arange(1, rules.max_frames + 1, FRAME_STRIDE)
        self.frames = self.frames[np.isin(self.frames, clips.frames)]
        inverse, pixels, height, width = best_of_grid(clips, rules)
        weight = (pixels[inverse] * clips.frames) * clips.count
        sizes, size_of = np.unique(
            np.stack([height, width]), axis=1, return_inverse=True
        )
        total = np.bincount(size_of.ravel()[inverse], weight, sizes.shape[1])
        order = np.argsort(-total, kind="stable")[:_MAX_SIZES]
        sizes = sizes[:, order[total[order] > 0]]
        # Few shapes have to be shared by clips that would each keep more elsewhere.
        shared = shared_sizes(clips, rules, _MAX_SIZES - sizes.shape[1])
        self.sizes = np.unique(np.concatenate([sizes, shared], axis=1), axis=1).T
        self._best = pixels[inverse] * clips.frames
        self.weight = clips.count.astype(float)
        # Per size: the kinds that fit it, and what of their pixels it keeps.
        self.fitting = []
        for to_height, to_width in self.sizes.tolist():
            kept = kept_pixels(clips.height, clips.width, to_height, to_width, rules)
            rows = np.flatnonzero(kept)
            self.fitting.append((rows, worth(kept[rows], to_height * to_width)))

    def weigh_samples(self, share: float) -> None:
        """Lets each sample's own kept share count for so much of the whole."""
        count, best = self.clips.count, np.maximum(self._best, 1.0)
        by_content = (1 - share) / max(1.0, float(self._best @ count))
        self.weight = count * (by_content + share / (best * count.sum()))

    def shape(self, level: int, size: int) -> Shape:
        """A candidate shape."""
        height, width = self.sizes[size]
        return Shape.of_pixels(int(self.frames[level]), int(height), int(width))

    def few_shapes(self) -> list[tuple[int, int]]:
        """All candidate shapes, if a choice can be begun with each of them."""
        levels, sizes = len(self.frames), len(self.sizes)
        if levels * sizes > _MAX_STARTS:
            return []
        return [(level, size) for level in range(levels) for size in range(sizes)]

    def worth(self, chosen: list[tuple[int, int]]) -> float:
        """What some shapes keep together, weighed."""
        content = [self.content(*c) for c in chosen]
        return float(np.max(content, axis=0) @ self.weight) if content else 0.0

    def content(self, level: int, size: int) -> np.ndarray:
        """What each kind keeps in one shape, as far as it is worth anything."""
        rows, pixels = self.fitting[size]
        content = np.zeros(len(self.clips))
        long_enough = self.clips.frames[rows] >= self.frames[level]
        content[rows] = np.where(long_enough, self.frames[level] * pixels, 0.0)
        return content

    def samples(self, chosen: list[tuple[int, int]]) -> np.ndarray:
        """Samples that go to each of some shapes."""
        content = np.stack([self.content(*c) for c in chosen])
        taken = content.max(axis=0) > 0
        place, count = content.argmax(axis=0)[taken], self.clips.count[taken]
        return np.bincount(place, count, len(chosen))

    def gains(self, kept: np.ndarray) -> np.ndarray:
        """What each shape would add to what is kept, [levels, sizes]."""
        gains = np.zeros((len(self.frames), len(self.sizes)))
        for size, (rows, pixels) in enumerate(self.fitting):
            more = self.frames[:, None] * pixels - kept[rows]
            more[self.frames[:, None] > self.clips.frames[rows]] = 0.0
            gains[:, size] = np.maximum(more, 0.0) @ self.weight[rows]
        return gains
