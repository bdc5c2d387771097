"""Tests of jaxload.shapes.clips."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxload.errors import InputError
from jaxload.shapes.clips import ClipCounter, Clips, Columns, usable_frames
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.cuts import cut_videos
from jaxload.shapes.geometry import DEFAULT

RULES = ShapeRules(min_fps=6.0)
RATES = [Fraction(n) for n in (6, 8, 15, 16, 24, 25, 30, 48, 50, 60, 120, 240)]
RATES += [Fraction(24_000, 1001), Fraction(30_000, 1001), Fraction(60_000, 1001)]


def columns_of(rows) -> Columns:
    """Returns the columns of rows (frames, height, width, fps, count)."""
    columns = list(zip(*rows, strict=True))
    frames, height, width, fps = (np.array(c, float) for c in columns[:4])
    return Columns(
        num_frames=frames,
        height=height,
        width=width,
        fps=fps,
        count=np.array(columns[4], np.int64),
    )


def counted(rows, *, rules=RULES, chunk=None) -> Clips:
    counter = ClipCounter(rules, DEFAULT)
    chunk = chunk or len(rows)
    for start in range(0, len(rows), chunk):
        counter.add(columns_of(rows[start : start + chunk]))
    return counter.clips()


def as_dict(clips: Clips) -> dict[tuple[int, int, int], int]:
    keys = zip(
        clips.frames.tolist(), clips.height.tolist(), clips.width.tolist(), strict=True
    )
    return dict(zip(keys, clips.count.tolist(), strict=True))


@pytest.mark.parametrize(
    "row",
    [
        pytest.param((float("nan"), 480, 640, 30.0), id="no-frames"),
        pytest.param((100, float("nan"), 640, 30.0), id="no-height"),
        pytest.param((100, 480, float("nan"), 30.0), id="no-width"),
        pytest.param((-100, 480, 640, 30.0), id="negative-frames"),
        pytest.param((100, -480, 640, 30.0), id="negative-height"),
        pytest.param((100, 480, 640, -30.0), id="negative-rate"),
        pytest.param((0, 480, 640, 30.0), id="zero-frames"),
        pytest.param((100, 480, 0, 30.0), id="zero-width"),
        pytest.param((100.5, 480, 640, 30.0), id="fraction-of-a-frame"),
        pytest.param((100, 480.5, 640, 30.0), id="fraction-of-a-row"),
        pytest.param((100, 480, 640, 90_000.0), id="time-base-for-rate"),
        pytest.param((100, 480, 640, 0.0), id="video-without-rate"),
        pytest.param((100, 480, 640, 5.9), id="slide-show"),
        pytest.param((1, 1, 1, 0.0), id="one-pixel"),
        pytest.param((1, 15, 640, 0.0), id="less-than-a-token"),
        pytest.param((float("inf"), 480, 640, 30.0), id="endless"),
        pytest.param((100, float("inf"), 640, 30.0), id="infinite-height"),
        pytest.param((100, 480, 640, float("inf")), id="infinite-rate"),
        pytest.param((2.0**31, 480, 640, 30.0), id="too-many-frames"),
        pytest.param((100, 2.0**16, 640, 30.0), id="too-tall"),
    ],
)
def test_an_invalid_row_is_flagged_and_not_counted(row):
    counter = ClipCounter(RULES, DEFAULT)
    good = (1, 480, 640, 0.0, 7)
    bad = counter.add(columns_of([good, (*row, 3), good]))
    assert bad.tolist() == [False, True, False]
    assert as_dict(counter.clips()) == {(1, 480, 640): 14}


def test_valid_rows_at_the_limits_are_counted():
    rows = [
        (1, 16, 16, 0.0, 1),
        (1, 2**16 - 1, 2**16 - 1, 0.0, 1),
        (5, 480, 640, 6.0, 1),
        (5, 480, 640, float("nan"), 1),  # NaN: at the model's rate already.
        (1, 480, 640, 90_000.0, 1),  # The rate of an image is ignored.
    ]
    assert not ClipCounter(RULES, DEFAULT).add(columns_of(rows)).any()


def frames_at_ticks(num_frames: int, fps: Fraction, model_fps: Fraction) -> int:
    """Counts ticks of the model's clock at which the video still has a frame."""
    if fps <= model_fps:
        return num_frames
    last = (num_frames - 1) / fps
    tick, count = Fraction(0), 0
    while tick <= last:
        count += 1
        tick += 1 / model_fps
    return count


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 3_000),
    st.sampled_from(RATES),
    st.sampled_from([Fraction(8), Fraction(12), Fraction(16), Fraction(24_000, 1001)]),
)
def test_resampling_keeps_one_frame_per_tick(num_frames, fps, model_fps):
    rules = ShapeRules(fps=float(model_fps))
    columns = columns_of([(num_frames, 480, 640, float(fps), 1)])
    expected = frames_at_ticks(num_frames, fps, model_fps)
    assert usable_frames(columns, rules, DEFAULT).tolist() == [expected]


