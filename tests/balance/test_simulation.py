"""Tests of jaxload.balance.simulation, also against results of papers."""

import dataclasses
import functools

import numpy as np
import pytest

from jaxload.balance.architecture import analytic_law
from jaxload.balance.batch_sizes import choose_batches, expected_idle
from jaxload.balance.config import BalanceConfig
from jaxload.balance.cost import CostLaw, CostModel
from jaxload.balance.imbalance import expected_distinct
from jaxload.balance.packing import partition
from jaxload.balance.program import Layout
from jaxload.balance.scenario import Scenario, batches_by_rule, make_mixed
from jaxload.balance.simulation import (
    POLICIES,
    Played,
    _deal_sequences,
    _mixing,
    play,
)
from jaxload.errors import InputError
from jaxload.models import preset
from jaxload.planning.analytic_cost import architecture_of
from jaxload.planning.memory import TokenMemory
from jaxload.shapes.cover import cover_exactly
from jaxload.shapes.shape import Shape

WAN_14B = analytic_law(architecture_of(preset("wan2.1-t2v-14b")))
# Images in two sizes and clips up to 81 frames of 720x1280, made up.
MIXED = {
    Shape(1, 60, 104): 40_000,
    Shape(1, 90, 160): 9_000,
    Shape(5, 60, 104): 6_000,
    Shape(13, 60, 104): 3_100,
    Shape(21, 60, 104): 2_500,
    Shape(21, 90, 160): 700,
}
LONGEST = 75_600


def model_of(law: CostLaw) -> CostModel:
    return CostModel.of(law, unit="FLOP", source="test")


def scenario_of(
    counts,
    *,
    headroom=2.0,
    num_replicas=16,
    accumulate=1,
    layout: Layout | None = None,
    **options,
) -> Scenario:
    """Builds a scenario with memory for `headroom` times the longest sample."""
    longest = max(shape.tokens for shape in counts)
    config = BalanceConfig(max_tokens=int(headroom * longest), **options)
    memory = TokenMemory(max_tokens=config.max_tokens, layout=layout or Layout())
    return Scenario(
        cover=cover_exactly(counts, max_shapes=16, min_samples=1),
        config=config,
        cost_model=model_of(WAN_14B),
        limit=memory.limit,
        num_replicas=num_replicas,
        accumulate=accumulate,
    )


@functools.cache
def played(policy: str, headroom: float, accumulate: int) -> Played:
    scenario = scenario_of(MIXED, headroom=headroom, accumulate=accumulate)
    return play(policy, scenario, num_steps=150)


def idle(policy: str, headroom: float, accumulate: int) -> float:
    return played(policy, headroom, accumulate).imbalance.idle_share


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("headroom", [1.0, 2.0, 4.0])
def test_mixed_idles_less_than_dual_and_dual_less_than_equal_token(
    headroom, accumulate
):
    assert played("lockstep", headroom, accumulate).imbalance.idle_share == 0.0
    assert idle("mixed", headroom, accumulate) < 0.01
    assert idle("mixed", headroom, accumulate) < idle("dual", headroom, accumulate)
    assert idle("dual", headroom, accumulate) <= idle(
        "equal-token", headroom, accumulate
    )


