"""Tests of jaxload.balance.mixed."""

import collections
import functools
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxload.balance.bucket import Bucket
from jaxload.balance.deal import make_deal
from jaxload.balance.form import Grid
from jaxload.balance.mixed import Mixed, _stride
from jaxload.balance.pattern import Pattern
from jaxload.balance.program import Program
from jaxload.balance.supply import Supply
from tests.balance.grid_samples import grid_bucket, shape_of


def bucket(shape: int, batch: int, num_samples: int) -> Bucket:
    program = Program(form=Grid(shape + 1, 2, 2), batch=batch)
    return grid_bucket(program, num_samples)


def dealt(supplies, *, num_replicas=1, accumulate=1, seed=0) -> Mixed:
    """Returns the schedule of a deal of supplies (samples, cost, largest batch)."""
    deal = make_deal(
        [Supply(num_samples=n, cost=c, max_batch=b) for n, c, b in supplies],
        fixed=0.0,
        accumulate=accumulate,
        num_replicas=num_replicas,
        max_programs=2 * len(supplies),
    )
    buckets = [bucket(p.form, p.batch, supplies[p.form][0]) for p in deal.options]
    return Mixed(
        buckets=tuple(buckets),
        patterns=deal.patterns,
        rest=deal.rest,
        seed=seed,
        num_replicas=num_replicas,
    )


def by_hand(*, num_replicas=1, seed=0, times=(20, 9)) -> Mixed:
    """Builds a schedule of two shapes, one with two batch sizes, and a rest of both."""
    first, second = times
    # Samples that the patterns take, plus 4 of one shape and 3 of the other.
    one, other = 7 * first + 3 * second + 4, 2 * second + 3
    return Mixed(
        buckets=(bucket(0, 2, one), bucket(0, 3, one), bucket(1, 2, other)),
        patterns=(
            Pattern(counts=(2, 1, 0), times=first),
            Pattern(counts=(0, 1, 1), times=second),
        ),
        rest=(Pattern(counts=(1, 0, 1), times=1), Pattern(counts=(1, 0, 1), times=1)),
        seed=seed,
        num_replicas=num_replicas,
    )


@st.composite
def schedules(draw) -> Callable[[], Mixed]:
    """Draws functions that make a schedule, so that no deal is made while drawing."""
    num_replicas = draw(st.integers(1, 5))
    seed = draw(st.integers(0, 2**31))
    if draw(st.booleans()):
        times = draw(st.tuples(st.integers(5, 30), st.integers(5, 30)))
        return functools.partial(
            by_hand, num_replicas=num_replicas, seed=seed, times=times
        )
    supplies = [
        (
            draw(st.integers(20, 150)),
            draw(st.floats(0.3, 3.0)),
            draw(st.integers(1, 8)),
        )
        for _ in range(draw(st.integers(1, 3)))
    ]
    return functools.partial(
        dealt,
        supplies,
        num_replicas=num_replicas,
        accumulate=draw(st.integers(1, 2)),
        seed=seed,
    )


def num_bins(schedule: Mixed) -> int:
    return sum(p.times for p in (*schedule.patterns, *schedule.rest))


def replica_steps(schedule: Mixed, first: int, last: int):
    """Yields the micro-batches of some replica-steps, counted from the run's start."""
    for index in range(first, last):
        yield schedule.micro_batches(*divmod(index, schedule.num_replicas))


@settings(max_examples=10, deadline=None)
@given(schedules())
def test_each_sample_once_per_epoch_up_to_a_carried_remainder(make):
    schedule = make()
    size = num_bins(schedule)
    counts = collections.Counter()
    for epoch in range(3):
        for micro_batches in replica_steps(schedule, epoch * size, (epoch + 1) * size):
            for m in micro_batches:
                ran = schedule.buckets[m.bucket]
                assert len(m.members) == ran.batch
                counts.update((shape_of(ran), int(i)) for i in m.members)
        carried = schedule.carried(epoch)
        for shape in {shape_of(b) for b in schedule.buckets}:
            of_shape = [b for b in schedule.buckets if shape_of(b) == shape]
            num_samples = of_shape[0].num_samples
            seen = np.array([counts[shape, i] for i in range(num_samples)])
            waiting = (epoch + 1) * num_samples - seen.sum()
            assert waiting == carried[str(shape)]
            assert 0 <= waiting < min(b.batch for b in of_shape)
            # Carried samples are missing only from the last pass.
            assert set(seen.tolist()) <= {epoch, epoch + 1}


@settings(max_examples=6, deadline=None)
@given(schedules(), st.randoms(use_true_random=False))
def test_steps_may_be_computed_in_any_order(make, random):
    schedule = make()
    pairs = [
        (step, replica)
        for step in range(12)
        for replica in range(schedule.num_replicas)
    ]
    in_order = {pair: schedule.micro_batches(*pair) for pair in pairs}
    # A second instance, as on another host, with empty caches.
    other = Mixed(**{name: getattr(schedule, name) for name in FIELDS})
    for pair in random.sample(pairs, len(pairs)):
        again = other.micro_batches(*pair)
        assert [m.bucket for m in again] == [m.bucket for m in in_order[pair]]
        for a, b in zip(again, in_order[pair], strict=True):
            np.testing.assert_array_equal(a.members, b.members)


FIELDS = ("buckets", "patterns", "rest", "seed", "num_replicas")


