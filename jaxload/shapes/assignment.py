"""Assigns clips to shapes, and measures the content that each clip keeps.

Content is the pixels times frames that survive resizing, cropping and cutting. A shape
is allowed for a clip if the shape has no more frames than the clip, and if the
upscaling and cropping of the clip's frames to the size of the shape stay within
`ShapeRules`. If clips keep their own frames, only the size of a shape counts.

A clip goes to the allowed shape of the highest worth: content, less a penalty for
pixels that upscaling interpolates. Interpolated pixels cost as much to train on as
other pixels, but carry no information.
"""

import numpy as np

from jaxload.shapes.clips import Clips, merged_by_size, rounded_down
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.geometry import Geometry
from jaxload.shapes.shape import Shape

MAX_ASPECT = 4.0  # Largest aspect ratio of candidate shapes.
_MAX_DISTINCT = 6_000  # Most distinct clips that shapes are chosen for.
_CHUNK = 1 << 16  # Distinct clips per pass, few enough for the CPU cache.
_INTERPOLATION_PENALTY = 0.1  # Penalty of an interpolated pixel, in kept pixels.
SLACK = 1e-9  # Tolerance for comparing ratios of integers.


def assign(
    clips: Clips,
    shapes: tuple[Shape, ...],
    rules: ShapeRules,
    *,
    own_frames: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the index of each distinct clip's shape, or -1, and the content kept.

    With `own_frames`, a clip keeps all of its frames in the size of a shape, whatever
    the frames of the shape.
    """
    shape_of = np.full(len(clips), -1, np.int32)
    best, content = np.zeros(len(clips)), np.zeros(len(clips))
    # Shapes are sorted by tokens, so ties go to the shape with the fewest tokens.
    for start in range(0, len(clips), _CHUNK):
        rows = slice(start, start + _CHUNK)
        for index, shape in enumerate(shapes):
            frames, height, width = shape.pixels
            kept = kept_pixels(
                clips.height[rows], clips.width[rows], height, width, rules
            )
            taken = frames_taken(clips.frames[rows], frames, own_frames=own_frames)
            score = taken * worth(kept, height * width)
            better = score > best[rows] * (1 + SLACK)
            shape_of[rows][better], best[rows][better] = index, score[better]
            content[rows][better] = (taken * kept)[better]
    return shape_of, content


def frames_taken(
    of_clips: np.ndarray, of_shape: int, *, own_frames: bool
) -> np.ndarray:
    """Returns how many frames of each clip a shape takes; 0 if the clip has too few."""
    if own_frames:
        return of_clips
    return np.where(of_clips >= of_shape, of_shape, 0)


def kept_pixels(
    height: np.ndarray,
    width: np.ndarray,
    to_height: np.ndarray | np.integer | int,
    to_width: np.ndarray | np.integer | int,
    rules: ShapeRules,
) -> np.ndarray:
    """Returns the pixels of frames that survive in another size; 0 if not allowed."""
    scale = np.maximum(to_height / height, to_width / width)
    allowed = (scale <= rules.max_upscale + SLACK) & suits_aspect(
        height, width, to_height, to_width, rules
    )
    # Upscaling by `scale` interpolates all but 1 / scale^2 of the pixels.
    return np.where(allowed, to_height * to_width / np.maximum(1.0, scale) ** 2, 0.0)


def suits_aspect(
    height: np.ndarray,
    width: np.ndarray,
    to_height: np.ndarray | np.integer | int,
    to_width: np.ndarray | np.integer | int,
    rules: ShapeRules,
) -> np.ndarray:
    """Returns whether cropping frames to another aspect stays within the rules."""
    squeeze = (to_height * width) / (to_width * height)
    uncropped = np.minimum(squeeze, 1 / squeeze)
    return uncropped >= 1 - rules.max_crop - SLACK


def worth(kept: np.ndarray, size: np.ndarray | int) -> np.ndarray:
    """Returns the kept content, less a penalty for the interpolated content."""
    return np.where(kept > 0, kept - _INTERPOLATION_PENALTY * (size - kept), 0.0)


def coarsened(clips: Clips, *, own_frames: bool = False) -> Clips:
    """Rounds sizes down to coarser steps until few enough distinct clips remain.

    With `own_frames`, clips of one size are merged to clips of their mean length.
    """
    step = 1
    coarse = merged_by_size(clips) if own_frames else clips
    while len(coarse) > _MAX_DISTINCT:
        step *= 2
        clips = rounded_down(clips, step)
        coarse = merged_by_size(clips) if own_frames else clips
    return coarse


def _grid_sizes(rules: ShapeRules, geometry: Geometry) -> tuple[np.ndarray, np.ndarray]:
    """Returns the heights and widths of all candidate shapes."""
    longest = int(np.sqrt(rules.max_pixels * MAX_ASPECT))
    sides = (np.arange(step, longest + 1, step) for step in geometry.token_pixels)
    height, width = (grid.ravel() for grid in np.meshgrid(*sides, indexing="ij"))
    aspect = np.maximum(height / width, width / height)
    usable = (height * width <= rules.max_pixels) & (aspect <= MAX_ASPECT)
    return height[usable], width[usable]


def best_of_grid(
    clips: Clips, rules: ShapeRules
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Finds the best candidate size for each distinct size of clips.

    Returns the index of each clip's distinct size and, for each distinct size, the
    pixels that the best candidate keeps, its height and its width.
    """
    grid_height, grid_width = _grid_sizes(rules, clips.geometry)
    sizes, inverse = np.unique(
        np.stack([clips.height, clips.width]), axis=1, return_inverse=True
    )
    pixels = np.empty(sizes.shape[1])
    best = np.empty(sizes.shape[1], np.int64)
    rows = 2_000_000 // len(grid_height) + 1
    for start in range(0, sizes.shape[1], rows):
        height, width = sizes[:, start : start + rows, None]
        kept = kept_pixels(height, width, grid_height, grid_width, rules)
        score = worth(kept, grid_height * grid_width)
        chosen = score.argmax(axis=1)
        best[start : start + rows] = chosen
        pixels[start : start + rows] = np.take_along_axis(kept, chosen[:, None], 1)[
            :, 0
        ]
    return inverse.ravel(), pixels, grid_height[best], grid_width[best]


def shared_sizes(clips: Clips, rules: ShapeRules, limit: int) -> np.ndarray:
    """Returns the sizes that keep the most content by themselves, [2, sizes]."""
    sizes = np.stack(_grid_sizes(rules, clips.geometry))
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
    """Returns the content that clips would keep if all candidate shapes were used."""
    inverse, pixels, _, _ = best_of_grid(clips, rules)
    return float((pixels[inverse] * clips.frames) @ clips.count)
