"""Tests of jaxload.balance.step_samples."""

import numpy as np
import pytest

from jaxload.balance import step_samples
from jaxload.balance.bucket import Bucket
from jaxload.balance.cost import CostLaw, CostModel
from jaxload.balance.form import Length
from jaxload.balance.program import Program
from jaxload.balance.sample_class import SampleClass
from jaxload.balance.schedule import Lockstep
from jaxload.balance.step_samples import StepSamples, draw_at_random, from_schedule
from jaxload.shapes.shape import Shape

SHORT = SampleClass.of(Length(20), {Shape(1, 4, 8): 300, Shape(5, 4, 4): 100})
LONG = SampleClass.of(Length(64), {Shape(7, 4, 8): 60, Shape(8, 4, 8): 140})
LAW = CostLaw(fixed=7.0, per_sample=3.0, per_token=1.0, per_token_squared=0.1)
NUM_STEPS = 40


def bucket_of(samples: SampleClass, batch: int) -> Bucket:
    return Bucket(
        program=Program(form=samples.form, batch=batch),
        num_samples=samples.num_samples,
        lengths=samples.lengths,
        cost=1.0,
    )


BUCKETS = (bucket_of(SHORT, 6), bucket_of(LONG, 2))
SCHEDULE = Lockstep(buckets=BUCKETS, seed=3, num_replicas=2, accumulate=3)


def read() -> StepSamples:
    return from_schedule(
        SCHEDULE, [LONG, SHORT], num_steps=NUM_STEPS, seed=0, on_step=lambda: None
    )


def test_samples_are_those_of_the_schedule():
    found, classes = read(), (SHORT, LONG)
    seconds, work, distinct = np.zeros((NUM_STEPS, 2)), 0.0, []
    for step in range(NUM_STEPS):
        shapes = set()
        for replica in range(2):
            for micro_batch in SCHEDULE.micro_batches(step, replica):
                samples = classes[micro_batch.bucket]
                of_member = np.repeat(range(len(samples.shapes)), samples.counts)
                ran = [samples.shapes[of_member[m]] for m in micro_batch.members]
                shapes.update(ran)
                row = samples.form.tokens
                seconds[step, replica] += LAW.fixed + sum(
                    float(LAW.sample(row, shape.tokens)) for shape in ran
                )
                work += sum(float(LAW.sample(shape.tokens)) for shape in ran)
        distinct.append(len(shapes))
    model = CostModel(laws={"none": LAW}, unit="s", source="test", skips_padding=True)
    np.testing.assert_allclose(found.seconds(model), seconds)
    assert found.work(model) == pytest.approx(work)
    assert found.distinct_shapes() == pytest.approx(np.mean(distinct))
    # Without lengths, all rows of a program cost the same.
    padded = CostModel.of(LAW, unit="s", source="test")
    cost = [padded(bucket.program) for bucket in BUCKETS]
    np.testing.assert_allclose(found.seconds(padded), found.counts @ cost)


def test_samples_are_drawn_if_there_are_many(monkeypatch: pytest.MonkeyPatch):
    exact = read()
    monkeypatch.setattr(step_samples, "_MAX_LOOKED_UP", 0)
    drawn = read()
    np.testing.assert_array_equal(drawn.counts, exact.counts)
    assert not np.array_equal(drawn.tokens, exact.tokens)
    for one, other in zip(drawn.samples, exact.samples, strict=True):
        assert one.sum() == other.sum()
        shares = one.sum(axis=0) / one.sum(), other.sum(axis=0) / other.sum()
        np.testing.assert_allclose(*shares, atol=0.1)
    np.testing.assert_array_equal(read().tokens, drawn.tokens)


def test_random_draws_have_the_samples_of_their_micro_batches():
    options = {"num_steps": 50, "num_replicas": 3, "num_micro_batches": 2, "seed": 1}
    found = draw_at_random(BUCKETS, [SHORT, LONG], **options)
    assert found.counts.shape == (50, 3, 2)
    assert (found.counts.sum(axis=2) == 2).all()
    for i, (bucket, held) in enumerate(zip(BUCKETS, found.samples, strict=True)):
        per_step = found.counts[..., i].sum(axis=1) * bucket.batch
        np.testing.assert_array_equal(held.sum(axis=1), per_step)
        tokens = held @ found.classes[i].tokens
        np.testing.assert_array_equal(found.tokens[..., i].sum(axis=1), tokens)
