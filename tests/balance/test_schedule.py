"""Tests of jaxload.balance.schedule."""

import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxload.balance.form import Grid
from jaxload.balance.mixed import Mixed
from jaxload.balance.pattern import Pattern
from jaxload.balance.program import Layout, Program
from jaxload.balance.schedule import Lockstep, Schedule
from jaxload.balance.stream import stream_members
from jaxload.errors import InputError
from tests.balance.grid_samples import grid_bucket


def make_schedule(sizes, *, num_replicas=1, accumulate=1, seed=0) -> Lockstep:
    buckets = tuple(
        grid_bucket(Program(form=Grid(i + 1, 2, 2), batch=batch), num_samples)
        for i, (batch, num_samples) in enumerate(sizes)
    )
    return Lockstep(
        buckets=buckets, seed=seed, num_replicas=num_replicas, accumulate=accumulate
    )


@st.composite
def schedule_options(draw) -> dict:
    num_replicas = draw(st.integers(1, 4))
    sizes = []
    for _ in range(draw(st.integers(1, 4))):
        batch = draw(st.integers(1, 5))
        sizes.append((batch, draw(st.integers(batch * num_replicas, 60))))
    return {
        "sizes": sizes,
        "num_replicas": num_replicas,
        "accumulate": draw(st.integers(1, 3)),
        "seed": draw(st.integers(0, 2**31)),
    }


def epoch_members(schedule: Lockstep, start: int, stop: int):
    """Counts how often each (bucket, member) is run in some micro-steps."""
    counts = collections.Counter()
    for micro_step in range(start, stop):
        for replica in range(schedule.num_replicas):
            micro = schedule.micro_batch(micro_step, replica)
            counts.update((micro.bucket, int(m)) for m in micro.members)
    return counts


@settings(max_examples=8, deadline=None)
@given(schedule_options())
def test_each_sample_once_per_epoch_up_to_a_carried_remainder(options):
    num_epochs = 3
    schedule = make_schedule(**(options | {"accumulate": 1}))
    steps = next(step for step in range(10_000) if schedule.epoch(step) >= num_epochs)
    counts = epoch_members(schedule, 0, steps)
    for index, bucket in enumerate(schedule.buckets):
        seen = np.array([counts[index, m] for m in range(bucket.num_samples)])
        group = bucket.batch * schedule.num_replicas
        missing = num_epochs * bucket.num_samples - seen.sum()
        assert 0 <= missing < group
        # Carried samples are missing only from the last pass.
        assert set(seen.tolist()) <= {num_epochs - 1, num_epochs}


@settings(max_examples=8, deadline=None)
@given(schedule_options())
def test_agrees_with_a_stateful_simulation(options):
    """Compares with a simulation that keeps streams and epochs as explicit state."""
    schedule = make_schedule(**(options | {"accumulate": 1}))
    held = [0] * len(
        schedule.buckets
    )  # Samples of each stream that no round has taken yet.
    used = [0] * len(schedule.buckets)  # Rounds of each stream that have run.
    step = 0
    for _ in range(3):
        expected: list[tuple[int, tuple[int, ...]]] = []
        for index, bucket in enumerate(schedule.buckets):
            group = bucket.batch * schedule.num_replicas
            held[index] += bucket.num_samples
            while held[index] >= group:
                held[index] -= group
                first = used[index] * group
                members = stream_members(
                    first,
                    group,
                    num_samples=bucket.num_samples,
                    seed=schedule.seed,
                    stream=index,
                ).tolist()
                used[index] += 1
                expected.append((index, tuple(members)))
        got = []
        for _ in expected:
            micro = [
                schedule.micro_batch(step, replica)
                for replica in range(schedule.num_replicas)
            ]
            members = np.concatenate([m.members for m in micro])
            got.append((micro[0].bucket, tuple(members.tolist())))
            step += 1
        assert sorted(got) == sorted(expected)


@settings(max_examples=25, deadline=None)
@given(schedule_options(), st.integers(0, 100))
def test_lockstep_every_replica_runs_the_same_bucket(options, step):
    schedule = make_schedule(**options)
    for replica in range(schedule.num_replicas):
        micro = schedule.micro_batches(step, replica)
        assert tuple(m.bucket for m in micro) == schedule.step_buckets(step)
        for m in micro:
            assert len(m.members) == schedule.buckets[m.bucket].batch


@settings(max_examples=25, deadline=None)
@given(schedule_options(), st.integers(0, 100))
def test_counts_of_a_step_are_those_of_its_micro_batches(options, step):
    schedule = make_schedule(**options)
    counts = schedule.step_counts(step)
    assert counts.shape == (schedule.num_replicas, len(schedule.buckets))
    for replica, row in enumerate(counts.tolist()):
        ran = [m.bucket for m in schedule.micro_batches(step, replica)]
        assert row == [ran.count(b) for b in range(len(schedule.buckets))]


def test_global_batches_do_not_depend_on_the_number_of_replicas():
    # Two replicas with batches of 3 run the samples of one replica with batches of 6.
    two = make_schedule([(3, 40), (1, 21)], num_replicas=2)
    one = make_schedule([(6, 40), (2, 21)], num_replicas=1)
    for step in range(40):
        global_members = np.concatenate(
            [two.micro_batch(step, replica).members for replica in (0, 1)]
        )
        np.testing.assert_array_equal(global_members, one.micro_batch(step, 0).members)


