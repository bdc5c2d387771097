"""Tests of jaxload.balance.simulation, also against results of papers."""

import dataclasses
import functools
import tracemalloc

import numpy as np
import pytest

from jaxload.balance.architecture import analytic_law
from jaxload.balance.batch_sizes import choose_batches, expected_idle
from jaxload.balance.config import BalanceConfig
from jaxload.balance.cost import CostLaw, CostModel
from jaxload.balance.form import Grid
from jaxload.balance.imbalance import expected_distinct
from jaxload.balance.packing import fullest, partition
from jaxload.balance.program import Layout
from jaxload.balance.scenario import Scenario, batches_by_rule, make_mixed
from jaxload.balance.simulation import (
    POLICIES,
    SimulationResult,
    _mixing,
    simulate_policy,
)
from jaxload.errors import InputError
from jaxload.models import preset
from jaxload.planning.analytic_cost import architecture_of
from jaxload.planning.memory import TokenMemory
from jaxload.shapes.shape import Shape
from tests.balance.grid_samples import grid_classes, shape_of

WAN_14B = analytic_law(architecture_of(preset("wan2.1-t2v-14b")))
# Synthetic counts: images in two sizes, and clips up to 81 frames of 720x1280.
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
        classes=grid_classes(counts),
        config=config,
        cost_model=model_of(WAN_14B),
        limit=memory.limit,
        num_replicas=num_replicas,
        accumulate=accumulate,
    )


@functools.cache
def simulated(policy: str, headroom: float, accumulate: int) -> SimulationResult:
    scenario = scenario_of(MIXED, headroom=headroom, accumulate=accumulate)
    return simulate_policy(policy, scenario, num_steps=150)


def idle(policy: str, headroom: float, accumulate: int) -> float:
    return simulated(policy, headroom, accumulate).imbalance.idle_share


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("headroom", [1.0, 2.0, 4.0])
def test_mixed_idles_less_than_dual_and_dual_less_than_equal_token(
    headroom, accumulate
):
    assert simulated("lockstep", headroom, accumulate).imbalance.idle_share == 0.0
    assert idle("mixed", headroom, accumulate) < 0.01
    assert idle("mixed", headroom, accumulate) < idle("dual", headroom, accumulate)
    assert idle("dual", headroom, accumulate) <= idle(
        "equal-token", headroom, accumulate
    )


