"""Which clips fit which shapes, and how much of each survives there.

Content is pixels times frames that survive resizing, cropping and cutting. A clip fits
a shape that has no more frames than it has, to which its frames can be scaled without
growing too much and cropped without losing too much (`ShapeRules`). Where it has a
choice, pixels that would be made up by growing count against a shape: they cost as much
to train on as others, and show nothing.
"""

import numpy as np

from jaxload.shapes.clips import Clips, ShapeRules, rounded_down
from jaxload.shapes.shape import TOKEN_PIXELS, Shape

_MAX_ASPECT = 4.0  # Of candidate shapes.
_MAX_KINDS = 6_000  # Kinds of clips that are told apart while shapes are chosen.
_CHUNK = 1 << 16  # Kinds that are looked at together: they stay in the cache.
_MADE_UP = 0.1  # Of a pixel's worth, for each that is made up.
SLACK = 1e-9  # Of comparisons between ratios of whole numbers.


def assign(
    clips: Clips, shapes: tuple[Shape, ...], rules: ShapeRules
) -> tuple[np.ndarray, np.ndarray]:
    """The shape that each kind of clip goes to, -1 for none, and what it keeps."""
    place = np.full(len(clips), -1, np.int32)
    best, content = np.zeros(len(clips)), np.zeros(len(clips))
    # Shapes come by ascending tokens: of equals the first, with the fewest, stays.
    for start in range(0, len(clips), _CHUNK):
        those = slice(start, start + _CHUNK)
        for index, shape in enumerate(shapes):
            frames, height, width = shape.pixels
            kept = frames * kept_pixels(
                clips.height[those], clips.width[those], height, width, rules
            )
            kept[clips.frames[those] < frames] = 0.0
            score = worth(kept, frames * height * width)
            better = score > best[those] * (1 + SLACK)
            place[those][better], best[those][better] = index, score[better]
            content[those][better] = kept[better]
    return place, content


def kept_pixels(
    height: np.ndarray,
    width: np.ndarray,
    to_height: np.ndarray | np.integer | int,
    to_width: np.ndarray | np.integer | int,
    rules: ShapeRules,
) -> np.ndarray:
    """Pixels of a frame that survive in another size; 0 where they may not go there."""
    scale = np.maximum(to_height / height, to_width / width)
    squeeze = (to_height * width) / (to_width * height)
    uncropped = np.minimum(squeeze, 1 / squeeze)
    fits = (scale <= rules.max_upscale + SLACK) & (
        uncropped >= 1 - rules.max_crop - SLACK
    )
    # Pixels that are made up do not count.
    return np.where(fits, to_height * to_width / np.maximum(1.0, scale) ** 2, 0.0)


def worth(kept: np.ndarray, size: np.ndarray | int) -> np.ndarray:
    """What is kept, less something for what is made up to fill a size."""
    return np.where(kept > 0, kept - _MADE_UP * (size - kept), 0.0)


def coarsened(clips: Clips) -> Clips:
    """Clips of few enough kinds, each rounded down to the next size of a grid."""
    step = 1
    while len(clips) > _MAX_KINDS:
        step *= 2
        clips = rounded_down(clips, step)
    return clips


def _grid_sizes(rules: ShapeRules) -> tuple[np.ndarray, np.ndarray]:
    """Heights and widths of every candidate shape."""
    longest = int(np.sqrt(rules.max_pixels * _MAX_ASPECT)) // TOKEN_PIXELS
    side = np.arange(1, longest + 1) * TOKEN_PIXELS
    height, width = (grid.ravel() for grid in np.meshgrid(side, side, indexing="ij"))
    aspect = np.maximum(height / width, width / height)
    usable = (height * width <= rules.max_pixels) & (aspect <= _MAX_ASPECT)
    return height[usable], width[usable]


def best_of_grid(
    clips: Clips, rules: ShapeRules
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """For each size of clips: which, what the grid keeps at most, and where it goes."""
    grid_height, grid_width = _grid_sizes(rules)
    sizes, inverse = np.unique(
        np.stack([clips.height, clips.width]), axis=1, return_inverse=True
    )
    pixels = np.empty(sizes.shape[1])
    where = np.empty(sizes.shape[1], np.int64)
    rows = 2_000_000 // len(grid_height) + 1
    for start in range(0, sizes.shape[1], rows):
        height, width = sizes[:, start : start + rows, None]
        kept = kept_pixels(height, width, grid_height, grid_width, rules)
        score = worth(kept, grid_height * grid_width)
        where[start : start + rows] = score.argmax(axis=1)
        pixels[start : start + rows] = kept.max(axis=1)
    return inverse.ravel(), pixels, grid_height[where], grid_width[where]


def shared_sizes(clips: Clips, rules: ShapeRules, limit: int) -> np.ndarray:
    """Sizes of the grid that keep the most of all clips if alone: [2, sizes]."""
    sizes = np.stack(_grid_sizes(rules))
    frames = clips.frames * clips.count
    content = np.array(
        [
            worth(
                kept_pixels(clips.height, clips.width, height, width, rules),
                height * width,
            )
            @ frames
            for height, width in sizes.T.tolist()
        ]
    )
    order = np.argsort(-content, kind="stable")[:limit]
    return sizes[:, order[content[order] > 0]]


def grid_content(clips: Clips, rules: ShapeRules) -> float:
    """What clips would keep if every candidate shape were there."""
    inverse, pixels, _, _ = best_of_grid(clips, rules)
    return float((pixels[inverse] * clips.frames) @ clips.count)
