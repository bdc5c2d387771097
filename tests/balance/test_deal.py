"""Tests of jaxload.balance.deal."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxload.balance import deal as deal_module
from jaxload.balance.bins import Effort
from jaxload.balance.deal import _FINE, make_deal
from jaxload.balance.pattern import Deal
from jaxload.balance.supply import Supply
from jaxload.errors import InputError


def deal_of(
    supplies, *, num_replicas=1, accumulate=1, max_programs=8, **options
) -> Deal:
    """Makes a deal of supplies given as (samples, cost, largest batch)."""
    return make_deal(
        [Supply(num_samples=n, cost=float(c), max_batch=b) for n, c, b in supplies],
        fixed=options.pop("fixed", 0.0),
        accumulate=accumulate,
        num_replicas=num_replicas,
        max_programs=max_programs,
        **options,
    )


def costs_of(deal: Deal, supplies, fixed=0.0) -> np.ndarray:
    """Returns the cost of a micro-batch of each program."""
    return np.array([fixed + p.batch * supplies[p.form][1] for p in deal.options])


def replica_steps(deal: Deal, supplies, fixed=0.0) -> np.ndarray:
    """Returns costs of all replica-steps of an epoch, assuming full micro-batches."""
    costs = costs_of(deal, supplies, fixed)
    return np.concatenate(
        [
            np.full(p.times, np.dot(p.counts, costs))
            for p in (*deal.patterns, *deal.rest)
        ]
    )


def idle_of(deal: Deal, supplies, fixed=0.0) -> float:
    seconds = replica_steps(deal, supplies, fixed)
    return 1 - seconds.mean() / seconds.max()


@st.composite
def problems(draw, most=3_000) -> dict:
    supplies = [
        (
            draw(st.integers(1, most)),
            draw(st.floats(0.05, 3.0)),
            draw(st.integers(1, 16)),
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    num_samples = sum(n for n, _, _ in supplies)
    return {
        "supplies": supplies,
        "fixed": draw(st.sampled_from([0.0, 0.1, 1.0])),
        "accumulate": draw(st.sampled_from([1, 2, 4])),
        "num_replicas": draw(st.integers(1, min(16, num_samples))),
        "max_programs": draw(st.integers(len(supplies), 12)),
    }


@settings(max_examples=25, deadline=None)
@given(problems())
def test_an_epoch_uses_every_sample_except_for_a_partial_batch(problem):
    supplies = problem["supplies"]
    deal = deal_of(**problem)
    assert {p.form for p in deal.options} == set(range(len(supplies)))
    assert len(set(deal.options)) == len(deal.options) <= problem["max_programs"]
    for program in deal.options:
        assert 1 <= program.batch <= supplies[program.form][2]
    assert all(p.times >= 1 for p in deal.patterns)
    assert all(p.times == 1 for p in deal.rest)
    assert all(min(p.counts) >= 0 < max(p.counts) for p in (*deal.patterns, *deal.rest))
    for shape, (num_samples, _, _) in enumerate(supplies):
        batch = [p.batch if p.form == shape else 0 for p in deal.options]
        smallest = min(b for b in batch if b)
        core = sum(p.times * np.dot(p.counts, batch) for p in deal.patterns)
        rest = sum(np.dot(p.counts, batch) for p in deal.rest)
        # The rest takes the samples that patterns leave, in the smallest batches.
        assert 0 <= num_samples - core <= rest < num_samples - core + smallest
        assert all(
            count == 0 or b in (0, smallest)
            for p in deal.rest
            for count, b in zip(p.counts, batch, strict=True)
        )


@settings(max_examples=25, deadline=None)
@given(problems())
@example(
    problem={
        "supplies": [(1, 1.0, 1), (99, 1.0, 2), (1, 1.0, 1), (17, 1.0, 2)],
        "num_replicas": 3,
        "max_programs": 4,
        "accumulate": 1,
        "fixed": 0.0,
    }
)
def test_no_replica_step_of_a_long_epoch_exceeds_the_budget(problem):
    supplies = problem["supplies"]
    deal = deal_of(**problem)
    if sum(p.times for p in deal.patterns) < 50:
        return  # Short epochs are packed as a whole.
    # Patterns that could be empty are merged into the first of the rest.
    deal = dataclasses.replace(deal, rest=deal.rest[1:])
    seconds = replica_steps(deal, supplies, problem["fixed"])
    # The cost of each micro-batch is rounded to 1 / _FINE of the budget.
    longest = max(sum(p.counts) for p in (*deal.patterns, *deal.rest))
    slack = max(0.002, 0.5 * longest / _FINE)
    assert seconds.max() <= deal.budget * problem["accumulate"] * (1 + slack)


@settings(max_examples=5, deadline=None)
@given(problems(most=200))
def test_deals_are_deterministic(problem):
    assert deal_of(**problem) == deal_of(**problem)


def best_deal(items, num_bins: int) -> float:
    """Returns the least possible maximum over the bins, by brute force."""
    bin_of = np.array(list(itertools.product(range(num_bins), repeat=len(items))))
    sums = [(bin_of == b) @ np.array(items) for b in range(num_bins)]
    return float(np.max(sums, axis=0).min())


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.floats(0.2, 3.0)), min_size=1, max_size=2),
    st.floats(1.0, 2.5),
)
def test_a_short_epoch_is_dealt_almost_optimally(supplies, headroom):
    # Batches of one sample, so that brute force can try every deal.
    supplies = [(n, cost, 1) for n, cost in supplies]
    budget = headroom * max(cost for _, cost, _ in supplies)
    deal = deal_of(supplies, max_programs=len(supplies), budget=budget)
    items = [cost for n, cost, _ in supplies for _ in range(n)]
    seconds = replica_steps(deal, supplies)
    best = best_deal(items, deal.num_bins)
    assert seconds.sum() == pytest.approx(sum(items))
    assert seconds.max() <= 1.01 * best


def test_pairs_that_fill_the_budget_are_found():
    # Costs of 0.7 + 0.3 and of 0.6 + 0.2 + 0.2 fill the budget: no replica waits.
    supplies = [(500, 0.7, 1), (500, 0.3, 1), (300, 0.6, 1), (600, 0.2, 1)]
    deal = deal_of(supplies, budget=1.0, max_programs=4)
    assert deal.num_bins == 800
    assert idle_of(deal, supplies) == pytest.approx(0.0, abs=1e-9)


def test_more_batch_sizes_fill_gaps_that_one_leaves():
    # A budget holds four short samples, or one long and one short sample.
    supplies = [(8_000, 1.0, 4), (2_000, 3.0, 1)]
    few = deal_of(supplies, budget=4.0, max_programs=2)
    more = deal_of(supplies, budget=4.0, max_programs=4)
    assert [(p.form, p.batch) for p in few.options] == [(0, 4), (1, 1)]
    assert (0, 1) in [(p.form, p.batch) for p in more.options]
    assert idle_of(few, supplies) == pytest.approx(0.125, abs=1e-3)
    assert idle_of(more, supplies) < 0.005


def test_a_sample_over_the_budget_gets_a_batch_of_one():
    supplies = [(100, 3.0, 4), (100, 1.0, 4)]
    deal = deal_of(supplies, budget=2.0)
    by_shape = {p.form: p.batch for p in deal.options}
    assert by_shape == {0: 1, 1: 2}


def test_accumulation_reduces_idle_time():
    # Single micro-batches cost 0.7 or 1.0; sums of eight can be about equal.
    supplies = [(3_000, 0.7, 1), (3_000, 1.0, 1)]
    idle = [
        idle_of(deal_of(supplies, accumulate=a, budget=1.0, max_programs=2), supplies)
        for a in (1, 8)
    ]
    assert idle[1] < 0.2 * idle[0]


def test_fewer_samples_than_replicas_are_an_error():
    with pytest.raises(
        InputError, match=r"7 samples for 8 replicas: expected at least one for each"
    ):
        deal_of([(3, 1.0, 1), (4, 2.0, 1)], num_replicas=8)


def test_billions_of_samples_are_dealt_as_fast_as_few():
    supplies = [(10**10, 0.1, 16), (3 * 10**9 + 7, 1.3, 4), (10**8 + 1, 2.9, 1)]
    deal = deal_of(supplies, num_replicas=1024, accumulate=2)
    assert len(deal.patterns) + len(deal.rest) < 30
    for shape, (num_samples, _, _) in enumerate(supplies):
        batch = [p.batch if p.form == shape else 0 for p in deal.options]
        core = sum(p.times * int(np.dot(p.counts, batch)) for p in deal.patterns)
        assert 0 <= num_samples - core < 10_000


def test_a_budget_of_several_micro_batches_is_tried_if_costs_differ():
    # Memory holds one sample; ten samples of 0.7 cost as much as seven of 1.0.
    supplies = [(3_000, 0.7, 1), (3_000, 1.0, 1)]
    deal = deal_of(supplies, max_programs=2)
    assert deal.budget > 1.0
    assert idle_of(deal, supplies) < 0.03


def test_batches_divide_the_samples_of_a_short_epoch():
    # Batches of 4 leave 2 of 66 samples over; batches of 3 leave none.
    supplies = [(66, 1.0, 4), (66, 1.1, 4)]
    deal = deal_of(supplies, accumulate=2, num_replicas=4, budget=4.4, max_programs=2)
    assert {program.batch for program in deal.options} == {3}


def short_epoch() -> list[tuple[int, float, int]]:
    """Returns few samples of many lengths, whose deal takes long to search."""
    rng = np.random.default_rng(513)
    tokens = np.exp(rng.uniform(0, np.log(75_600), 30)).astype(int) + 1
    costs = (tokens + tokens**2 / 30_000).tolist()
    batches = (700_000 // tokens).tolist()
    return [(16 + i, c, b) for i, (c, b) in enumerate(zip(costs, batches, strict=True))]


def test_the_search_is_bounded_by_a_count(monkeypatch: pytest.MonkeyPatch):
    efforts = []

    def counted(**options) -> Effort:
        efforts.append(Effort(**options))
        return efforts[-1]

    # A small part of the real bound, so that the test is fast.
    monkeypatch.setattr(deal_module, "_MAX_OFFERS", 30_000)
    monkeypatch.setattr(deal_module, "Effort", counted)
    supplies = short_epoch()
    deals = [deal_of(supplies, num_replicas=64, max_programs=64) for _ in range(2)]
    # Without a bound, the search makes 4 million offers.
    assert 30_000 < efforts[0].spent < 250_000
    # A count of work, unlike a clock, gives every process the same deal.
    assert efforts[0] == efforts[1]
    assert deals[0] == deals[1]
    assert idle_of(deals[0], supplies) < 0.12


def test_batches_of_a_billion_samples_are_chosen_at_once():
    supplies = [(10**9 + 7, 1e-3, 10**9), (1_000, 1e5, 10)]
    deal = deal_of(supplies, num_replicas=2, max_programs=2)
    assert {program.form for program in deal.options} == {0, 1}
