"""Tests of jaxload.balance.scenario: deals for groups of several devices."""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxload.balance.bucket import Bucket
from jaxload.balance.config import BalanceConfig
from jaxload.balance.cost import CostLaw, CostModel
from jaxload.balance.mixed import Mixed
from jaxload.balance.pattern import Deal
from jaxload.balance.program import Layout
from jaxload.balance.scenario import (
    Scenario,
    deal_buckets,
    deal_buckets_again,
    deal_of,
    make_lockstep,
    make_mixed,
)
from jaxload.balance.simulation import POLICIES, simulate_policy
from jaxload.errors import InputError
from jaxload.planning.memory import TokenMemory
from jaxload.shapes.shape import Shape
from tests.balance.grid_samples import grid_classes, shape_of

LAW = CostLaw(fixed=40.0, per_sample=10.0, per_token=1.0, per_token_squared=0.01)
COUNTS = {Shape(1, 4, 4): 4_001, Shape(9, 4, 4): 1_203, Shape(25, 4, 4): 499}


def scenario_of(
    counts: Mapping[Shape, int],
    *,
    layout: Layout | None = None,
    multiple: int = 1,
    num_replicas: int = 2,
    accumulate: int = 1,
    seed: int = 0,
    max_tokens: int = 256,
    **options,
) -> Scenario:
    config = BalanceConfig(
        max_tokens=max_tokens, policy="mixed", batch_multiple=multiple, **options
    )
    return Scenario(
        classes=grid_classes(counts),
        config=config,
        cost_model=CostModel.of(LAW, unit="s", source="test"),
        limit=TokenMemory(
            max_tokens=config.max_tokens, layout=layout or Layout(), multiple=multiple
        ).limit,
        num_replicas=num_replicas,
        accumulate=accumulate,
        seed=seed,
    )


@st.composite
def scenarios(draw) -> Callable[[], Scenario]:
    """Draws functions that make a scenario, so that no deal is made while drawing."""
    layout = Layout(batch=draw(st.sampled_from([1, 2, 3, 8])))
    multiple = draw(st.sampled_from([1, 2, 4]))
    num_replicas = draw(st.integers(1, 5))
    unit = math.lcm(layout.batch, multiple)
    frames = draw(st.lists(st.integers(1, 30), min_size=1, max_size=3, unique=True))
    # Many units, a few units, or less than one unit.
    sizes = st.sampled_from([30 * unit, 4 * unit, unit]).flatmap(
        lambda most: st.integers(1, most)
    )
    counts = {Shape(f, 4, 4): draw(sizes) for f in frames}
    # A deal needs one unit for each replica.
    first = Shape(frames[0], 4, 4)
    counts[first] = max(counts[first], unit * num_replicas)
    return functools.partial(
        scenario_of,
        counts,
        layout=layout,
        multiple=multiple,
        num_replicas=num_replicas,
        accumulate=draw(st.integers(1, 2)),
        seed=draw(st.integers(0, 2**31)),
    )


def num_bins(schedule: Mixed) -> int:
    return sum(p.times for p in (*schedule.patterns, *schedule.rest))


def samples_of(schedule: Mixed, epoch: int) -> collections.Counter:
    """Counts how often each (shape, member) is run in an epoch."""
    counts = collections.Counter()
    size = num_bins(schedule)
    for index in range(epoch * size, (epoch + 1) * size):
        for m in schedule.micro_batches(*divmod(index, schedule.num_replicas)):
            bucket = schedule.buckets[m.bucket]
            assert len(m.members) == bucket.batch
            counts.update((shape_of(bucket), int(i)) for i in m.members)
    return counts


def check_epochs(schedule: Mixed, num_samples: Mapping[Shape, int]) -> None:
    """Asserts one run per sample and epoch, except for samples carried over."""
    counts = collections.Counter()
    for epoch in range(3):
        counts += samples_of(schedule, epoch)
        carried = schedule.carried(epoch)
        for shape, count in num_samples.items():
            smallest = min(b.batch for b in schedule.buckets if shape_of(b) == shape)
            seen = np.array([counts[shape, i] for i in range(count)])
            waiting = (epoch + 1) * count - seen.sum()
            assert 0 <= waiting < smallest
            assert waiting == carried[str(shape)]
            # Samples that are carried over are missing only from the last passes.
            assert seen.max() - seen.min() <= math.ceil(smallest / count)
            assert seen.max() <= epoch + 1


