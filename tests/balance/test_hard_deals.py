"""Tests that deals of hard lists are small, and are found with few operations."""

import numpy as np
import pytest

from jaxload.balance import packing
from jaxload.balance.deal import make_deal
from jaxload.balance.packing import partition
from jaxload.balance.pattern import Deal
from jaxload.balance.supply import Supply

TINY, HUGE = [1, 2, 3, 4], [71_000, 72_000, 74_000, 75_600]
PRIMES = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37]

# Tokens and number of samples of each shape.
HARD = {
    "tiny and huge": (TINY + HUGE, [30_000, 70_000, 500, 9_000] * 2),
    "huge are rare": (TINY + HUGE, [10**6] * 4 + [16, 17, 40, 90]),
    "tiny are rare": (TINY + HUGE, [16, 17, 40, 90] + [10**6] * 4),
    "one huge": ([*range(1, 9), 75_600], [100_000] * 8 + [16]),
    "geometric": ([2**k for k in range(16)], [16 + 2**k for k in range(16)]),
    "primes": ([p * 1_000 for p in PRIMES], [p * 101 for p in PRIMES]),
    # The simplex method fails from the previous basis.
    "far apart": (
        [72_535, 1, 70_694, 3, 3, 72_540, 3, 70_750],
        [913_484, 283_109, 552_032, 336_082, 117_840, 775_328, 155_818, 352_367],
    ),
    "alike and singles": ([32_760, *range(1, 12)], [10**6] + [16] * 11),
}


def supplies_of(name: str, factor: int = 1) -> list[Supply]:
    tokens, counts = HARD[name]
    most = 2 * max(tokens)
    return [
        Supply(num_samples=factor * n, cost=t + t * t / 30_000, max_batch=most // t)
        for t, n in zip(tokens, counts, strict=True)
    ]


def deal_of(
    supplies: list[Supply], *, num_replicas: int, accumulate: int, fixed: float = 0.0
) -> Deal:
    return make_deal(
        supplies,
        fixed=fixed,
        accumulate=accumulate,
        num_replicas=num_replicas,
        max_programs=2 * len(supplies),
    )


def check_size(deal: Deal, num_shapes: int) -> None:
    """Asserts that the size of a deal depends on its shapes and batch sizes only."""
    # A basic solution has a pattern for each shape. Each batch size runs out once.
    assert len(deal.patterns) <= num_shapes + len(deal.options)
    # Rounding leaves over less than one replica-step of each of these patterns, which
    # are packed into at most twice as many.
    assert len(deal.rest) <= 2 * num_shapes


@pytest.mark.parametrize(
    ("name", "accumulate"),
    [
        ("tiny and huge", 1),
        ("huge are rare", 1),
        ("tiny are rare", 4),
        ("one huge", 1),
        ("geometric", 1),
        ("primes", 4),
        ("alike and singles", 1),
    ],
)
def test_a_deal_does_not_grow_with_the_number_of_samples(name: str, accumulate: int):
    for factor in (1, 1_000):
        supplies = supplies_of(name, factor)
        deal = deal_of(supplies, num_replicas=16, accumulate=accumulate)
        check_size(deal, len(supplies))
        for shape, supply in enumerate(supplies):
            batch = [p.batch if p.form == shape else 0 for p in deal.options]
            core = sum(p.times * int(np.dot(p.counts, batch)) for p in deal.patterns)
            rest = sum(int(np.dot(p.counts, batch)) for p in deal.rest)
            smallest = min(b for b in batch if b)
            left = supply.num_samples - core
            assert 0 <= left <= rest < left + smallest


@pytest.mark.parametrize(
    ("name", "factor", "accumulate"),
    [("tiny and huge", 1, 1), ("tiny are rare", 1_000, 4), ("geometric", 1, 1)],
)
def test_few_bins_are_packed(
    name: str, factor: int, accumulate: int, monkeypatch: pytest.MonkeyPatch
):
    num_bins = []

    def counted(sizes, counts, bins, **options):
        num_bins.append(bins)
        return partition(sizes, counts, bins, **options)

    monkeypatch.setattr(packing, "partition", counted)
    supplies = supplies_of(name, factor)
    deal_of(supplies, num_replicas=256, accumulate=accumulate)
    # Each packing has a bin for at most twice the patterns, and bisecting takes a few.
    assert max(num_bins) <= 4 * len(supplies)
    assert len(num_bins) <= 100


@pytest.mark.parametrize("fixed", [0.0, 1.0])
def test_costs_that_are_far_apart_are_solved(fixed: float):
    supplies = supplies_of("far apart")
    deal = deal_of(supplies, num_replicas=2, accumulate=4, fixed=fixed)
    check_size(deal, len(supplies))
