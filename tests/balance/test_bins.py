"""Tests of jaxload.balance.bins."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxload.balance.bins import _best_pattern, fill_bins, partition

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
def test_a_few_items_are_distributed_optimally(sizes, num_bins):
    if num_bins == 4:
        sizes = sizes[:8]  # 65,536 deals to try.
    bins = partition(sizes, num_bins)
    assert fullest(sizes, bins) <= least_possible(sizes, num_bins) * 1.01


def test_longest_first_is_not_optimal():
    # The textbook case: 7 to the least loaded, 11 at best 9.
    sizes = [5.0, 5.0, 4.0, 4.0, 3.0, 3.0, 3.0]
    bins = partition(sizes, 3)
    assert fullest(sizes, bins) == 9.0


@settings(max_examples=40, deadline=None)
@given(st.lists(SIZES, max_size=60), st.integers(1, 9))
def test_each_item_is_in_one_bin(sizes, num_bins):
    bins = partition(sizes, num_bins)
    assert len(bins) == num_bins
    assert sorted(i for b in bins for i in b) == list(range(len(sizes)))


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 12), st.integers(0, 99))
def test_many_small_items_fill_the_bins_evenly(num_bins, seed):
    sizes = np.random.default_rng(seed).uniform(0.5, 1.5, 20 * num_bins).tolist()
    bins = partition(sizes, num_bins)
    assert fullest(sizes, bins) <= sum(sizes) / num_bins * 1.01


def test_without_items_all_bins_are_empty():
    assert partition([], 3) == [[], [], []]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_best_pattern_agrees_with_brute_force(data):
    num_items = data.draw(st.integers(1, 4))
    capacity = data.draw(st.integers(1, 24))
    units = data.draw(
        st.lists(st.integers(1, 12), min_size=num_items, max_size=num_items)
    )
    worth = data.draw(
        st.lists(st.floats(-1.0, 5.0), min_size=num_items, max_size=num_items)
    )
    value, pattern = _best_pattern(np.array(units), np.array(worth), capacity)
    best = max(
        float(np.dot(counts, worth))
        for counts in itertools.product(*(range(capacity // u + 1) for u in units))
        if np.dot(counts, units) <= capacity
    )
    assert value == pytest.approx(best, abs=1e-9)
    assert pattern @ worth == pytest.approx(best, abs=1e-9)
    assert pattern @ units <= capacity
    assert (pattern >= 0).all()


def fill(sizes, totals, *, amounts=None, supply_of=None, bin_size=1.0, **options):
    num_items = len(sizes)
    return fill_bins(
        np.arange(num_items) if supply_of is None else np.array(supply_of),
        np.ones(num_items, np.int64) if amounts is None else np.array(amounts),
        np.array(sizes),
        np.array(totals),
        bin_size=bin_size,
        resolution=1_000,
        penalty=0.0,
        **options,
    )


def test_pairs_that_fill_bins_exactly_waste_nothing():
    # 0.7 and 0.3 fill a bin, as do 0.55 and 0.45; no item fills a bin by itself.
    num_bins, used = fill([0.7, 0.55, 0.45, 0.3], [50, 80, 80, 50])
    assert num_bins == pytest.approx(130)
    assert {tuple(p.tolist()) for _, p in used} == {(1, 0, 0, 1), (0, 1, 1, 0)}


def test_a_known_instance_of_cutting_stock():
    # Rolls of 5.6 m; the optimum of the relaxation is 72.2 rolls, 73 if whole.
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


def test_large_and_small_items_of_one_supply_share_bins():
    # Batches of 4 and of 1, with a fixed cost: only the pattern of one large and two
    # small batches fills a bin.
    num_bins, used = fill([0.6, 0.2], [600], supply_of=[0, 0], amounts=[4, 1])
    assert num_bins == pytest.approx(100)
    assert [tuple(p.tolist()) for _, p in used] == [(1, 2)]


def test_an_item_larger_than_a_bin_gets_its_own_bin():
    num_bins, _ = fill([1.7, 0.5], [10, 10])
    assert num_bins == pytest.approx(15)


def test_a_penalty_prefers_large_items():
    options = {"supply_of": [0, 0], "amounts": [1, 4]}
    items = (np.array([0.25, 1.0]), np.array([400]))
    for penalty, pattern in ((0.0, None), (1e-3, (0, 1))):
        num_bins, used = fill_bins(
            np.array(options["supply_of"]),
            np.array(options["amounts"]),
            *items,
            bin_size=1.0,
            resolution=1_000,
            penalty=penalty,
        )
        assert num_bins == pytest.approx(100)
        if pattern:
            assert [tuple(p.tolist()) for _, p in used] == [pattern]


def test_known_patterns_larger_than_a_bin_are_not_used():
    _, used = fill([0.6, 0.5], [10, 10], patterns=[np.array([1, 1])])
    assert all(p @ [0.6, 0.5] <= 1.0 + 1e-3 for _, p in used)


def best_relaxation(sizes, totals, capacity: int) -> float:
    """Returns the LP relaxation of the number of bins, over all patterns."""
    from scipy.optimize import linprog

    patterns = [
        counts
        for counts in itertools.product(*(range(capacity // s + 1) for s in sizes))
        if 0 < np.dot(counts, sizes) <= capacity
    ]
    matrix = np.array(patterns).T
    return linprog(np.ones(len(patterns)), A_ub=-matrix, b_ub=-np.array(totals)).fun


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_number_of_bins_agrees_with_brute_force(data):
    num_items = data.draw(st.integers(1, 4))
    sizes = data.draw(
        st.lists(
            st.integers(6, 20), min_size=num_items, max_size=num_items, unique=True
        )
    )
    totals = data.draw(
        st.lists(st.integers(1, 500), min_size=num_items, max_size=num_items)
    )
    num_bins, used = fill([s / 20 for s in sizes], totals)
    assert num_bins >= np.dot(sizes, totals) / 20 * (1 - 1e-9)
    assert num_bins == pytest.approx(best_relaxation(sizes, totals, 20), rel=2e-4)
    covered = sum(times * pattern for times, pattern in used)
    assert (covered >= np.array(totals) * (1 - 1e-9)).all()
    assert sum(times for times, _ in used) == pytest.approx(num_bins)
    assert all(pattern @ sizes <= 20 for _, pattern in used)


def test_patterns_of_several_supplies_are_preferred():
    # Four supplies of equal size: patterns of one or of all of them fill as many bins.
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