def test_epochs_are_shuffled_differently():
    schedule = make_schedule([(1, 50)])
    epochs = [
        [int(schedule.micro_batch(50 * e + i, 0).members[0]) for i in range(50)]
        for e in range(3)
    ]
    assert sorted(epochs[0]) == list(range(50))
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] != sorted(epochs[0])


def test_batches_are_composed_anew_in_every_epoch():
    schedule = make_schedule([(25, 50)])
    groups = [frozenset(schedule.micro_batch(i, 0).members.tolist()) for i in range(4)]
    assert groups[0] | groups[1] == groups[2] | groups[3] == set(range(50))
    assert {groups[0], groups[1]} != {groups[2], groups[3]}


def test_seeds_give_different_orders():
    first, second = make_schedule([(4, 99)], seed=1), make_schedule([(4, 99)], seed=2)
    assert not np.array_equal(
        first.micro_batch(0, 0).members, second.micro_batch(0, 0).members
    )


def test_buckets_are_mixed_through_an_epoch():
    schedule = make_schedule([(1, 500), (1, 500)])
    first_half = [schedule.step_buckets(step)[0] for step in range(500)]
    assert 200 < sum(first_half) < 300


def test_epoch_of_a_step():
    schedule = make_schedule([(2, 10), (5, 10)], accumulate=7)
    assert [schedule.epoch(step) for step in range(3)] == [0.0, 1.0, 2.0]


def test_a_late_step_of_a_huge_dataset_is_cheap_to_compute():
    schedule = make_schedule([(8, 10**10), (2, 3 * 10**9)], num_replicas=64)
    micro = schedule.micro_batch(10**9, 63)
    assert len(micro.members) == schedule.buckets[micro.bucket].batch
    assert micro.members.max() < schedule.buckets[micro.bucket].num_samples


def test_a_bucket_that_cannot_fill_its_replicas_is_an_error():
    with pytest.raises(InputError, match=r"has 5 samples: expected at least 6"):
        make_schedule([(3, 5)], num_replicas=2)


def make_mixed(*, num_replicas: int, long_rest: bool) -> Mixed:
    """Builds a schedule of two shapes on groups of two devices."""
    sizes = [(0, 2, 160), (0, 4, 160), (1, 2, 61)]
    buckets = tuple(
        grid_bucket(
            Program(form=Grid(shape + 1, 2, 2), batch=batch, layout=Layout(batch=2)),
            num_samples,
        )
        for shape, batch, num_samples in sizes
    )
    # The patterns leave 8 samples of one shape and 3 of the other. The 3 samples fill
    # one micro-batch of 2, or two in every other epoch.
    rest = [(4, 0, 2)] if long_rest else [(2, 0, 1), (2, 0, 1)]
    return Mixed(
        buckets=buckets,
        patterns=(
            Pattern(counts=(2, 1, 1), times=9),
            Pattern(counts=(0, 1, 1), times=20),
        ),
        rest=tuple(Pattern(counts=counts, times=1) for counts in rest),
        seed=3,
        num_replicas=num_replicas,
    )


SCHEDULES = [
    pytest.param(make_schedule([(2, 50), (3, 41)], num_replicas=3), id="lockstep"),
    pytest.param(
        make_schedule([(2, 50), (3, 41)], num_replicas=2, accumulate=4),
        id="lockstep-accumulate",
    ),
    pytest.param(make_mixed(num_replicas=1, long_rest=False), id="mixed-one"),
    pytest.param(make_mixed(num_replicas=4, long_rest=False), id="mixed"),
    pytest.param(make_mixed(num_replicas=4, long_rest=True), id="mixed-long-rest"),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_both_policies_give_a_schedule(schedule: Schedule):
    assert isinstance(schedule, Schedule)
    assert schedule.programs == tuple(b.program for b in schedule.buckets)
    assert len(set(schedule.programs)) == len(schedule.buckets)
    assert schedule.epoch(0) == 0.0
    assert not isinstance(schedule.buckets, Schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_max_micro_batches_is_the_largest_number_of_any_step(
    schedule: Schedule,
):
    num_steps = next(step for step in range(10_000) if schedule.epoch(step) >= 4)
    counts = np.array(
        [
            [
                len(schedule.micro_batches(step, replica))
                for replica in range(schedule.num_replicas)
            ]
            for step in range(num_steps)
        ]
    )
    # Some replica-step of four epochs reaches the bound.
    assert counts.max() == schedule.max_micro_batches


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_counts_of_a_schedule_are_those_of_its_micro_batches(schedule: Schedule):
    for step in (*range(60), 10**6):
        counts = schedule.step_counts(step)
        assert counts.shape == (schedule.num_replicas, len(schedule.buckets))
        for replica, row in enumerate(counts.tolist()):
            micro_batches = schedule.micro_batches(step, replica)
            ran = collections.Counter(m.bucket for m in micro_batches)
            assert row == [ran[b] for b in range(len(schedule.buckets))]
            for m in micro_batches:
                assert len(m.members) == schedule.programs[m.bucket].batch
