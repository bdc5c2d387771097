"""Tests of jaxload.media.cutting."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxload.media.cutting import (
    BAD_TIMES,
    TOO_SLOW,
    FrameCount,
    LeftOutClip,
    cut_file,
    num_usable,
)
from jaxload.media.frames import Scan
from jaxload.shapes.clips import TOO_SHORT_VIDEO, ClipCounter, Columns
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.cover import ASPECT, TOO_SMALL
from jaxload.shapes.geometry import DEFAULT
from jaxload.shapes.shape import Shape

RULES = ShapeRules(max_frames=17, min_rest_frames=5)
SIZES = ((8, 8),)


def scan_of(num_frames: int, *, fps=16.0, height=64, width=64) -> Scan:
    seconds = (num_frames - 1) / fps
    return Scan(num_frames=num_frames, height=height, width=width, seconds=seconds)


def spans(num_frames: int, **options) -> list[tuple[str, int, str]]:
    cutting = cut_file("a.mp4", scan_of(num_frames, **options), SIZES, RULES, DEFAULT)
    return [(clip.id, clip.first, str(clip.shape)) for clip in cutting.clips]


def test_a_file_that_gives_one_clip_lends_it_its_name():
    assert spans(1) == [("a.mp4", 0, "1x8x8")]
    assert spans(17) == [("a.mp4", 0, "5x8x8")]
    assert spans(20) == [("a.mp4", 0, "5x8x8")]  # Three more are too few for a clip.


def test_a_long_file_gives_clips_named_by_their_first_frame():
    assert spans(40) == [
        ("a.mp4@0", 0, "5x8x8"),
        ("a.mp4@17", 17, "5x8x8"),
        ("a.mp4@34", 34, "2x8x8"),  # A rest of 6 is a clip of 5.
    ]


def test_a_faster_file_is_cut_at_the_models_rate():
    assert spans(33, fps=32.0) == [("a.mp4", 0, "5x8x8")]
    cutting = cut_file("a.mp4", scan_of(33, fps=32.0), SIZES, RULES, DEFAULT)
    assert (cutting.rate, cutting.num_taken) == (16.0, 17)


def test_every_frame_is_accounted_for():
    # 100 at 32 fps make 50 at 16: clips of 17 and 17, and a rest of 16 that is cut to
    # 13.
    frames = cut_file("a.mp4", scan_of(100, fps=32.0), SIZES, RULES, DEFAULT).frames
    assert frames == FrameCount(
        decoded=100, resampled=50, uneven=3, left_out=0, kept=47
    )


@given(
    num_frames=st.integers(1, 400),
    fps=st.floats(1.0, 300.0),
    height=st.integers(8, 200),
    width=st.integers(8, 200),
)
def test_frames_add_up_and_clips_lie_within_the_file(num_frames, fps, height, width):
    scan = scan_of(num_frames, fps=fps, height=height, width=width)
    cutting = cut_file("a", scan, SIZES, RULES, DEFAULT)
    frames = dataclasses.asdict(cutting.frames)
    assert frames.pop("decoded") == sum(frames.values()) >= num_frames
    assert all(count >= 0 for count in frames.values())
    assert frames["kept"] == sum(clip.shape.pixels[0] for clip in cutting.clips)
    end = 0
    for clip in cutting.clips:
        assert clip.first >= end
        end = clip.first + clip.shape.pixels[0]
    assert end <= cutting.num_taken
    starts = [clip.first for clip in cutting.clips]
    starts += [clip.start for clip in cutting.left_out]
    assert len(starts) == len(set(starts)) > 0


@pytest.mark.parametrize("num_frames", [1, 4, 17, 18, 39, 40, 85, 90])
@pytest.mark.parametrize("fps", [12.0, 16.0, 25.0, 60.0])
def test_a_plan_counts_the_same_clips(num_frames: int, fps: float):
    counter = ClipCounter(RULES, DEFAULT)
    one = np.ones(1)
    counter.add(
        Columns(
            num_frames=num_frames * one,
            height=64 * one,
            width=64 * one,
            fps=fps * one,
            count=np.ones(1, np.int64),
        )
    )
    scan = scan_of(num_frames, fps=fps)
    clips = cut_file("a", scan, SIZES, RULES, DEFAULT).clips
    planned = counter.clips()
    expected = np.repeat(planned.frames, planned.count).tolist()
    # A plan does not know a video that is rounded to one frame from an image.
    expected = [frames for frames in expected if frames > 1 or num_frames == 1]
    assert sorted(clip.shape.pixels[0] for clip in clips) == expected


@pytest.mark.parametrize(
    ("scan", "reason", "detail", "start"),
    [
        (scan_of(20, fps=4.0), TOO_SLOW, "4 fps, expected 5 to 240", None),
        (scan_of(20, fps=9_000.0), BAD_TIMES, "9e+03 fps, expected 5 to 240", None),
        (scan_of(20, height=32, width=32), TOO_SMALL, "17x32x32", 0),
        (scan_of(20, height=64, width=640), ASPECT, "17x64x640", 0),
        (scan_of(1, height=15, width=15), TOO_SMALL, "1x15x15", 0),
        (scan_of(1, height=20, width=2_000), ASPECT, "1x20x2000", 0),
    ],
)
def test_a_clip_without_a_size_has_a_reason(
    scan: Scan, reason: str, detail: str, start: int | None
):
    cutting = cut_file("a", scan, SIZES, RULES, DEFAULT)
    assert not cutting.clips
    assert cutting.frames.left_out + cutting.frames.resampled == scan.num_frames
    (left_out,) = cutting.left_out
    assert left_out == LeftOutClip(
        source="a", start=start, reason=reason, detail=detail
    )


@pytest.mark.parametrize("num_frames", [2, 4])
def test_a_video_becomes_no_still(num_frames: int):
    # Its frames would be rounded down to one.
    cutting = cut_file("a", scan_of(num_frames), SIZES, RULES, DEFAULT)
    assert not cutting.clips
    (left_out,) = cutting.left_out
    assert left_out == LeftOutClip(
        source="a", start=0, reason=TOO_SHORT_VIDEO, detail="1x64x64"
    )
    assert cutting.frames.left_out == num_frames


def test_the_remainder_of_a_video_becomes_no_still():
    rules = ShapeRules(max_frames=17, min_rest_frames=1)
    cutting = cut_file("a", scan_of(20), SIZES, rules, DEFAULT)
    assert [clip.id for clip in cutting.clips] == ["a@0"]
    assert [clip.start for clip in cutting.left_out] == [17]


def test_a_video_of_one_frame_is_an_image():
    (clip,) = cut_file("a.mp4", scan_of(1), SIZES, RULES, DEFAULT).clips
    assert clip.shape == Shape(1, 8, 8)


def test_a_clip_goes_to_the_size_that_keeps_most_of_each_frame():
    for num_frames in (1, 9, 17):
        scan = scan_of(num_frames, height=64, width=130)
        sizes = ((6, 12), (8, 8), (8, 16), (10, 10))
        (clip,) = cut_file("a", scan, sizes, RULES, DEFAULT).clips
        assert clip.shape == Shape((num_frames - 1) // 4 + 1, 8, 16)


def test_usable_frames_of_a_rate_that_makes_no_sense_are_none():
    assert num_usable(scan_of(30, fps=30.0), RULES) == 16
    assert num_usable(scan_of(30, fps=2.0), RULES) == 0
    assert num_usable(scan_of(1), RULES) == 1
