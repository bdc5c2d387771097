"""Tests of jaxload.balance.bins."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxload.balance.bins import Effort, _best_pattern, fill_bins


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
    limits = data.draw(
        st.lists(st.integers(1, 30), min_size=num_items, max_size=num_items)
    )
    value, pattern = _best_pattern(
        np.array(units), np.array(worth), np.array(limits), capacity, 0.0, Effort()
    )
    best = max(
        float(np.dot(counts, worth))
        for counts in itertools.product(
            *(
                range(min(capacity // u, n) + 1)
                for u, n in zip(units, limits, strict=True)
            )
        )
        if np.dot(counts, units) <= capacity
    )
    assert value == pytest.approx(best, abs=1e-9)
    assert pattern @ worth == pytest.approx(best, abs=1e-9)
    assert pattern @ units <= capacity
    assert (pattern >= 0).all()
    assert (pattern <= limits).all()


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


def best_relaxation(sizes, limits, totals, capacity: int) -> float:
    """Returns the LP relaxation of the number of bins, over all allowed patterns."""
    from scipy.optimize import linprog

    patterns = [
        counts
        for counts in itertools.product(
            *(
                range(min(capacity // s, n) + 1)
                for s, n in zip(sizes, limits, strict=True)
            )
        )
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
    is_spent = data.draw(st.booleans())
    effort = Effort(most=-1) if is_spent else None
    num_bins, used = fill([s / 20 for s in sizes], totals, effort=effort)
    assert num_bins >= np.dot(sizes, totals) / 20 * (1 - 1e-9)
    # Patterns of a spent effort use no supply more than once.
    best = best_relaxation(sizes, totals if is_spent else [20] * num_items, totals, 20)
    assert num_bins == pytest.approx(best, rel=2e-4)
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