@pytest.mark.parametrize("fps", RATES, ids=str)
def test_no_length_is_a_frame_off_by_rounding(fps):
    num_frames = range(1, 4_000)
    columns = columns_of([(n, 480, 640, float(fps), 1) for n in num_frames])
    for model_fps in (Fraction(12), Fraction(16), Fraction(24_000, 1001)):
        if fps < model_fps:
            continue
        kept = usable_frames(columns, ShapeRules(fps=float(model_fps)), DEFAULT)
        assert kept.tolist() == [1 + (n - 1) * model_fps // fps for n in num_frames]


@given(st.integers(1, 10_000), st.floats(6.0, 16.0) | st.just(float("nan")))
def test_slower_videos_keep_their_frames(num_frames, fps):
    columns = columns_of([(num_frames, 480, 640, fps, 1)])
    assert usable_frames(columns, RULES, DEFAULT).tolist() == [num_frames]


def test_an_hour_at_twice_the_rate_has_half_the_frames():
    columns = columns_of([(2 * 57_600 + 1, 480, 640, 32.0, 1)])
    assert usable_frames(columns, RULES, DEFAULT).tolist() == [57_601]


@given(
    st.integers(1, 2_000),
    st.integers(0, 50).map(lambda k: 4 * k + 1),
    st.integers(1, 60),
)
def test_videos_are_cut_into_consecutive_clips(frames, max_frames, min_rest_frames):
    rules = ShapeRules(max_frames=max_frames, min_rest_frames=min_rest_frames)
    expected, left = 0, frames
    while left >= max_frames:
        expected, left = expected + 1, left - max_frames
    # A video that is not cut is kept, however short.
    if expected and left < min_rest_frames:
        left = 0
    cuts = cut_videos(np.array([frames]), rules)
    assert (cuts.num_full.tolist(), cuts.rest.tolist()) == ([expected], [left])
    clips = list(cuts.clips(0, "a"))
    assert [clip.num_frames for clip in clips] == [
        *[max_frames] * expected,
        *[left] * (left > 0),
    ]
    assert [clip.first for clip in clips] == [i * max_frames for i in range(len(clips))]
    numbered = [f"a@{clip.first}" for clip in clips]
    assert [clip.id for clip in clips] == (numbered if len(clips) > 1 else ["a"])


@given(st.integers(1, 10_000))
def test_frames_are_rounded_down_to_4k_plus_1(frames):
    (result,) = DEFAULT.round_frames(np.array([frames])).tolist()
    assert result % 4 == 1
    assert result <= frames < result + 4


def test_a_long_video_gives_full_clips_and_a_rest():
    # 10 s at 30 fps are 160 frames at 16 fps: 81, then 77, and two are dropped.
    assert as_dict(counted([(300, 480, 640, 30.0, 3)])) == {
        (77, 480, 640): 3,
        (81, 480, 640): 3,
    }


def test_a_short_rest_is_dropped_and_no_video_becomes_a_still():
    nan = float("nan")
    assert as_dict(counted([(84, 480, 640, nan, 1)])) == {(81, 480, 640): 1}
    assert as_dict(counted([(86, 480, 640, nan, 1)])) == {
        (5, 480, 640): 1,
        (81, 480, 640): 1,
    }
    assert as_dict(counted([(5, 480, 640, nan, 1)])) == {(5, 480, 640): 1}
    assert as_dict(counted([(4, 480, 640, nan, 1)])) == {}
    assert as_dict(counted([(1, 480, 640, nan, 1)])) == {(1, 480, 640): 1}


ROWS = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 30, 81, 100, 162, 500, float("nan")]),
        st.sampled_from([8, 16, 480, 720]),
        st.sampled_from([16, 640, 1280]),
        st.sampled_from([0.0, 16.0, 30.0, float("nan")]),
        st.integers(1, 9),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=50, deadline=None)
