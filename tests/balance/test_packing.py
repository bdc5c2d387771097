"""Tests of jaxload.balance.packing."""

import heapq
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxload.balance import packing
from jaxload.balance.packing import (
    fewest_bins,
    fullest,
    improved,
    longest_first,
    partition,
)

SIZES = st.floats(0.01, 10.0)
KINDS = st.lists(st.tuples(SIZES, st.integers(0, 40)), min_size=1, max_size=6)


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
    held = partition(sizes, [1] * len(sizes), num_bins)
    assert fullest(sizes, held) <= least_possible(sizes, num_bins) * 1.01


def test_longest_first_is_not_optimal():
    # The textbook case: 7 to the least loaded, 11 at best 9.
    sizes, counts = [5.0, 4.0, 3.0], [2, 2, 3]
    assert fullest(sizes, longest_first(sizes, counts, 3)) == 11.0
    assert fullest(sizes, partition(sizes, counts, 3)) == 9.0


def longest_first_by_item(sizes, counts, num_bins: int) -> np.ndarray:
    """Puts one item after the other into the emptiest bin."""
    held = np.zeros((num_bins, len(sizes)), np.int64)
    heap = [(0.0, b) for b in range(num_bins)]
    for kind in sorted(range(len(sizes)), key=lambda kind: (-sizes[kind], kind)):
        for _ in range(counts[kind]):
            filled, b = heapq.heappop(heap)
            held[b, kind] += 1
            heapq.heappush(heap, (filled + sizes[kind], b))
    return held


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        # Sums of these sizes are exact, so that equally full bins are recognized.
        st.tuples(st.integers(1, 64), st.integers(0, 40)),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 9),
)
def test_kinds_are_dealt_as_their_items_would_be(kinds, num_bins):
    sizes, counts = [size / 8 for size, _ in kinds], [n for _, n in kinds]
    np.testing.assert_array_equal(
        longest_first(sizes, counts, num_bins),
        longest_first_by_item(sizes, counts, num_bins),
    )


@settings(max_examples=40, deadline=None)
@given(KINDS, st.integers(1, 9))
def test_each_item_is_in_one_bin(kinds, num_bins):
    sizes, counts = [size for size, _ in kinds], [n for _, n in kinds]
    for held in (
        partition(sizes, counts, num_bins),
        fewest_bins(sizes, counts, max(sizes) * 1.5, at_least=num_bins),
    ):
        assert held.min() >= 0
        assert held.sum(axis=0).tolist() == counts
    assert len(partition(sizes, counts, num_bins)) == num_bins


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 12), st.integers(0, 99))
def test_many_small_items_fill_the_bins_evenly(num_bins, seed):
    sizes = np.random.default_rng(seed).uniform(0.5, 1.5, 20 * num_bins).tolist()
    held = partition(sizes, [1] * len(sizes), num_bins)
    assert fullest(sizes, held) <= sum(sizes) / num_bins * 1.01


def test_billions_of_items_are_distributed_as_fast_as_few():
    sizes, counts = [0.7, 0.3, 0.001], [10**9, 7 * 10**9 + 1, 10**12 + 5]
    held = partition(sizes, counts, 1_000)
    assert held.sum(axis=0).tolist() == counts
    mean = math.fsum(s * n for s, n in zip(sizes, counts, strict=True)) / 1_000
    assert fullest(sizes, held) == pytest.approx(mean)


def test_without_items_all_bins_are_empty():
    assert partition([], [], 3).shape == (3, 0)
    assert not partition([1.0], [0], 3).any()
    assert not fewest_bins([1.0], [0], 1.0, at_least=1).any()


def test_improving_stops_when_the_bins_are_small_enough():
    sizes, held = [1.0], np.array([[9], [0], [0]])
    assert improved(sizes, held).max() == 3
    assert improved(sizes, held, enough=5.0).max() == 5


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 20).map(float), min_size=1, max_size=6))
def test_few_items_need_as_few_bins_as_brute_force_finds(sizes):
    at_least = math.ceil(sum(sizes) / 20)
    held = fewest_bins(sizes, [1] * len(sizes), 20.0, at_least=at_least)
    assert fullest(sizes, held) <= 20.0
    enough = (n for n in range(1, 7) if least_possible(sizes, n) <= 20)
    assert len(held) == next(enough)


# Items of which one, two or three fill a bin, and many of which each bin wastes half.
HARD = {
    "halves": ([0.51, 0.34], [4_000, 3_000]),
    "thirds": ([0.334, 0.251, 0.001], [9_000, 10, 50]),
    "pareto": (
        np.minimum(1 + np.random.default_rng(0).pareto(1.2, 300), 40) / 40,
        None,
    ),
    "lognormal": (np.random.default_rng(1).lognormal(-3, 1, 300).clip(0, 1), None),
    "one giant": ([1.0, 1e-4], [1, 100_000]),
}


@pytest.mark.parametrize("name", HARD)
def test_packings_grow_like_the_logarithm_of_the_bins(name, monkeypatch):
    sizes, counts = HARD[name]
    sizes = list(map(float, sizes))
    counts = counts or [1] * len(sizes)
    tried = []

    def counted(sizes, counts, num_bins, **options):
        tried.append(num_bins)
        return partition(sizes, counts, num_bins, **options)

    monkeypatch.setattr(packing, "partition", counted)
    needed = sum(s * n for s, n in zip(sizes, counts, strict=True))
    held = fewest_bins(sizes, counts, 1.0, at_least=math.ceil(needed))
    assert fullest(sizes, held) <= 1.0
    # Doubling and bisecting each take a packing for each bit of the number of bins.
    assert len(tried) <= 2 * math.log2(max(2, len(held))) + 3
    assert len(held) <= 2 * needed + 1