@settings(max_examples=12, deadline=None)
@given(scenarios())
def test_each_sample_once_per_epoch_whatever_the_layout(make):
    scenario = make()
    schedule = make_mixed(scenario)
    counts = {c.shapes[0]: c.num_samples for c in scenario.classes}
    assert {shape_of(b) for b in schedule.buckets} == set(counts)
    for bucket in schedule.buckets:
        limit = scenario.limit(bucket.form)
        assert bucket.batch % limit.unit == 0
        assert limit.unit <= bucket.batch <= limit.program.batch
        assert bucket.program == limit.program.resized(bucket.batch)
        assert bucket.num_samples == counts[shape_of(bucket)]
        assert bucket.cost == scenario.cost_model(bucket.program)
    check_epochs(schedule, counts)


@settings(max_examples=12, deadline=None)
@given(scenarios())
def test_no_step_is_empty_whatever_the_layout(make):
    schedule = make_mixed(make())
    num_steps = max(40, math.ceil(4 * num_bins(schedule) / schedule.num_replicas))
    for step in range(num_steps):
        assert schedule.step_counts(step).any()


@pytest.mark.parametrize(
    ("counts", "options"),
    [
        # Only the three samples beyond a multiple of four are left over.
        ({18: 387}, {"layout": Layout(batch=2), "multiple": 4, "accumulate": 2}),
        # Two samples that fill a unit of four in every other epoch.
        ({17: 2, 15: 256}, {"multiple": 4, "num_replicas": 2}),
        ({1: 7, 30: 8}, {"layout": Layout(batch=8), "num_replicas": 1}),
        # A few units and a remainder that must not have a step of its own.
        ({1: 29}, {"layout": Layout(batch=8), "num_replicas": 1}),
    ],
    ids=["remainder", "less-than-a-unit", "one-unit", "short-epoch"],
)
def test_samples_that_do_not_fill_a_unit_are_carried_over(counts, options):
    counts = {Shape(frames, 4, 4): n for frames, n in counts.items()}
    schedule = make_mixed(scenario_of(counts, **({"num_replicas": 1} | options)))
    check_epochs(schedule, counts)
    for step in range(3 * num_bins(schedule)):
        assert schedule.step_counts(step).any()


@pytest.mark.parametrize("devices", [2, 8])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_groups_are_dealt_like_single_devices(devices, accumulate):
    # With `devices` times the samples, each device runs the same patterns.
    single = make_mixed(scenario_of(COUNTS, accumulate=accumulate))
    group = make_mixed(
        scenario_of(
            {shape: devices * n for shape, n in COUNTS.items()},
            layout=Layout(batch=devices),
            accumulate=accumulate,
        )
    )
    assert [b.batch for b in group.buckets] == [
        devices * b.batch for b in single.buckets
    ]
    assert [b.cost for b in group.buckets] == [b.cost for b in single.buckets]
    assert (group.patterns, group.rest) == (single.patterns, single.rest)


def test_fewer_units_than_replicas_are_an_error():
    few = scenario_of({Shape(1, 4, 4): 31}, layout=Layout(batch=8), num_replicas=4)
    message = "31 samples for 4 replicas: expected at least 8 for each; use fewer"
    with pytest.raises(InputError, match=message):
        deal_of(few)
    enough = scenario_of({Shape(1, 4, 4): 32}, layout=Layout(batch=8), num_replicas=4)
    buckets = deal_buckets(deal_of(enough), enough)
    with pytest.raises(InputError, match=message):
        deal_buckets_again(few, buckets, budget=1e4)


@functools.cache
def planned_deal(devices: int, accumulate: int) -> tuple[Deal, tuple[Bucket, ...]]:
    scenario = scenario_of(
        COUNTS, num_replicas=4, layout=Layout(batch=devices), accumulate=accumulate
    )
    deal = deal_of(scenario)
    return deal, deal_buckets(deal, scenario)


