"""Candidate shapes or sizes, and the content that each distinct clip keeps in them."""

from collections.abc import Callable, Collection

import numpy as np

from jaxload.shapes.assignment import (
    best_of_grid,
    frames_taken,
    kept_pixels,
    shared_sizes,
    worth,
)
from jaxload.shapes.clips import Clips
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.shape import Shape

_MAX_STARTS = 60  # Most candidates for a search that starts once from each.
_MAX_SIZES = 400  # Most candidate sizes; those with the most content are kept.
_MAX_SPREAD = 200  # Most candidate sizes that differ from each other by `_SPREAD`.
_MAX_COMMON = 150  # Most candidate sizes that have the most content, beside those.
_SPREAD = 1.08  # Ratio of the heights or of the widths of two sizes.


class Candidates:
    """Candidate shapes, each a pair of indices (level of `frames`, row of `sizes`).

    With `own_frames`, candidates are sizes: there is one level, at which each clip
    keeps all of its frames.
    """

    def __init__(
        self,
        clips: Clips,
        rules: ShapeRules,
        on_attempt: Callable[[], None] = lambda: None,
        *,
        own_frames: bool = False,
        given: Collection[tuple[int, int]] = (),
    ):
        """Finds the candidates, and adds `given` sizes in pixels.

        Each call of `gains` calls `on_attempt`.
        """
        self._on_attempt = on_attempt
        self.clips = clips
        self.own_frames = own_frames
        self.frames = np.array([1]) if own_frames else np.unique(clips.frames)
        inverse, pixels, height, width = best_of_grid(clips, rules)
        self._best = pixels[inverse] * clips.frames
        sizes, size_of = np.unique(
            np.stack([height, width]), axis=1, return_inverse=True
        )
        content = np.bincount(
            size_of.ravel()[inverse], self._best * clips.count, sizes.shape[1]
        )
        order = np.argsort(-content, kind="stable")
        sizes = sizes[:, order[content[order] > 0]]
        chosen = _spread(sizes) if own_frames else sizes[:, :_MAX_SIZES]
        # A choice of few shapes needs sizes that many clips can share, even if each
        # clip would keep more in another size.
        shared = shared_sizes(clips, rules, _MAX_SIZES - chosen.shape[1])
        others = np.array([*given], np.int64).reshape(-1, 2).T
        self.sizes = np.unique(np.concatenate([chosen, shared, others], 1), axis=1).T
        self.weight = clips.count.astype(float)
        # Frames of each clip that a shape of each level takes, [levels, clips].
        self._taken = np.stack(
            [
                frames_taken(clips.frames, frames, own_frames=own_frames)
                for frames in self.frames.tolist()
            ]
        )
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

    def index_of(self, height: int, width: int) -> int:
        """Returns the row of `sizes` that holds a size."""
        return int(np.flatnonzero((self.sizes == (height, width)).all(axis=1))[0])

    def shape(self, level: int, size: int) -> Shape:
        """Returns a candidate shape, from its level and size; a size as one frame."""
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
        content[rows] = self._taken[level, rows] * pixels
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
            more = self._taken[:, rows] * pixels - kept[rows]
            gains[:, size] = np.maximum(more, 0.0) @ self.weight[rows]
        self._on_attempt()
        return gains


def _spread(sizes: np.ndarray) -> np.ndarray:
    """Selects sizes that are spread out, and the first few; [2, sizes] by content.

    Only sizes with the most content would be alike if there are many, and would suit no
    clip of another aspect.
    """
    spread: list[int] = []
    logs, is_far = np.log(sizes), np.ones(sizes.shape[1], bool)
    for i in range(sizes.shape[1]):
        if is_far[i] and len(spread) < _MAX_SPREAD:
            spread.append(i)
            is_far &= np.abs(logs - logs[:, [i]]).max(axis=0) >= np.log(_SPREAD)
    common = range(min(_MAX_COMMON, sizes.shape[1]))
    return sizes[:, sorted({*spread, *common})]
