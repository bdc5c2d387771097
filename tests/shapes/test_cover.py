"""Tests of jaxload.shapes.cover and jaxload.shapes.assignment."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxload.errors import InputError
from jaxload.shapes.assignment import (
    _grid_sizes,
    assign,
    coarsened,
    grid_content,
    kept_pixels,
)
from jaxload.shapes.clips import ClipCounter, Clips, Columns
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.cover import ASPECT, TOO_SHORT, TOO_SMALL, cover
from jaxload.shapes.geometry import DEFAULT
from jaxload.shapes.shape import Shape

RULES = ShapeRules(max_pixels=128 * 128, max_frames=17)


def clips_of(counts: dict[tuple[int, int, int], int], rules=RULES) -> Clips:
    """Builds clips from counts by (frames, height, width)."""
    frames, height, width = (
        np.array([clip[i] for clip in counts], float) for i in range(3)
    )
    counter = ClipCounter(rules, DEFAULT)
    columns = Columns(
        num_frames=frames,
        height=height,
        width=width,
        fps=np.full(len(counts), np.nan),
        count=np.array(list(counts.values()), np.int64),
    )
    assert not counter.add(columns).any()
    return counter.clips()


def kept_of(clip, shape: Shape, rules: ShapeRules) -> float:
    """Returns the pixels that a clip keeps in a shape; 0 if not allowed.

    The clip is resized to cover both sides, then cropped.
    """
    frames, height, width = clip
    to_frames, to_height, to_width = shape.pixels
    if frames < to_frames:
        return 0.0
    scale = max(to_height / height, to_width / width)
    resized = (height * scale) * (width * scale)
    cropped = 1 - to_height * to_width / resized
    if scale > rules.max_upscale + 1e-6 or cropped > rules.max_crop + 1e-6:
        return 0.0
    return to_frames * to_height * to_width / max(1.0, scale) ** 2


CLIP_COUNTS = st.dictionaries(
    st.tuples(
        st.sampled_from([1, 5, 9, 17, 40]), st.integers(16, 400), st.integers(16, 400)
    ),
    st.integers(1, 500),
    min_size=1,
    max_size=12,
)


def rows_of(clips: Clips) -> list[tuple[int, int, int]]:
    return list(
        zip(
            clips.frames.tolist(),
            clips.height.tolist(),
            clips.width.tolist(),
            strict=True,
        )
    )


def try_cover(clips: Clips, *, rules=RULES, max_shapes=3, min_samples=1):
    """Returns a cover, or None if there is none."""
    try:
        return cover(clips, rules=rules, max_shapes=max_shapes, min_samples=min_samples)
    except InputError:
        return None


@settings(max_examples=80, deadline=None)
@example({(1, 113, 113): 1, (1, 114, 114): 1}, 2, 1)
@given(CLIP_COUNTS, st.integers(1, 4), st.integers(1, 60))
def test_every_clip_goes_to_the_allowed_shape_of_the_highest_worth(
    counts, max_shapes, min_samples
):
    clips = clips_of(counts)
    result = try_cover(clips, max_shapes=max_shapes, min_samples=min_samples)
    if result is None:
        return
    assert 1 <= len(result.shapes) <= max_shapes
    tokens = [shape.tokens for shape in result.shapes]
    assert tokens == sorted(tokens)
    samples, content, without = [0] * len(result.shapes), 0.0, 0
    for clip, count in zip(rows_of(clips), clips.count.tolist(), strict=True):
        kept = [kept_of(clip, shape, RULES) for shape in result.shapes]
        score = [
            k - 0.1 * (math.prod(shape.pixels) - k)
            if k
            else 0.0  # Less the penalty for interpolated pixels.
            for k, shape in zip(kept, result.shapes, strict=True)
        ]
        # Ties go to the first shape; shapes are sorted by tokens.
        best = next(i for i, s in enumerate(score) if s >= max(score) * (1 - 1e-9))
        if kept[best]:
            samples[best] += count
            content += kept[best] * count
        else:
            without += count
    assert list(result.num_samples) == samples
    assert min(samples) >= min_samples
    assert result.content == pytest.approx(content)
    assert sum(left.count for left in result.left_out) == without
    assert sum(samples) + without == clips.count.sum()
    assert 0 < result.kept <= 1 + 1e-9


@settings(max_examples=100, deadline=None)
@given(
    st.tuples(st.integers(16, 300), st.integers(16, 300)),
    st.tuples(st.integers(1, 16), st.integers(1, 16)),
    st.floats(1.0, 2.0),
    st.floats(0.0, 0.9),
)
def test_kept_pixels_agree_with_the_definition(size, tokens, max_upscale, max_crop):
    rules = ShapeRules(max_upscale=max_upscale, max_crop=max_crop)
    shape = Shape(1, 2 * tokens[0], 2 * tokens[1])
    _, height, width = shape.pixels
    kept = kept_pixels(np.array([size[0]]), np.array([size[1]]), height, width, rules)
    assert kept[0] == pytest.approx(kept_of((1, *size), shape, rules))


def test_a_tie_goes_to_the_fewest_tokens():
    # Both shapes keep all 64x64 pixels; the larger one interpolates the others.
    clips = clips_of({(1, 64, 64): 1})
    shapes = (
        Shape.of_pixels((1, 64, 64), DEFAULT),
        Shape.of_pixels((1, 80, 80), DEFAULT),
    )
    rules = ShapeRules(max_upscale=1.5)
    index, kept = assign(clips, shapes, rules)
    assert (index.tolist(), kept.tolist()) == ([0], [64 * 64])


def test_cropping_is_allowed_up_to_the_rule():
    clips = clips_of({(1, 64, 80): 1})
    for max_crop, index in ((0.2, 0), (0.19, -1)):
        rules = ShapeRules(max_crop=max_crop)
        assert assign(clips, (Shape.of_pixels((1, 64, 64), DEFAULT),), rules)[
            0
        ].tolist() == [index]


def test_upscaling_is_allowed_up_to_the_rule():
    clips = clips_of({(1, 80, 80): 1})
    for max_upscale, index in ((1.2, 0), (1.19, -1)):
        rules = ShapeRules(max_upscale=max_upscale)
        assert assign(clips, (Shape.of_pixels((1, 96, 96), DEFAULT),), rules)[
            0
        ].tolist() == [index]


def test_too_few_samples_go_to_their_next_best_shape():
    counts = {(1, 64, 64): 100, (1, 80, 64): 3}
    clips = clips_of(counts)
    both = cover(clips, rules=RULES, max_shapes=2, min_samples=3)
    assert [shape.pixels for shape in both.shapes] == [(1, 64, 64), (1, 80, 64)]
    one = cover(clips, rules=RULES, max_shapes=2, min_samples=4)
    assert [shape.pixels for shape in one.shapes] == [(1, 64, 64)]
    assert one.num_samples == (103,)
    assert one.left_out == ()


def test_clips_are_left_out_by_reason():
    counts = {
        (17, 128, 128): 100_000,
        (9, 128, 128): 7,
        (5, 120, 128): 8,
        (17, 64, 64): 5,
        (17, 256, 128): 3,
        (17, 20, 400): 2,  # Too small as well.
    }
    result = cover(clips_of(counts), rules=RULES, max_shapes=1, min_samples=1)
    assert [str(shape) for shape in result.shapes] == ["5x16x16"]
    left_out = {left.reason: left for left in result.left_out}
    assert {reason: left.count for reason, left in left_out.items()} == {
        TOO_SHORT: 15,
        TOO_SMALL: 5,
        ASPECT: 5,
    }
    # Examples are sorted by count.
    assert left_out[TOO_SHORT].examples == ("5x120x128 (8)", "9x128x128 (7)")
    assert left_out[TOO_SMALL].examples == ("17x64x64 (5)",)
    assert left_out[ASPECT].examples == ("17x256x128 (3)", "17x20x400 (2)")


@settings(max_examples=20, deadline=None)
@given(CLIP_COUNTS, st.integers(0, 99))
def test_the_order_of_the_data_does_not_matter(counts, seed):
    items = list(counts.items())
    random.Random(seed).shuffle(items)
    assert try_cover(clips_of(dict(items))) == try_cover(clips_of(counts))


def best_content(clips: Clips, rules: ShapeRules, max_shapes: int) -> float:
    """Returns the most content that any choice of shapes keeps, by brute force."""
    shapes = [
        Shape.of_pixels((frames, int(h), int(w)), DEFAULT)
        for frames in range(1, rules.max_frames + 1, 4)
        for h, w in zip(*_grid_sizes(rules, DEFAULT), strict=True)
    ]
    rows = rows_of(clips)
    # Shapes that keep the same pixels of every clip are tried once.
    kept = {tuple(kept_of(row, shape, rules) for row in rows) for shape in shapes}
    table = np.array(sorted(kept))
    choices = itertools.combinations_with_replacement(range(len(table)), max_shapes)
    best = table[np.array(list(choices))].max(axis=1) @ clips.count
    return float(best.max())


def test_shapes_keep_almost_as_much_as_the_best_choice():
    rules = ShapeRules(max_pixels=64 * 64, max_frames=9)
    rng = random.Random(0)
    shares = []
    while len(shares) < 60:
        counts = {
            (rng.choice([1, 5, 9]), rng.randint(32, 80), rng.randint(32, 80)): (
                rng.randint(1, 200)
            )
            for _ in range(rng.randint(2, 5))
        }
        clips = clips_of(counts, rules)
        max_shapes = rng.randint(1, 3 if len(counts) < 5 else 2)
        best = best_content(clips, rules, max_shapes)
        result = try_cover(clips, rules=rules, max_shapes=max_shapes)
        assert (result is None) == (best == 0.0)
        if result is not None:
            shares.append(result.content / best)
    assert min(shares) > 0.95
    assert max(shares) < 1 + 1e-9


def test_images_are_kept_beside_clips_that_outweigh_them():
    # If only content counted, the second shape would be that of the 30 clips.
    counts = {(17, 128, 128): 1_000, (17, 112, 128): 30, (1, 64, 64): 100}
    result = cover(clips_of(counts), rules=RULES, max_shapes=2, min_samples=1)
    assert result.kept >= 0.965
    assert [shape.pixels for shape in result.shapes] == [(1, 64, 64), (17, 128, 128)]
    assert result.num_samples == (100, 1_030)


def test_many_distinct_clips_are_coarsened():
    counts = {
        (1, height, width): 1 + (height * width) % 3
        for height in range(300, 460)
        for width in range(300, 460)
    }
    rules = ShapeRules(max_pixels=320 * 320)
    clips = clips_of(counts, rules)
    assert len(clips) > 20_000
    coarse = coarsened(clips)
    assert len(coarse) <= 20_000
    assert coarse.count.sum() == clips.count.sum()
    result = cover(clips, rules=rules, max_shapes=4, min_samples=10)
    assert sum(result.num_samples) + sum(x.count for x in result.left_out) == sum(
        counts.values()
    )
    assert 0.9 < result.kept <= 1.0


@settings(max_examples=20, deadline=None)
@given(CLIP_COUNTS)
def test_grid_content_agrees_with_brute_force(counts):
    clips = clips_of(counts)
    sizes = list(zip(*_grid_sizes(RULES, DEFAULT), strict=True))
    expected = sum(
        count
        * max(
            kept_of((f, h, w), Shape.of_pixels((f, int(a), int(b)), DEFAULT), RULES)
            for a, b in sizes
        )
        for (f, h, w), count in zip(rows_of(clips), clips.count.tolist(), strict=True)
    )
    assert grid_content(clips, RULES) == pytest.approx(expected)


def test_no_clip_is_an_error():
    with pytest.raises(InputError, match="no sample to plan for: expected at least"):
        cover(
            ClipCounter(RULES, DEFAULT).clips(),
            rules=RULES,
            max_shapes=2,
            min_samples=1,
        )


@pytest.mark.parametrize(
    "counts",
    [{(1, 64, 64): 5}, {(1, 64, 64): 5, (17, 128, 32): 7}],
    ids=["one-clip", "two-clips"],
)
def test_too_few_samples_for_any_shape_are_an_error(counts):
    with pytest.raises(InputError, match=r"no shape has 8 samples.*use fewer replicas"):
        cover(clips_of(counts), rules=RULES, max_shapes=2, min_samples=8)


def test_clips_of_an_aspect_that_no_shape_may_have_are_an_error():
    message = r"5 clips, such as 1x16x400 \(5\): .*aspect .*shapes\.max_crop"
    with pytest.raises(InputError, match=message):
        cover(clips_of({(1, 16, 400): 5}), rules=RULES, max_shapes=2, min_samples=1)


def test_clips_of_such_an_aspect_do_not_count_as_samples():
    counts = {(1, 64, 64): 5, (1, 16, 400): 100}
    with pytest.raises(InputError, match=r"no shape has 8 samples.*among 5 clips"):
        cover(clips_of(counts), rules=RULES, max_shapes=2, min_samples=8)