def relative_costs(
    deal: Deal, buckets: tuple[Bucket, ...], accumulate: int
) -> np.ndarray:
    """Returns the cost of each replica-step of an epoch, relative to its budget."""
    cost = np.array([bucket.cost for bucket in buckets])
    steps = [
        np.full(p.times, np.dot(p.counts, cost)) for p in (*deal.patterns, *deal.rest)
    ]
    return np.concatenate(steps) / (deal.budget * accumulate)


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize(
    "others",
    [(8_010, 3_001, 222), (2_001, 601, 249), (40_000, 1_000, 37), (500, 4_000, 900)],
    ids=str,
)
def test_other_numbers_of_samples_are_dealt_over_the_same_programs(
    others, devices, accumulate
):
    first, programs = planned_deal(devices, accumulate)
    counts = dict(zip(COUNTS, others, strict=True))
    scenario = scenario_of(
        counts, num_replicas=4, layout=Layout(batch=devices), accumulate=accumulate
    )
    deal = deal_buckets_again(scenario, programs, first.budget)
    buckets = deal_buckets(deal, scenario)
    assert deal.budget == first.budget
    assert {b.program for b in buckets} <= {b.program for b in programs}
    assert {shape_of(b): b.num_samples for b in buckets} == counts
    costs = relative_costs(deal, buckets, accumulate)
    # All patterns except a few of the rest cost the budget; none costs more.
    assert costs.max() <= 1.002
    assert costs.mean() > 0.95
    for shape, count in counts.items():
        batch = [b.batch if shape_of(b) == shape else 0 for b in buckets]
        core = sum(p.times * np.dot(p.counts, batch) for p in deal.patterns)
        rest = sum(np.dot(p.counts, batch) for p in deal.rest)
        smallest = min(b for b in batch if b)
        assert 0 <= count - core <= rest < count - core + smallest


def test_every_sample_is_used_after_dealing_again():
    first, programs = planned_deal(8, 1)
    counts = dict(zip(COUNTS, (2_001, 601, 249), strict=True))
    scenario = scenario_of(counts, num_replicas=4, layout=Layout(batch=8))
    deal = deal_buckets_again(scenario, programs, first.budget)
    schedule = Mixed(
        buckets=deal_buckets(deal, scenario),
        patterns=deal.patterns,
        rest=deal.rest,
        seed=0,
        num_replicas=4,
    )
    check_epochs(schedule, counts)
    for step in range(num_bins(schedule)):
        assert schedule.step_counts(step).any()


def test_a_deal_may_be_made_again_for_fewer_shapes():
    planned = scenario_of(COUNTS)
    first = deal_of(planned)
    kept = dict(list(COUNTS.items())[1:])
    programs = tuple(b for b in deal_buckets(first, planned) if shape_of(b) in kept)
    scenario = scenario_of(kept)
    deal = deal_buckets_again(scenario, programs, first.budget)
    buckets = deal_buckets(deal, scenario)
    assert {shape_of(b) for b in buckets} == set(kept)
    assert {b.program for b in buckets} <= {b.program for b in programs}


@pytest.mark.parametrize("devices", [2, 8])
def test_lockstep_groups_take_units_for_each_replica(devices):
    scenario = scenario_of(COUNTS, layout=Layout(batch=devices), num_replicas=3)
    schedule = make_lockstep(scenario)
    assert [shape_of(b) for b in schedule.buckets] == list(COUNTS)
    for bucket in schedule.buckets:
        assert bucket.batch % devices == 0
        assert 3 * bucket.batch <= bucket.num_samples
        assert bucket.program.tokens_per_device <= scenario.config.max_tokens


@pytest.mark.parametrize("policy", POLICIES)
def test_a_group_takes_as_long_as_one_device_with_its_part_of_the_samples(policy):
    single, group = (
        simulate_policy(
            policy,
            scenario_of(
                {shape: devices * n for shape, n in COUNTS.items()},
                layout=Layout(batch=devices),
                num_replicas=4,
            ),
            num_steps=20,
        )
        for devices in (1, 8)
    )
    if policy != "knapformer":  # Divides single sequences among replicas.
        np.testing.assert_allclose(group.seconds, single.seconds)
        np.testing.assert_allclose(group.memory, single.memory)
    assert group.seconds.sum() == pytest.approx(single.seconds.sum())
    assert group.memory.mean() == pytest.approx(single.memory.mean())
    assert group.work == pytest.approx(single.work)
    assert (group.samples, group.tokens) == (8 * single.samples, 8 * single.tokens)


def test_the_remat_of_a_limit_prices_its_programs():
    scenario = scenario_of(COUNTS)
    cost_model = CostModel(
        laws={"none": LAW, "full": LAW.scaled(2.0)}, unit="s", source="test"
    )
    memory = TokenMemory(max_tokens=scenario.config.max_tokens, remat="full")
    scenario = dataclasses.replace(scenario, cost_model=cost_model, limit=memory.limit)
    for schedule in (make_mixed(scenario), make_lockstep(scenario)):
        for bucket in schedule.buckets:
            assert bucket.program.remat == "full"
            assert bucket.cost == pytest.approx(
                2 * float(LAW(bucket.batch, bucket.tokens))
            )