@settings(max_examples=10, deadline=None)
@given(schedules(), st.integers(0, 10**6))
def test_counts_of_a_step_are_those_of_its_micro_batches(make, first):
    schedule = make()
    for step in (*range(20), first):
        counts = schedule.step_counts(step)
        assert counts.shape == (schedule.num_replicas, len(schedule.buckets))
        for replica, row in enumerate(counts.tolist()):
            ran = [m.bucket for m in schedule.micro_batches(step, replica)]
            assert row == [ran.count(b) for b in range(len(schedule.buckets))]


@settings(max_examples=6, deadline=None)
@given(schedules())
def test_no_step_exceeds_max_micro_batches(make):
    schedule = make()
    num_steps = 3 * num_bins(schedule) // schedule.num_replicas
    for step in range(num_steps):
        most = schedule.step_counts(step).sum(axis=1).max()
        assert most <= schedule.max_micro_batches


@settings(max_examples=10, deadline=None)
@given(schedules())
def test_no_step_is_empty(make):
    schedule = make()
    for step in range(40):
        assert schedule.step_counts(step).any()


def test_no_step_is_empty_if_batches_are_not_full():
    # Five samples in batches of up to four: the last is full only in some epochs.
    schedule = dealt([(5, 1.0, 4)])
    assert all(schedule.step_counts(step).any() for step in range(20))


def runs_of(schedule: Mixed, count: int) -> list[list[tuple[int, list[int]]]]:
    return [
        [(m.bucket, m.members.tolist()) for m in micro_batches]
        for micro_batches in replica_steps(schedule, 0, count)
    ]


def test_the_list_of_replica_steps_does_not_depend_on_the_replicas():
    assert (
        runs_of(by_hand(num_replicas=1), 70)
        == runs_of(by_hand(num_replicas=4), 70)
        == runs_of(by_hand(num_replicas=64), 70)
    )


@pytest.mark.parametrize("num_replicas", [7, 31, 100], ids=str)
def test_a_step_may_span_several_epochs(num_replicas):
    # An epoch of 31 replica-steps ends within a step, or a step has several epochs.
    schedule = by_hand(num_replicas=num_replicas)
    assert num_bins(schedule) == 31
    assert schedule.epoch(31) == num_replicas
    ran = np.sum([schedule.step_counts(step) for step in range(31)], axis=(0, 1))
    patterns = (*schedule.patterns, *schedule.rest)
    expected = np.sum([np.array(p.counts) * p.times for p in patterns], axis=0)
    # Micro-batches of the rest are all full for the first shape, 3 in 4 for the other.
    carried = sum(schedule.carried(num_replicas - 1).values())
    assert ran[:2].tolist() == (num_replicas * expected[:2]).tolist()
    assert ran[2] * 2 + carried == num_replicas * schedule.buckets[2].num_samples


@pytest.mark.parametrize("other", [{"seed": 1}, {"seed": 2}], ids=str)
def test_seeds_give_different_orders(other):
    assert runs_of(by_hand(), 31) == runs_of(by_hand(), 31)
    assert runs_of(by_hand(), 31) != runs_of(by_hand(**other), 31)


def test_each_epoch_has_another_order():
    schedule = by_hand()
    runs = runs_of(schedule, 93)
    epochs = [runs[:31], runs[31:62], runs[62:]]
    patterns = [[[b for b, _ in run] for run in epoch] for epoch in epochs]
    assert patterns[0] != patterns[1] != patterns[2] != patterns[0]
    # Samples are also combined into other micro-batches.
    groups = [
        {frozenset(m) for run in epoch for b, m in run if b == 1} for epoch in epochs
    ]
    assert len(groups[0] & groups[1]) < 3


def test_every_window_has_the_mixture_of_the_epoch():
    schedule = by_hand(num_replicas=1, times=(1_300, 700))
    size = num_bins(schedule)
    counts = np.concatenate([schedule.step_counts(step) for step in range(size)])
    for bucket_counts in counts.T:
        share = bucket_counts.sum() / size
        for window in (8, 30, 200):
            ran = np.convolve(bucket_counts, np.ones(window), mode="valid")
            # With strides of the golden ratio, counts are off by about log(window) at
            # each border between patterns; in a random draw, by sqrt(window).
            most = bucket_counts.max()
            limit = most * (1 + np.log2(window) / 2)
            assert np.abs(ran - window * share).max() <= limit


def test_ten_billion_samples_need_no_table():
    schedule = dealt(
        [(10**10, 0.1, 16), (3 * 10**9 + 7, 1.3, 4)], num_replicas=512, accumulate=2
    )
    size = len(pickle.dumps(schedule))
    for step in (0, 10**7, 10**9):
        counts = schedule.step_counts(step)
        for replica in (0, 511):
            micro_batches = schedule.micro_batches(step, replica)
            assert len(micro_batches) == counts[replica].sum() > 0
            for m in micro_batches:
                num_samples = schedule.buckets[m.bucket].num_samples
                assert 0 <= m.members.min() <= m.members.max() < num_samples
                assert len(set(m.members.tolist())) == len(m.members)
    # Only the tables of the deal are cached, and nothing per step.
    assert len(pickle.dumps(schedule)) < size + 3_000 < 10_000


@given(st.integers(1, 10**12))
def test_a_stride_visits_every_position(size):
    assert np.gcd(_stride(size), size) == 1
    if size > 1_000:
        assert _stride(size) / size == pytest.approx(0.618, abs=0.05)
