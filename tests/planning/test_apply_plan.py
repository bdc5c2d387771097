"""Tests applying a plan file to the samples of a dataset."""

import collections
import dataclasses
from collections.abc import Callable, Mapping

import pytest

from jaxload.errors import InputError
from jaxload.planning.plan import Plan
from jaxload.planning.planner import apply_plan
from jaxload.planning.samples import Samples
from jaxload.shapes.cover import cover_exactly
from jaxload.shapes.shape import Shape

SMALL, MIDDLE, LARGE = Shape(1, 8, 8), Shape(5, 8, 8), Shape(9, 8, 8)
COUNTS = {SMALL: 640, MIDDLE: 96, LARGE: 50}
POLICIES = ["lockstep", "mixed"]


@pytest.fixture(scope="module", params=POLICIES)
def plan(request: pytest.FixtureRequest, plan_of: Callable[..., Plan]) -> Plan:
    """Returns a plan for two replicas, once for each policy."""
    return plan_of(COUNTS, num_replicas=2, policy=request.param, max_buckets=4)


def samples(counts: Mapping[Shape, int]) -> Samples:
    cover = cover_exactly(counts, max_shapes=9, min_samples=2)
    return Samples(cover=cover, dataset="fedcba9876543210", rules=None)


def epoch(plan: Plan) -> dict[Shape, collections.Counter[int]]:
    """Returns how often an epoch runs each sample of each shape."""
    schedule, seen = plan.schedule(0), collections.defaultdict(collections.Counter)
    step = 0
    while schedule.epoch(step + 1) <= 1.0:
        for replica in range(plan.num_replicas):
            for micro_batch in schedule.micro_batches(step, replica):
                shape = plan.buckets[micro_batch.bucket].shape
                seen[shape].update(micro_batch.members.tolist())
        step += 1
    return dict(seen)


def test_equal_numbers_of_samples_give_the_same_deal(plan: Plan):
    found = apply_plan(plan, samples(COUNTS))
    assert found.buckets == plan.buckets
    assert found.patterns == plan.patterns
    assert found.rest == plan.rest
    assert bool(found.patterns or found.rest) == (plan.config.policy == "mixed")
    assert found.left_out == ()
    assert found.dataset == "fedcba9876543210"
    assert (found.budget, found.cost_model) == (plan.budget, plan.cost_model)


def test_equal_numbers_of_samples_are_not_dealt_again(plan: Plan):
    other = dataclasses.replace(plan, patterns=plan.patterns[::-1])
    assert apply_plan(other, samples(COUNTS)).patterns == other.patterns
    if plan.config.policy == "mixed":
        assert other.patterns != plan.patterns


def test_other_numbers_run_the_same_programs_and_every_sample(plan: Plan):
    counts = {SMALL: 333, MIDDLE: 201, LARGE: 44}
    found = apply_plan(plan, samples(counts))
    programs = {bucket.program for bucket in plan.buckets}
    assert {bucket.program for bucket in found.buckets} <= programs
    assert {b.shape: b.num_samples for b in found.buckets} == counts
    assert found.left_out == ()
    for shape, seen in epoch(found).items():
        assert set(seen.values()) == {1}
        batches = [b.batch for b in found.buckets if b.shape == shape]
        # Less than a micro-batch of each replica is carried over.
        missing = counts[shape] - len(seen)
        assert 0 <= missing < max(batches) * plan.num_replicas
    if plan.config.policy == "mixed":
        assert found.patterns != plan.patterns


def test_shapes_that_the_plan_lacks_are_counted(plan: Plan):
    other = {Shape(2, 8, 8): 30, Shape(3, 8, 8): 4}
    found = apply_plan(plan, samples(COUNTS | other))
    assert found.buckets == plan.buckets
    (left_out,) = found.left_out
    assert left_out.reason == "shape that the plan does not have"
    assert (left_out.count, left_out.examples) == (34, ("2x8x8 (30)", "3x8x8 (4)"))


@pytest.mark.parametrize("policy", POLICIES)
def test_shapes_with_too_few_samples_are_counted_once(
    plan_of: Callable[..., Plan], policy: str
):
    plan = plan_of(
        COUNTS, num_replicas=2, policy=policy, max_buckets=4, batch_multiple=4
    )
    num_batches = sum(bucket.shape == SMALL for bucket in plan.buckets)
    assert (num_batches > 1) == (policy == "mixed")
    found = apply_plan(plan, samples(COUNTS | {SMALL: 3}))
    assert SMALL not in {bucket.shape for bucket in found.buckets}
    (left_out,) = found.left_out
    assert left_out.reason.startswith("fewer samples than the smallest")
    assert (left_out.count, left_out.examples) == (3, ("1x8x8 (3)",))


def test_a_shape_that_lacks_one_sample_gets_a_smaller_batch(
    plan_of: Callable[..., Plan],
):
    plan = plan_of(COUNTS, num_replicas=2, max_buckets=4)
    (planned,) = (b for b in plan.buckets if b.shape == SMALL)
    count = 2 * planned.batch - 1
    found = apply_plan(plan, samples(COUNTS | {SMALL: count}))
    assert found.left_out == ()
    (bucket,) = (b for b in found.buckets if b.shape == SMALL)
    assert (bucket.batch, bucket.num_samples) == (planned.batch - 1, count)
    assert bucket.cost == plan.cost_model(bucket.program) < planned.cost
    assert sum(epoch(found)[SMALL].values()) == 2 * bucket.batch


def test_too_few_samples_for_the_larger_batch_run_in_the_smaller(
    plan_of: Callable[..., Plan],
):
    plan = plan_of(COUNTS, num_replicas=2, policy="mixed", max_buckets=4)
    batches = collections.defaultdict(set)
    for bucket in plan.buckets:
        batches[bucket.shape].add(bucket.batch)
    shape = next(shape for shape, sizes in batches.items() if len(sizes) > 1)
    few = max(batches[shape]) - 1
    found = apply_plan(plan, samples(COUNTS | {shape: few}))
    assert found.left_out == ()
    assert {b.batch for b in found.buckets if b.shape == shape} <= batches[shape]
    assert few - len(epoch(found)[shape]) < min(batches[shape])


def test_a_dataset_without_planned_shapes_is_one_line(plan: Plan):
    message = (
        "the plan has none of the dataset's shapes with enough samples: the plan has "
        r"1x8x8@.*, the dataset has 2x8x8 \(30\); plan again for this dataset"
    )
    with pytest.raises(InputError, match=message) as error:
        apply_plan(plan, samples({Shape(2, 8, 8): 30}))
    assert "\n" not in str(error.value)
