"""Tests of jaxload.shapes.size_cover."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.planning.survey import survey_manifest
from jaxload.shapes.clips import ClipCounter, Clips, merged_by_size
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.cover import ASPECT, TOO_SMALL, cover
from jaxload.shapes.geometry import DEFAULT
from jaxload.shapes.shape import Shape
from jaxload.shapes.size_cover import SizeCover, cover_sizes
from tests.shapes.test_cover import CLIP_COUNTS, clips_of, kept_of, rows_of

RULES = ShapeRules(max_pixels=128 * 128, max_frames=17, max_sizes=3)


def num_left_out(result) -> int:
    return sum(left.count for left in result.left_out)


def try_sizes(clips: Clips, **options) -> SizeCover | None:
    """Returns sizes, or None if no clip has an allowed one."""
    try:
        return cover_sizes(clips, rules=RULES, **options)
    except InputError:
        return None


def worth_of(clip, shape: Shape) -> float:
    """Returns the content, less the penalty for interpolated pixels."""
    kept, pixels = kept_of(clip, shape, RULES), np.prod(shape.pixels)
    return kept - 0.1 * (pixels - kept) if kept else 0.0


@settings(max_examples=80, deadline=None)
@given(CLIP_COUNTS)
def test_every_clip_keeps_its_frames_in_the_size_of_the_highest_worth(counts):
    clips = clips_of(counts)
    result = try_sizes(clips)
    if result is None:
        return
    assert 1 <= len(result.sizes) <= RULES.max_sizes
    assert list(result.sizes) == sorted(result.sizes, key=lambda s: (s[0] * s[1], s))
    expected: dict[Shape, int] = {}
    content, without = 0.0, 0
    for clip, count in zip(rows_of(clips), clips.count.tolist(), strict=True):
        frames = (clip[0] - 1) // 4 + 1
        shapes = [Shape(frames, *size) for size in result.sizes]
        score = [worth_of(clip, shape) for shape in shapes]
        # Ties go to the first size, which has the fewest tokens.
        best = next(i for i, s in enumerate(score) if s >= max(score) * (1 - 1e-9))
        if score[best]:
            expected[shapes[best]] = expected.get(shapes[best], 0) + count
            content += kept_of(clip, shapes[best], RULES) * count
        else:
            without += count
    found = result.cover
    assert dict(zip(found.shapes, found.num_samples, strict=True)) == expected
    assert list(found.shapes) == sorted(expected, key=lambda s: (s.tokens, s))
    assert found.content == pytest.approx(content)
    assert num_left_out(found) == without
    assert 0 < found.kept <= 1 + 1e-9


@settings(max_examples=20, deadline=None)
@given(CLIP_COUNTS, st.integers(0, 99))
def test_the_order_of_the_data_does_not_matter(counts, seed):
    items = list(counts.items())
    random.Random(seed).shuffle(items)
    assert try_sizes(clips_of(dict(items))) == try_sizes(clips_of(counts))


@pytest.mark.parametrize(
    "name",
    ["activitynet", "clipshots", "few_long", "laion_aesthetics", "mix_dev", "uhd"],
)
def test_sizes_keep_more_of_real_lists_than_shapes(root: Path, name: str):
    rules, path = ShapeRules(), root / "benchmarks" / "workloads" / f"{name}.csv"
    clips = survey_manifest(
        path, rules, DEFAULT, max_bad_share=1.0, console=Console(quiet=True)
    ).clips
    by_size = cover_sizes(clips, rules=rules).cover
    by_shape = cover(clips, rules=rules, max_shapes=32, min_samples=16)
    assert by_size.kept >= (0.955 if name == "laion_aesthetics" else 0.998)
    assert by_size.kept > by_shape.kept
    assert num_left_out(by_size) < num_left_out(by_shape)


def test_clips_of_all_lengths_keep_their_frames_in_one_size():
    counts = {(frames, 64, 64): 1 for frames in range(1, 18, 4)}
    result = cover_sizes(clips_of(counts), rules=RULES)
    assert result.sizes == ((8, 8),)
    assert [str(shape) for shape in result.cover.shapes] == [
        f"{frames}x8x8" for frames in range(1, 6)
    ]
    assert result.cover.kept == 1.0


def test_content_of_clips_counts_by_frame():
    # Two clips of 17 frames outweigh three images if there is one size.
    counts = {(17, 128, 64): 2, (1, 64, 128): 3}
    rules = ShapeRules(max_pixels=128 * 128, max_frames=17, max_sizes=1)
    assert cover_sizes(clips_of(counts), rules=rules).sizes == ((16, 8),)


def test_clips_are_left_out_by_reason():
    counts = {(17, 128, 128): 10_000, (5, 64, 64): 3, (17, 256, 128): 2}
    rules = ShapeRules(max_pixels=128 * 128, max_frames=17, max_sizes=1)
    result = cover_sizes(clips_of(counts), rules=rules).cover
    assert [(left.reason, left.count) for left in result.left_out] == [
        (TOO_SMALL, 3),
        (ASPECT, 2),
    ]


def test_a_size_needs_enough_clips():
    # 16 clips, or half of an even share of fewer than 96 clips in 3 sizes.
    for num_tall, num_others, sizes in (
        (15, 1_000, ((8, 8),)),
        (16, 1_000, ((8, 8), (16, 8))),
        (2, 22, ((8, 8),)),
        (4, 20, ((8, 8), (16, 8))),
    ):
        counts = {(1, 64, 64): num_others, (17, 128, 64): num_tall}
        assert cover_sizes(clips_of(counts), rules=RULES).sizes == sizes


def test_given_sizes_are_kept_and_more_are_added_up_to_the_limit():
    clips = clips_of({(17, 128, 64): 3, (1, 64, 128): 5, (5, 80, 80): 1})
    # No clip suits the first size, and it is larger than `max_pixels`.
    given = ((40, 40), (16, 8))
    result = cover_sizes(clips, rules=RULES, given=given)
    assert result.sizes == ((8, 16), (16, 8), (40, 40))
    assert [left.count for left in result.cover.left_out] == [1]
    # With three sizes, or more than the limit, none is added.
    for given in (((2, 2), (2, 4), (16, 8)), ((2, 2), (2, 4), (4, 2), (16, 8))):
        result = cover_sizes(clips, rules=RULES, given=given)
        assert result.sizes == given


def test_a_size_is_added_to_given_ones_only_for_enough_clips_of_the_dataset():
    clips = clips_of({(17, 128, 64): 10, (1, 64, 128): 5})
    options = {"rules": RULES, "given": ((16, 8),)}
    assert cover_sizes(clips, **options).sizes == ((8, 16), (16, 8))
    assert cover_sizes(clips, num_clips=36, **options).sizes == ((16, 8),)


def test_no_size_is_added_without_gain():
    clips = clips_of({(17, 128, 64): 10, (1, 128, 64): 5})
    assert cover_sizes(clips, rules=RULES, given=((16, 8),)).sizes == ((16, 8),)


def test_given_sizes_need_no_clip():
    none = ClipCounter(RULES, DEFAULT).clips()
    result = cover_sizes(none, rules=RULES, given=((16, 8),))
    assert (result.sizes, result.cover.shapes) == (((16, 8),), ())
    wide = clips_of({(1, 16, 400): 5})
    result = cover_sizes(wide, rules=RULES, given=((16, 8),))
    assert (result.sizes, num_left_out(result.cover)) == (((16, 8),), 5)


def test_no_clip_is_an_error():
    with pytest.raises(InputError, match="no sample to plan for: expected at least"):
        cover_sizes(ClipCounter(RULES, DEFAULT).clips(), rules=RULES)


def test_clips_of_an_aspect_that_no_size_may_have_are_an_error():
    message = r"5 clips, such as 1x16x400 \(5\): .*aspect .*shapes\.max_crop"
    with pytest.raises(InputError, match=message):
        cover_sizes(clips_of({(1, 16, 400): 5}), rules=RULES)


def test_sizes_of_many_distinct_clips_are_spread_over_all_aspects():
    sizes = np.random.default_rng(0).integers(16, 960, (20_000, 2)).tolist()
    clips = clips_of({(17, height, width): 1 for height, width in sizes})
    result = cover_sizes(clips, rules=ShapeRules())
    assert result.cover.kept > 0.85


def test_merged_clips_have_the_frames_and_counts_of_their_size():
    clips = clips_of({(1, 64, 64): 3, (17, 64, 64): 1, (5, 64, 80): 2})
    merged = merged_by_size(clips)
    assert merged.count.tolist() == [4, 2]
    assert merged.frames.tolist() == [5.0, 5.0]
    assert merged.width.tolist() == [64, 80]
