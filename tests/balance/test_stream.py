"""Tests of jaxload.balance.stream."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxload.balance.stream import shuffled, stream_members


def lap_of(lap: int, num_samples: int, *, seed=0, stream=0) -> list[int]:
    members = stream_members(
        lap * num_samples,
        num_samples,
        num_samples=num_samples,
        seed=seed,
        stream=stream,
    )
    return members.tolist()


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 200), st.integers(0, 2**40), st.integers(0, 50), st.integers(0))
def test_a_lap_has_every_sample_once(num_samples, lap, stream, seed):
    members = lap_of(lap, num_samples, stream=stream, seed=seed)
    assert sorted(members) == list(range(num_samples))


@settings(max_examples=30, deadline=None)
@given(st.integers(20, 60), st.integers(0, 200), st.integers(0, 40), st.integers(0, 40))
def test_a_range_equals_its_parts(num_samples, first, count, more):
    def members(first, count):
        return stream_members(first, count, num_samples=num_samples, seed=3, stream=1)

    together = members(first, count + more)
    apart = [members(first, count), members(first + count, more)]
    np.testing.assert_array_equal(together, np.concatenate(apart))


@pytest.mark.parametrize("other", [{"lap": 1}, {"seed": 1}, {"stream": 1}], ids=str)
def test_each_lap_seed_and_stream_has_another_order(other):
    first = {"lap": 0, "seed": 0, "stream": 0}
    orders = [
        [shuffled(i, size=100, **options) for i in range(100)]
        for options in (first, first | other)
    ]
    # Two random orders of 100 agree in one position on average.
    agree = sum(a == b for a, b in zip(*orders, strict=True))
    assert agree < 10
    assert orders[0] != sorted(orders[0])


def test_a_stream_is_shuffled_anew_in_every_lap():
    laps = [lap_of(lap, 100) for lap in range(4)]
    assert len({tuple(lap) for lap in laps}) == 4


def test_each_sample_comes_first_about_as_often():
    firsts = [shuffled(0, size=64, seed=0, stream=0, lap=lap) for lap in range(640)]
    counts = np.bincount(firsts, minlength=64)
    # Chi-square with 63 degrees of freedom: 63 +- 11.
    assert 20 < ((counts - 10) ** 2 / 10).sum() < 130


def test_billions_of_samples_need_no_table():
    members = stream_members(
        10**13 + 5, 100, num_samples=10**10, seed=0, stream=0
    ).tolist()
    assert len(set(members)) == 100
    assert 10**9 < max(members) < 10**10
