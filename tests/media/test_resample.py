"""Tests of jaxload.media.resample."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxload.media.frame import Frame
from jaxload.media.resample import resample, ticks
from jaxload.shapes.clips import Columns, usable_frames
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.geometry import DEFAULT

RATES = [
    *(Fraction(rate) for rate in (6, 10, 12, 15, 16, 24, 25, 30, 48, 50, 60, 120)),
    *(Fraction(rate * 1000, 1001) for rate in (24, 30, 60)),
]


def frames_at(times) -> list[Frame]:
    """Returns frames at these times, with distinct pixels."""
    return [
        Frame(time=float(time), height=1, width=1, pixels=lambda i=i: np.array(i))
        for i, time in enumerate(times)
    ]


def taken(times, *, rate: float, count: int) -> list[int]:
    frames = resample(iter(frames_at(times)), rate=rate, count=count)
    return [int(frame.rgb()) for frame in frames]


def usable(num_frames: np.ndarray, rate: Fraction) -> np.ndarray:
    """Returns the number of frames that a plan at 16 fps expects from each video."""
    size = np.full(len(num_frames), 64.0)
    columns = Columns(
        num_frames=num_frames.astype(float),
        height=size,
        width=size,
        fps=np.full(len(num_frames), float(rate)),
        count=np.ones(len(num_frames), np.int64),
    )
    return usable_frames(columns, ShapeRules(fps=16.0), DEFAULT)


@pytest.mark.parametrize("rate", RATES, ids=str)
@pytest.mark.parametrize("unit", [None, 1000, 90_000], ids=str)
def test_counts_are_those_that_a_plan_expects(rate, unit):
    lengths = np.arange(1, 800)
    for num_frames, expected in zip(lengths, usable(lengths, rate), strict=True):
        seconds = (int(num_frames) - 1) / rate
        if unit is not None:
            seconds = Fraction(round(seconds * unit), unit)
        _, count = ticks(int(num_frames), float(seconds), fps=16.0)
        if count != expected:
            # Only a tick that comes a millisecond after the last frame, or less.
            assert count == expected + 1
            assert rate.denominator == 1001
            assert (
                0 < Fraction(int(expected), 16) - (int(num_frames) - 1) / rate < 0.0016
            )


@pytest.mark.parametrize("rate", [rate for rate in RATES if rate <= 16], ids=str)
@pytest.mark.parametrize("unit", [1000, 90_000])
def test_a_slower_video_keeps_every_frame(rate, unit):
    for num_frames in (2, 3, 17, 81, 1000):
        times = [round(i / rate * unit) / unit for i in range(num_frames)]
        own, count = ticks(num_frames, times[-1], fps=16.0)
        assert own == pytest.approx(float(rate), rel=1e-2)
        assert own <= 16.0
        assert taken(times, rate=own, count=count) == list(range(num_frames))


def test_one_frame_is_one_tick():
    assert ticks(1, 0.0, fps=16.0) == (16.0, 1)
    assert taken([0.0], rate=16.0, count=1) == [0]


def test_a_faster_video_loses_frames():
    times = [i / 48 for i in range(13)]
    assert ticks(13, times[-1], fps=16.0) == (16.0, 5)
    assert taken(times, rate=16.0, count=5) == [0, 3, 6, 9, 12]


def test_ties_go_to_the_earlier_frame():
    # Ticks at 0, 1, 2, ... and frames at 0, 0.5, 1.5, 2.5: each tick from 1 on lies
    # halfway between two.
    assert taken([0, 0.5, 1.5, 2.5], rate=1.0, count=3) == [0, 1, 2]


def test_a_gap_repeats_the_nearest_frame():
    assert taken([0, 1, 5, 6], rate=1.0, count=7) == [0, 1, 1, 1, 2, 2, 3]


def test_no_frames_give_no_frames():
    assert taken([], rate=1.0, count=3) == []


@given(
    steps=st.lists(st.integers(1, 300), max_size=40),
    unit=st.sampled_from([30, 90, 1000]),
    rate=st.floats(0.5, 60),
    count=st.integers(1, 60),
)
def test_each_tick_has_the_nearest_of_all_frames(steps, unit, rate, count):
    times = np.array([0, *itertools.accumulate(steps)]) / unit
    at = np.arange(count) / rate
    nearest = np.abs(times[None] - at[:, None]).argmin(axis=1)
    # Up to half a tick after the last frame: beyond that, frames are missing.
    there = at <= times[-1] + 0.5 / rate
    assert taken(times, rate=rate, count=count) == nearest[there].tolist()


def test_missing_frames_are_not_made_up():
    assert taken([0, 1, 2], rate=1.0, count=9) == [0, 1, 2]


def test_only_one_frame_is_read_ahead():
    read = []

    def source():
        for frame in frames_at(range(10)):
            read.append(frame.time)
            yield frame

    frames = resample(source(), rate=1.0, count=5)
    assert [next(frames).time for _ in range(3)] == [0, 1, 2]
    assert read == [0, 1, 2, 3]
    assert [frame.time for frame in frames] == [3, 4]
    assert read == [0, 1, 2, 3, 4, 5]
