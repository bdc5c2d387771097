"""Tests applying a plan file to the samples of a dataset."""

import collections
import dataclasses
from collections.abc import Callable, Mapping

import pytest

from jaxload.errors import InputError
from jaxload.planning.plan import Plan
from jaxload.planning.planner import apply_plan
from jaxload.planning.samples import Samples
from jaxload.shapes.shape import Shape
from tests.balance.grid_samples import shape_of

SMALL, MIDDLE, LARGE = Shape(1, 8, 8), Shape(5, 8, 8), Shape(9, 8, 8)
COUNTS = {SMALL: 640, MIDDLE: 96, LARGE: 50}
POLICIES = ["lockstep", "mixed"]


@pytest.fixture(scope="module", params=POLICIES)
def plan(request: pytest.FixtureRequest, plan_of: Callable[..., Plan]) -> Plan:
    """Returns a plan for two replicas, once for each policy."""
    return plan_of(COUNTS, num_replicas=2, policy=request.param, max_buckets=4)


def samples(counts: Mapping[Shape, int]) -> Samples:
    return Samples.of_counts(counts, may_cut=False, dataset="fedcba9876543210")


def epoch(plan: Plan) -> dict[Shape, collections.Counter[int]]:
    """Returns how often an epoch runs each sample of each shape."""
    schedule, seen = plan.schedule(0), collections.defaultdict(collections.Counter)
    step = 0
    while schedule.epoch(step + 1) <= 1.0:
        for replica in range(plan.num_replicas):
            for micro_batch in schedule.micro_batches(step, replica):
                shape = shape_of(plan.buckets[micro_batch.bucket])
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
    assert {shape_of(b): b.num_samples for b in found.buckets} == counts
    assert found.left_out == ()
    for shape, seen in epoch(found).items():
        assert set(seen.values()) == {1}
        batches = [b.batch for b in found.buckets if shape_of(b) == shape]
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
    assert left_out.reason == "shape that the plan has no program for"
    assert (left_out.count, left_out.examples) == (34, ("2x8x8 (30)", "3x8x8 (4)"))


@pytest.mark.parametrize("policy", POLICIES)
def test_shapes_with_too_few_samples_are_counted_once(
    plan_of: Callable[..., Plan], policy: str
):
    plan = plan_of(
        COUNTS, num_replicas=2, policy=policy, max_buckets=4, batch_multiple=4
    )
    num_batches = sum(shape_of(bucket) == SMALL for bucket in plan.buckets)
    assert (num_batches > 1) == (policy == "mixed")
    found = apply_plan(plan, samples(COUNTS | {SMALL: 3}))
    assert SMALL not in {shape_of(bucket) for bucket in found.buckets}
    (left_out,) = found.left_out
    assert left_out.reason.startswith("fewer samples than the smallest")
    assert (left_out.count, left_out.examples) == (3, ("1x8x8 (3)",))


def test_a_shape_that_lacks_one_sample_gets_a_smaller_batch(
    plan_of: Callable[..., Plan],
):
    plan = plan_of(COUNTS, num_replicas=2, max_buckets=4)
    (planned,) = (b for b in plan.buckets if shape_of(b) == SMALL)
    count = 2 * planned.batch - 1
    found = apply_plan(plan, samples(COUNTS | {SMALL: count}))
    assert found.left_out == ()
    (bucket,) = (b for b in found.buckets if shape_of(b) == SMALL)
    assert (bucket.batch, bucket.num_samples) == (planned.batch - 1, count)
    assert bucket.cost == plan.cost_model(bucket.program) < planned.cost
    assert sum(epoch(found)[SMALL].values()) == 2 * bucket.batch


def test_too_few_samples_for_the_larger_batch_run_in_the_smaller(
    plan_of: Callable[..., Plan],
):
    plan = plan_of(COUNTS, num_replicas=2, policy="mixed", max_buckets=4)
    batches = collections.defaultdict(set)
    for bucket in plan.buckets:
        batches[shape_of(bucket)].add(bucket.batch)
    shape = next(shape for shape, sizes in batches.items() if len(sizes) > 1)
    few = max(batches[shape]) - 1
    found = apply_plan(plan, samples(COUNTS | {shape: few}))
    assert found.left_out == ()
    assert {b.batch for b in found.buckets if shape_of(b) == shape} <= batches[shape]
    assert few - len(epoch(found)[shape]) < min(batches[shape])


def test_a_dataset_without_planned_shapes_is_one_line(plan: Plan):
    message = (
        "the plan has none of the dataset's shapes with enough samples: the plan has "
        r"1x8x8@.*, the dataset has 2x8x8 \(30\); plan again for this dataset"
    )
    with pytest.raises(InputError, match=message) as error:
        apply_plan(plan, samples({Shape(2, 8, 8): 30}))
    assert "\n" not in str(error.value)


# --- By length ---


def by_length(plan_of: Callable[..., Plan], counts: Mapping[Shape, int]) -> Plan:
    return plan_of(counts, num_replicas=2, form="length", max_buckets=4)


def test_a_length_with_too_few_samples_is_padded_to_the_next(
    plan_of: Callable[..., Plan],
):
    plan = by_length(plan_of, COUNTS)
    assert [b.tokens for b in plan.buckets] == [16, 80, 144]
    found = apply_plan(plan, samples(COUNTS | {MIDDLE: 1}))
    assert {b.tokens: b.num_samples for b in found.buckets} == {16: 640, 144: 51}
    assert found.left_out == ()
    assert found.buckets[-1].lengths.shortest == 80
    assert found.kept_content == pytest.approx(1.0)


def test_samples_of_the_longest_length_are_cut_if_they_are_too_few(
    plan_of: Callable[..., Plan],
):
    plan = by_length(plan_of, COUNTS)
    few = Samples.of_counts(COUNTS | {LARGE: 1}, may_cut=True, dataset="x")
    found = apply_plan(plan, few)
    assert {b.tokens: b.num_samples for b in found.buckets} == {16: 640, 80: 97}
    assert (found.num_cut, found.left_out) == (1, ())
    own = 640 * 16 + 96 * 80 + 144
    assert found.kept_content == pytest.approx(1 - 64 / own)


@pytest.mark.parametrize("may_cut", [False, True])
def test_longer_samples_than_planned_are_cut_or_left_out(
    plan_of: Callable[..., Plan], may_cut: bool
):
    plan = by_length(plan_of, COUNTS)
    longer = COUNTS | {Shape(18, 8, 8): 20}
    given = Samples.of_counts(longer, may_cut=may_cut, dataset="x")
    found = apply_plan(plan, given)
    own = sum(n * shape.tokens for shape, n in longer.items())
    lost = 20 * (288 - 144 if may_cut else 288)
    assert found.kept_content == pytest.approx(1 - lost / own)
    assert found.num_cut == (20 if may_cut else 0)
    reasons = [(left.reason, left.count) for left in found.left_out]
    assert reasons == ([] if may_cut else [("longer than any program of the plan", 20)])


def test_rows_take_no_shape_beyond_the_rotary_tables(plan_of: Callable[..., Plan]):
    wide = {Shape(1, 64, 96): 50}
    plan = plan_of(wide, num_replicas=2, form="length", max_tokens=4_096)
    with pytest.raises(InputError, match="1224x2x2: expected at most 1024") as error:
        apply_plan(plan, samples(wide | {Shape(1_224, 2, 2): 9}))
    assert "\n" not in str(error.value)
