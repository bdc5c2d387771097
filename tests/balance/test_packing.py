"""Tests of jaxload.balance.packing."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxload.balance.packing import _best_pattern, fill_bins, partition

SIZES = st.floats(0.01, 10.0)


def fullest(sizes, bins) -> float:
    return max(sum(sizes[i] for i in b) for b in bins)


def least_possible(sizes, num_bins: int) -> float:
    """Returns the least possible maximum over the bins, by brute force."""
    deals = np.array(list(itertools.product(range(num_bins), repeat=len(sizes))))
    sums = [(deals == b) @ np.array(sizes) for b in range(num_bins)]
    return float(np.max(sums, axis=0).min())


@settings(max_examples=40, deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=9), st.integers(2, 4))
def test_few_things_are_dealt_as_well_as_possible(sizes, num_bins):
    if num_bins == 4:
        sizes = sizes[:8]  # 65,536 deals to try.
    bins = partition(sizes, num_bins)
    assert fullest(sizes, bins) <= least_possible(sizes, num_bins) * 1.01


def test_longest_first_alone_would_not_do():
    # The textbook case: 7 to the least loaded, 11 at best 9.
    sizes = [5.0, 5.0, 4.0, 4.0, 3.0, 3.0, 3.0]
    bins = partition(sizes, 3)
    assert fullest(sizes, bins) == 9.0


@settings(max_examples=40, deadline=None)
@given(st.lists(SIZES, max_size=60), st.integers(1, 9))
def test_each_thing_is_in_one_bin(sizes, num_bins):
    bins = partition(sizes, num_bins)
    assert len(bins) == num_bins
    assert sorted(i for b in bins for i in b) == list(range(len(sizes)))


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 12), st.integers(0, 99))
def test_many_small_things_fill_the_bins_evenly(num_bins, seed):
    sizes = np.random.default_rng(seed).uniform(0.5, 1.5, 20 * num_bins).tolist()
    bins = partition(sizes, num_bins)
    assert fullest(sizes, bins) <= sum(sizes) / num_bins * 1.01


def test_nothing_is_dealt_into_empty_bins():
    assert partition([], 3) == [[], [], []]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_best_pattern_against_every_pattern(data):
    num_things = data.draw(st.integers(1, 4))
    room = data.draw(st.integers(1, 24))
    units = data.draw(
        st.lists(st.integers(1, 12), min_size=num_things, max_size=num_things)
    )
    worth = data.draw(
        st.lists(st.floats(-1.0, 5.0), min_size=num_things, max_size=num_things)
    )
    value, pattern = _best_pattern(np.array(units), np.array(worth), room)
    best = max(
        float(np.dot(counts, worth))
        for counts in itertools.product(*(range(room // u + 1) for u in units))
        if np.dot(counts, units) <= room
    )
    assert value == pytest.approx(best, abs=1e-9)
    assert pattern @ worth == pytest.approx(best, abs=1e-9)
    assert pattern @ units <= room
    assert (pattern >= 0).all()


def fill(sizes, totals, *, amounts=None, kinds=None, bin_size=1.0, **options):
    num_things = len(sizes)
    return fill_bins(
        np.arange(num_things) if kinds is None else np.array(kinds),
        np.ones(num_things, np.int64) if amounts is None else np.array(amounts),
        np.array(sizes),
        np.array(totals),
        bin_size=bin_size,
        resolution=1_000,
        penalty=0.0,
        **options,
    )


def test_pairs_that_fill_bins_exactly_waste_nothing():
    # 0.7 goes with 0.3, 0.55 with 0.45; alone each would take a bin or half of one.
    num_bins, used = fill([0.7, 0.55, 0.45, 0.3], [50, 80, 80, 50])
    assert num_bins == pytest.approx(130)
    assert {tuple(p.tolist()) for _, p in used} == {(1, 0, 0, 1), (0, 1, 1, 0)}


def test_a_known_instance_of_cutting_stock():
    # Of 5.6 m wide rolls; the optimum of the relaxation is 72.2 (73 in whole rolls).
    widths = [1380, 1520, 1560, 1710, 1820, 1880, 1930, 2000, 2050, 2100, 2140, 2150]
    widths += [2200]
    totals = [22, 25, 12, 14, 18, 18, 20, 10, 12, 14, 16, 18, 20]
    num_bins, used = fill_bins(
        np.arange(13),
        np.ones(13, np.int64),
        np.array(widths, float),
        np.array(totals),
        bin_size=5600.0,
        resolution=5600,
        penalty=0.0,
    )
    assert 72.0 < num_bins <= 73.0
    assert all(pattern @ widths <= 5600 for _, pattern in used)


def test_the_large_of_a_kind_saves_room_that_the_small_uses():
    # Batches of 4 and 1 of one kind, with a fixed cost: a bin takes one of 4 and two
    # of 1, and only patterns with both use it up.
    num_bins, used = fill([0.6, 0.2], [600], kinds=[0, 0], amounts=[4, 1])
    assert num_bins == pytest.approx(100)
    assert [tuple(p.tolist()) for _, p in used] == [(1, 2)]


def test_a_thing_that_is_larger_than_a_bin_has_one_of_its_own():
    num_bins, _ = fill([1.7, 0.5], [10, 10])
    assert num_bins == pytest.approx(15)


def test_a_penalty_prefers_the_large_to_the_small():
    options = {"kinds": [0, 0], "amounts": [1, 4]}
    things = (np.array([0.25, 1.0]), np.array([400]))
    for penalty, pattern in ((0.0, None), (1e-3, (0, 1))):
        num_bins, used = fill_bins(
            np.array(options["kinds"]),
            np.array(options["amounts"]),
            *things,
            bin_size=1.0,
            resolution=1_000,
            penalty=penalty,
        )
        assert num_bins == pytest.approx(100)
        if pattern:
            assert [tuple(p.tolist()) for _, p in used] == [pattern]


def test_known_patterns_that_are_too_long_are_not_used():
    _, used = fill([0.6, 0.5], [10, 10], patterns=[np.array([1, 1])])
    assert all(p @ [0.6, 0.5] <= 1.0 + 1e-3 for _, p in used)


def best_relaxation(sizes, totals, room: int) -> float:
    """Returns the LP relaxation of the number of bins, over all patterns."""
    from scipy.optimize import linprog

    patterns = [
        counts
        for counts in itertools.product(*(range(room // s + 1) for s in sizes))
        if 0 < np.dot(counts, sizes) <= room
    ]
    matrix = np.array(patterns).T
    return linprog(np.ones(len(patterns)), A_ub=-matrix, b_ub=-np.array(totals)).fun


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_bins_against_all_patterns_and_the_bound_of_the_work(data):
    num_things = data.draw(st.integers(1, 4))
    sizes = data.draw(
        st.lists(
            st.integers(6, 20), min_size=num_things, max_size=num_things, unique=True
        )
    )
    totals = data.draw(
        st.lists(st.integers(1, 500), min_size=num_things, max_size=num_things)
    )
    num_bins, used = fill([s / 20 for s in sizes], totals)
    assert num_bins >= np.dot(sizes, totals) / 20 * (1 - 1e-9)
    assert num_bins == pytest.approx(best_relaxation(sizes, totals, 20), rel=2e-4)
    covered = sum(times * pattern for times, pattern in used)
    assert (covered >= np.array(totals) * (1 - 1e-9)).all()
    assert sum(times for times, _ in used) == pytest.approx(num_bins)
    assert all(pattern @ sizes <= 20 for _, pattern in used)


def test_patterns_of_many_kinds_are_preferred():
    # Four kinds of equal size: alike or mixed, as many bins.
    def patterns(repeats: float) -> list[np.ndarray]:
        _, used = fill_bins(
            np.arange(4),
            np.ones(4, np.int64),
            np.ones(4),
            np.full(4, 100),
            bin_size=4.0,
            resolution=100,
            penalty=0.0,
            repeats=repeats,
        )
        return [pattern for _, pattern in used]

    assert all(np.count_nonzero(p) == 4 for p in patterns(0.01))
    assert all(np.count_nonzero(p) == 1 for p in patterns(0.0))