def test_two_budgets_halve_the_idle_share_if_memory_suffices():
    for headroom in (2.0, 4.0):
        assert idle("dual", headroom, 1) < 0.5 * idle("equal-token", headroom, 1)
    assert idle("dual", 1.0, 1) == idle("equal-token", 1.0, 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_simulated_samples_add_up(policy):
    result = simulated(policy, 2.0, 2)
    assert result.policy == policy
    assert result.seconds.shape == result.memory.shape == (150, 16)
    # This cost model has no fixed cost, so all seconds are work.
    assert result.seconds.sum() == pytest.approx(result.work)
    assert result.throughput == pytest.approx(1 - result.imbalance.idle_share)
    assert result.total_seconds == pytest.approx(result.seconds.max(axis=1).sum())
    np.testing.assert_allclose(
        result.idle_by_step,
        1 - result.seconds.mean(axis=1) / result.seconds.max(axis=1),
    )
    if policy != "knapformer":  # KnapFormer ignores memory.
        assert 0 < result.memory.max() <= 1.0


def test_a_fixed_cost_is_not_work():
    scenario = scenario_of(MIXED)
    fixed = 0.1 * float(WAN_14B(1, LONGEST))
    costly = dataclasses.replace(
        scenario, cost_model=model_of(dataclasses.replace(WAN_14B, fixed=fixed))
    )
    result = simulate_policy("lockstep", costly, num_steps=50)
    num_batches = 50 * 16
    assert result.seconds.sum() == pytest.approx(result.work + num_batches * fixed)
    assert (
        result.throughput
        < 1.0
        == simulate_policy("lockstep", scenario, num_steps=50).throughput
    )


def test_knapformer_deals_the_sequences_that_equal_token_draws():
    drawn, dealt = (simulated(p, 2.0, 1) for p in ("equal-token", "knapformer"))
    assert (dealt.samples, dealt.tokens) == (drawn.samples, drawn.tokens)
    assert dealt.work == pytest.approx(drawn.work)
    np.testing.assert_allclose(dealt.seconds.sum(axis=1), drawn.seconds.sum(axis=1))
    # Redistributing sequences never makes a step longer.
    assert (dealt.seconds.max(axis=1) <= drawn.seconds.max(axis=1) * (1 + 1e-9)).all()


def test_millions_of_short_sequences_are_dealt_in_little_memory():
    # Memory for a clip holds 150,000 images of one token, and a step 10 million.
    counts = {Shape(1, 2, 2): 10**8, Shape(21, 90, 160): 100}
    scenario = scenario_of(counts, num_replicas=64)
    tracemalloc.start()
    result = simulate_policy("knapformer", scenario, num_steps=3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.samples > 10_000_000
    assert peak < 10_000_000
    assert result.imbalance.idle_share < 0.01


def test_mixing_is_distinct_shapes_over_those_of_a_random_draw_of_the_epoch():
    scenario = scenario_of(MIXED, accumulate=2)
    schedule = make_mixed(scenario)
    result = simulate_policy("mixed", scenario, num_steps=40)
    shapes = [shape_of(bucket) for bucket in schedule.buckets]
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
    buckets = simulated("equal-token", 2.0, 1).buckets
    counts = np.zeros((20, 16, len(buckets)), np.int64)
    counts[:, :, 0] = 1  # The first bucket is the cheapest.
    distinct, mixing = _mixing(buckets, counts, np.ones(len(buckets)))
    assert distinct == 1.0
    assert mixing < 0.2


def test_knapformer_counts_all_tokens_of_a_replica():
    result = simulated("knapformer", 2.0, 1)
    assert result.memory.sum() * 2 * LONGEST == pytest.approx(result.tokens)
    assert result.num_compiles is None


def test_samples_carried_to_the_second_epoch_are_counted():
    scenario = scenario_of({Shape(1, 60, 104): 1_001, Shape(5, 60, 104): 333})
    lockstep = simulate_policy("lockstep", scenario, num_steps=2)
    groups = [16 * b.batch for b in lockstep.buckets]
    assert lockstep.carried == 1_001 % groups[0] + 333 % groups[1]
    assert simulate_policy("dual", scenario, num_steps=2).carried is None


def test_many_replicas_do_not_shrink_randomly_drawn_batches():
    few, many = (
        batches_by_rule(scenario_of(MIXED, num_replicas=n), "equal-token").buckets
        for n in (16, 1_024)
    )
    assert [b.batch for b in few] == [b.batch for b in many]


def test_lockstep_mixes_least():
    assert simulated("lockstep", 2.0, 1).distinct == 1.0
    assert simulated("lockstep", 2.0, 1).mixing < 0.3
    assert simulated("mixed", 2.0, 1).mixing > 0.9
    assert simulated("equal-token", 2.0, 1).mixing == pytest.approx(1.0, abs=0.05)


def test_lockstep_leaves_out_shapes_without_a_sample_for_each_replica():
    scenario = scenario_of({Shape(1, 60, 104): 900, Shape(21, 60, 104): 15})
    result = simulate_policy("lockstep", scenario, num_steps=5)
    assert [shape_of(b).frames for b in result.buckets] == [1]
    assert "forms left out, with fewer samples than replicas: 1" in result.note
    assert simulate_policy("mixed", scenario, num_steps=5).note == ""


def test_lockstep_of_too_few_samples_is_an_error():
    few = {Shape(1, 60, 104): 15, Shape(5, 60, 104): 15}
    with pytest.raises(InputError, match="no bucket has 16 samples"):
        simulate_policy("lockstep", scenario_of(few), num_steps=5)


def test_an_unknown_policy_is_an_error():
    with pytest.raises(InputError, match="policy 'best': expected some of equal-token"):
        simulate_policy("best", scenario_of(MIXED), num_steps=5)


def test_a_given_compute_budget_is_used():
    scenario = scenario_of(MIXED, headroom=4.0, max_compute_tokens=LONGEST)
    catalogue = batches_by_rule(scenario, "dual-cost")
    assert catalogue.budget == pytest.approx(float(WAN_14B.sample(LONGEST)))
    longest = simulate_policy("mixed", scenario, num_steps=50).seconds.max()
    assert longest == pytest.approx(float(WAN_14B(1, LONGEST)), rel=2e-3)


# Reconstruction of an example published for AdaptiveLoad: eleven lengths of 1,560 to
# 75,600 tokens. Only these two lengths are published. Here the lengths are those of
# 480x832 and 720x1280 at 1 to 81 frames.
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
        grid_classes(dict.fromkeys(TOY, 10**6)),
        [memory.limit(Grid.of(shape)) for shape in TOY],
        config=config,
        cost_model=model_of(WAN_14B),
        num_replicas=16,
    )
    cost = np.array([bucket.cost for bucket in catalogue.buckets])
    return expected_idle(cost, np.ones(len(TOY)), 16)


def test_a_published_example_of_two_budgets():
    # Published: 0.47, for other lengths between the ends.
    assert toy_idle("equal-token", headroom=1) == pytest.approx(0.47, abs=0.03)
    for exponent in (1.5, 1.75, 2.0):
        assert toy_idle("dual", headroom=1, exponent=exponent) == toy_idle(
            "equal-token", headroom=1
        )
        # Published: 0.19 to 0.21.
        idle_share = toy_idle("dual", headroom=2, exponent=exponent)
        assert idle_share == pytest.approx(0.20, abs=0.04)


@pytest.mark.parametrize("image_tokens", [256, 1_024, 3_600])
def test_whole_sequences_cannot_balance_three_long_clips(image_tokens):
    # An example of Zellige with four replicas. Assumptions: 10 s of 720p at 16 fps are
    # 161 frames, or 41 latent frames of 45x80 tokens; the model has 1.3B parameters.
    # The size of the images is not published, so three sizes are tried.
    cost = analytic_law(architecture_of(preset("wan2.1-t2v-1.3b")))
    tokens = [41 * 45 * 80] * 3 + [image_tokens] * 228
    work = [float(cost(1, t)) for t in tokens]
    mean, longest = sum(work) / 4, max(work)
    each = [1] * len(work)
    by_tokens = fullest(work, partition(list(map(float, tokens)), each, 4))
    by_work = fullest(work, partition(work, each, 4))
    # One clip costs more than the mean of a replica, up to 4/3 of it if images were
    # free. No distribution of whole sequences can do better.
    assert 1.1 < longest / mean < 4 / 3
    assert by_work / mean == pytest.approx(longest / mean)
    assert by_work <= by_tokens
    if image_tokens == 1_024:  # As published, if images have 512x512 pixels.
        assert 1.25 <= by_work / mean <= 1.27
        assert 1.27 <= by_tokens / mean <= 1.31


def test_bags_balance_what_whole_sequences_cannot():
    # As in KnapFormer: 32 replicas, and one sequence that costs 2.81 times the mean.
    rng = np.random.default_rng(0)
    short = rng.uniform(0.02, 0.2, 280)
    mean = short.sum() / (32 - 2.81)
    work = [2.81 * mean, *short.tolist()]
    each = [1] * len(work)
    assert fullest(work, partition(work, each, 32)) / mean == pytest.approx(2.81)
    # Eight bags of four replicas; the replicas of a bag share each sequence.
    bags = fullest(work, partition(work, each, 8)) / 4
    assert bags / mean == pytest.approx(1.0, abs=0.01)