def test_two_budgets_halve_the_idle_share_if_memory_has_room():
    for headroom in (2.0, 4.0):
        assert idle("dual", headroom, 1) < 0.5 * idle("equal-token", headroom, 1)
    assert idle("dual", 1.0, 1) == idle("equal-token", 1.0, 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_played_adds_up(policy):
    result = played(policy, 2.0, 2)
    assert result.policy == policy
    assert result.seconds.shape == result.memory.shape == (150, 16)
    # Nothing is fixed in this cost model, so all seconds are work.
    assert result.seconds.sum() == pytest.approx(result.work)
    assert result.throughput == pytest.approx(1 - result.imbalance.idle_share)
    assert result.total_seconds == pytest.approx(result.seconds.max(axis=1).sum())
    np.testing.assert_allclose(
        result.idle_by_step,
        1 - result.seconds.mean(axis=1) / result.seconds.max(axis=1),
    )
    if policy != "knapformer":  # Which does not look at memory.
        assert 0 < result.memory.max() <= 1.0


def test_a_fixed_cost_is_not_work():
    scenario = scenario_of(MIXED)
    fixed = 0.1 * float(WAN_14B(1, LONGEST))
    dear = dataclasses.replace(
        scenario, cost_model=model_of(dataclasses.replace(WAN_14B, fixed=fixed))
    )
    result = play("lockstep", dear, num_steps=50)
    num_batches = 50 * 16
    assert result.seconds.sum() == pytest.approx(result.work + num_batches * fixed)
    assert (
        result.throughput < 1.0 == play("lockstep", scenario, num_steps=50).throughput
    )


def test_knapformer_deals_the_sequences_that_equal_token_draws():
    drawn, dealt = (played(p, 2.0, 1) for p in ("equal-token", "knapformer"))
    assert (dealt.samples, dealt.tokens) == (drawn.samples, drawn.tokens)
    assert dealt.work == pytest.approx(drawn.work)
    np.testing.assert_allclose(dealt.seconds.sum(axis=1), drawn.seconds.sum(axis=1))
    # Whole sequences: no step is shorter than the dearest of them, nor than the mean.
    assert (dealt.seconds.max(axis=1) <= drawn.seconds.max(axis=1) * (1 + 1e-9)).all()


def test_knapformer_deals_the_dearest_sequence_first():
    # Last, it would go on top of two others.
    dealt = _deal_sequences(np.array([3, 1]), np.array([1.0, 3.0]), 2)
    assert sorted(dealt.tolist()) == [[0, 1], [3, 0]]


def test_mixing_is_distinct_shapes_over_those_of_a_random_draw_of_the_epoch():
    scenario = scenario_of(MIXED, accumulate=2)
    schedule = make_mixed(scenario)
    result = play("mixed", scenario, num_steps=40)
    shapes = [bucket.shape for bucket in schedule.buckets]
    of_epoch = dict.fromkeys(shapes, 0)
    for pattern in (*schedule.patterns, *schedule.rest):
        for shape, n in zip(shapes, pattern.counts, strict=True):
            of_epoch[shape] += pattern.times * n
    counts = [schedule.step_counts(step).sum(axis=0) for step in range(40)]
    distinct = [len({shapes[i] for i in np.flatnonzero(c)}) for c in counts]
    draws = float(np.mean([c.sum() for c in counts]))
    assert result.distinct == pytest.approx(np.mean(distinct))
    random = expected_distinct(np.array(list(of_epoch.values())), draws)
    assert result.mixing == pytest.approx(np.mean(distinct) / random)


def test_steps_of_one_shape_each_are_not_mixed():
    buckets = played("equal-token", 2.0, 1).buckets
    counts = np.zeros((20, 16, len(buckets)), np.int64)
    counts[:, :, 0] = 1  # The cheapest of all come first.
    distinct, mixing = _mixing(buckets, counts, np.ones(len(buckets)))
    assert distinct == 1.0
    assert mixing < 0.2


def test_knapformer_counts_the_tokens_of_all_that_a_replica_packs():
    result = played("knapformer", 2.0, 1)
    assert result.memory.sum() * 2 * LONGEST == pytest.approx(result.tokens)
    assert result.num_compiles is None


def test_what_the_first_epoch_leaves_to_the_next_is_counted():
    scenario = scenario_of({Shape(1, 60, 104): 1_001, Shape(5, 60, 104): 333})
    lockstep = play("lockstep", scenario, num_steps=2)
    groups = [16 * b.batch for b in lockstep.buckets]
    assert lockstep.carried == 1_001 % groups[0] + 333 % groups[1]
    assert play("dual", scenario, num_steps=2).carried is None


def test_many_replicas_do_not_shrink_the_batches_that_each_draws_for_itself():
    few, many = (
        batches_by_rule(scenario_of(MIXED, num_replicas=n), "equal-token").buckets
        for n in (16, 1_024)
    )
    assert [b.batch for b in few] == [b.batch for b in many]


def test_lockstep_mixes_least():
    assert played("lockstep", 2.0, 1).distinct == 1.0
    assert played("lockstep", 2.0, 1).mixing < 0.3
    assert played("mixed", 2.0, 1).mixing > 0.9
    assert played("equal-token", 2.0, 1).mixing == pytest.approx(1.0, abs=0.05)


def test_lockstep_leaves_out_what_has_no_sample_for_each_replica():
    scenario = scenario_of({Shape(1, 60, 104): 900, Shape(21, 60, 104): 15})
    result = play("lockstep", scenario, num_steps=5)
    assert [b.shape.frames for b in result.buckets] == [1]
    assert "leaves out 1 shape" in result.note
    assert play("mixed", scenario, num_steps=5).note == ""


def test_lockstep_of_too_few_samples_is_an_error():
    few = {Shape(1, 60, 104): 15, Shape(5, 60, 104): 15}
    with pytest.raises(InputError, match="no shape has 16 samples"):
        play("lockstep", scenario_of(few), num_steps=5)


def test_an_unknown_policy_is_an_error():
    with pytest.raises(InputError, match="policy 'best': expected some of equal-token"):
        play("best", scenario_of(MIXED), num_steps=5)


def test_a_compute_budget_is_taken_as_given():
    scenario = scenario_of(MIXED, headroom=4.0, max_compute_tokens=LONGEST)
    catalogue = batches_by_rule(scenario, "dual-cost")
    assert catalogue.budget == pytest.approx(float(WAN_14B.sample(LONGEST)))
    longest = play("mixed", scenario, num_steps=50).seconds.max()
    assert longest == pytest.approx(float(WAN_14B(1, LONGEST)), rel=2e-3)


# A reconstruction of the toy calculation on AdaptiveLoad: eleven lengths of 1,560 to
# 75,600 tokens, of which only the ends are known. Here: 480x832 and 720x1280 at 1 to 81
# frames.
TOY = sorted(
    [Shape(f, 60, 104) for f in (1, 5, 9, 13, 17, 21)]
    + [Shape(f, 90, 160) for f in (1, 5, 9, 13, 21)],
    key=lambda shape: shape.tokens,
)


def toy_idle(rule, *, headroom: int, exponent: float = 0.0) -> float:
    """Returns the idle share of 16 replicas that draw all buckets equally often."""
    config = BalanceConfig(
        max_tokens=headroom * LONGEST,
        max_compute_tokens=LONGEST,
        rule=rule,
        exponent=exponent,
    )
    memory = TokenMemory(max_tokens=config.max_tokens)
    catalogue = choose_batches(
        [memory.limit(shape) for shape in TOY],
        [10**6] * len(TOY),
        config=config,
        cost_model=model_of(WAN_14B),
        num_replicas=16,
    )
    cost = np.array([bucket.cost for bucket in catalogue.buckets])
    return expected_idle(cost, np.ones(len(TOY)), 16)


def test_the_toy_of_two_budgets():
    # Said to be 0.47; the lengths between the ends are ours.
    assert toy_idle("equal-token", headroom=1) == pytest.approx(0.47, abs=0.03)
    for exponent in (1.5, 1.75, 2.0):
        assert toy_idle("dual", headroom=1, exponent=exponent) == toy_idle(
            "equal-token", headroom=1
        )
        # Said to be 0.19 to 0.21.
        with_room = toy_idle("dual", headroom=2, exponent=exponent)
        assert with_room == pytest.approx(0.20, abs=0.04)


def fullest(sizes, bins) -> float:
    return max(sum(sizes[i] for i in b) for b in bins)


@pytest.mark.parametrize("image_tokens", [256, 1_024, 3_600])
def test_whole_sequences_cannot_balance_three_long_clips(image_tokens):
    # Zellige's case, over four replicas. Assumed: 720p for 10 s at 16 fps is 161
    # frames, of which the latent has 41 of 45x80 tokens; images of three sizes, since
    # theirs are not known; the model of 1.3B.
    cost = analytic_law(architecture_of(preset("wan2.1-t2v-1.3b")))
    tokens = [41 * 45 * 80] * 3 + [image_tokens] * 228
    work = [float(cost(1, t)) for t in tokens]
    mean, longest = sum(work) / 4, max(work)
    by_tokens = fullest(work, partition(list(map(float, tokens)), 4))
    by_work = fullest(work, partition(work, 4))
    # A clip alone is above the mean, up to 4/3 if images were for nothing, and no deal
    # of whole sequences can do better.
    assert 1.1 < longest / mean < 4 / 3
    assert by_work / mean == pytest.approx(longest / mean)
    assert by_work <= by_tokens
    if image_tokens == 1_024:  # As they say, if their images were 512x512.
        assert 1.25 <= by_work / mean <= 1.27
        assert 1.27 <= by_tokens / mean <= 1.31


def test_bags_balance_what_whole_sequences_cannot():
    # KnapFormer's case, made up: 32 replicas, and a sequence of 2.81 means.
    rng = np.random.default_rng(0)
    short = rng.uniform(0.02, 0.2, 280)
    mean = short.sum() / (32 - 2.81)
    work = [2.81 * mean, *short.tolist()]
    assert fullest(work, partition(work, 32)) / mean == pytest.approx(2.81)
    # Eight bags of four replicas, each sequence cut over the four of its bag.
    bags = fullest(work, partition(work, 8)) / 4
    assert bags / mean == pytest.approx(1.0, abs=0.01)