@given(ROWS)
def test_clips_have_no_more_frames_than_their_sources(rows):
    columns = columns_of(rows)
    clips = counted(rows)
    available = usable_frames(columns, RULES, DEFAULT) @ columns.count
    assert clips.frames @ clips.count <= available
    assert (clips.frames % 4 == 1).all()
    assert (clips.frames <= RULES.max_frames).all()


@settings(max_examples=50, deadline=None)
@given(ROWS)
def test_a_histogram_equals_its_rows(rows):
    one_by_one = [(*row[:4], 1) for row in rows for _ in range(row[4])]
    assert as_dict(counted(rows)) == as_dict(counted(one_by_one))


@settings(max_examples=50, deadline=None)
@given(ROWS, st.randoms(use_true_random=False), st.integers(1, 30))
def test_neither_order_nor_chunks_matter(rows, random, chunk):
    shuffled = random.sample(rows, len(rows))
    first, second = counted(rows), counted(shuffled, chunk=chunk)
    for field in dataclasses.fields(Clips):
        values = (getattr(clips, field.name) for clips in (first, second))
        np.testing.assert_array_equal(*values, err_msg=field.name)


def test_counts_beyond_the_range_of_floats_are_exact():
    rows = [(1, 480, 640, 0.0, 2**53), (1, 480, 640, 0.0, 1), (1, 480, 640, 0.0, 2)]
    assert as_dict(counted(rows, chunk=2)) == {(1, 480, 640): 2**53 + 3}
    # Each video gives 3 full clips.
    assert as_dict(counted([(243, 480, 640, 16.0, 2**53 + 1)])) == {
        (81, 480, 640): 3 * (2**53 + 1)
    }


def test_sizes_are_distinct_to_the_last_pixel():
    rows = [(1, 65_535, 16, 0.0, 1), (5, 16, 65_535, 16.0, 2), (1, 16, 65_535, 0.0, 4)]
    assert as_dict(counted(rows)) == {
        (1, 65_535, 16): 1,
        (5, 16, 65_535): 2,
        (1, 16, 65_535): 4,
    }


def test_without_rows_there_are_no_clips():
    assert len(ClipCounter(RULES, DEFAULT).clips()) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_frames": 80}, r"max_frames=80: expected 4k\+1; use 77"),
        ({"max_frames": 0}, "max_frames=0: expected 1 or more"),
        ({"max_pixels": 255}, "max_pixels=255: expected 256 or more, one token"),
        (
            {"fps": 5.0, "min_fps": 6.0},
            r"fps=5.0 with min_fps=6.0: expected 0 < min_fps <= fps <= 240",
        ),
        ({"fps": 241.0}, r"fps=241.0 with min_fps="),
        ({"min_fps": 0.0}, r"fps=16.0 with min_fps=0.0"),
        ({"fps": float("nan")}, r"fps=nan"),
        ({"max_upscale": 0.9}, r"max_upscale=0.9: expected 1.0 or more"),
        ({"max_upscale": float("nan")}, r"max_upscale=nan: expected 1.0 or more"),
        ({"max_crop": 1.0}, r"max_crop=1.0: expected 0.0 or more, below 1.0"),
        ({"max_crop": -0.1}, r"max_crop=-0.1: expected 0.0 or more"),
        ({"min_rest_frames": 0}, r"min_rest_frames=0: expected 1 or more"),
    ],
)
def test_invalid_rules_are_refused(options, message):
    with pytest.raises(InputError, match=f"shapes.{message}"):
        ShapeRules(**options).check(DEFAULT)
