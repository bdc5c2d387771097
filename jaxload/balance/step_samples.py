"""Micro-batches of some steps, and the samples in them, drawn or from a schedule."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from jaxload.balance.bucket import Bucket
from jaxload.balance.cost import CostModel
from jaxload.balance.form import Form
from jaxload.balance.sample_class import SampleClass
from jaxload.balance.schedule import Schedule

_MAX_LOOKED_UP = 1_000_000  # Samples that are looked up, which takes some seconds.


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepSamples:
    """Micro-batches of some steps, with their samples counted by shape."""

    buckets: tuple[Bucket, ...]
    classes: tuple[SampleClass, ...]
    """Samples of each of the `buckets`; buckets of one form have the same."""

    counts: np.ndarray
    """Number of micro-batches, [steps, replicas, buckets]."""

    tokens: np.ndarray
    """Number of tokens without padding, [steps, replicas, buckets]."""

    samples: tuple[np.ndarray, ...]
    """For each bucket, the number of samples of each shape, [steps, shapes]."""

    def seconds(self, cost_model: CostModel) -> np.ndarray:
        """Returns the cost of each step, [steps, replicas]."""
        total = np.zeros(self.counts.shape[:2])
        for i, bucket in enumerate(self.buckets):
            # The cost is linear in the lengths, so their mean stands for all rows.
            count = self.counts[..., i]
            mean = self.tokens[..., i] / np.maximum(count * bucket.batch, 1)
            total += count * cost_model.of_rows(bucket.program, mean)
        return total

    def work(self, cost_model: CostModel) -> float:
        """Returns the cost of all samples, without padding and fixed costs."""
        total = 0.0
        for held, bucket, samples in zip(
            self.samples, self.buckets, self.classes, strict=True
        ):
            own = cost_model.own(bucket.program, samples.tokens)
            total += float(held.sum(axis=0) @ own)
        return total

    def distinct_shapes(self) -> float:
        """Returns the mean number of distinct latent shapes in a step."""
        column = {
            shape: i
            for i, shape in enumerate(
                dict.fromkeys(s for samples in self.classes for s in samples.shapes)
            )
        }
        runs = np.zeros((len(self.counts), len(column)), bool)
        for held, samples in zip(self.samples, self.classes, strict=True):
            columns = [column[shape] for shape in samples.shapes]
            runs[:, columns] |= held > 0
        return float(runs.sum(axis=1).mean())


def from_schedule(
    schedule: Schedule,
    classes: Sequence[SampleClass],
    *,
    num_steps: int,
    seed: int,
    on_step: Callable[[], None],
) -> StepSamples:
    """Reads the first steps of a schedule.

    The samples of a class are taken to be sorted by shape, which makes no difference,
    because the schedule shuffles them. If there are too many to look up, samples are
    drawn at random, weighted by frequency.
    """
    drawing = _Drawing(schedule.buckets, classes, seed)
    batch = np.array([bucket.batch for bucket in schedule.buckets])
    per_step = int((schedule.step_counts(0) @ batch).sum())
    look_up = per_step * num_steps <= _MAX_LOOKED_UP
    counts, parts = [], []
    for step in range(num_steps):
        counts.append(schedule.step_counts(step))
        of_step = drawing.look_up(schedule, step) if look_up else None
        parts.append(drawing.summed(of_step or drawing.draw(counts[-1])))
        on_step()
    return drawing.result(np.stack(counts), parts)


def draw_at_random(
    buckets: tuple[Bucket, ...],
    classes: Sequence[SampleClass],
    *,
    num_steps: int,
    num_replicas: int,
    num_micro_batches: int,
    seed: int,
) -> StepSamples:
    """Draws micro-batches and their samples at random, weighted by frequency."""
    weight = draw_weights(buckets)
    counts = np.random.default_rng(seed).multinomial(
        num_micro_batches, weight / weight.sum(), size=(num_steps, num_replicas)
    )
    drawing = _Drawing(buckets, classes, seed)
    parts = [drawing.summed(drawing.draw(of_step)) for of_step in counts]
    return drawing.result(counts, parts)


def draw_weights(buckets: Sequence[Bucket]) -> np.ndarray:
    """Returns the number of micro-batches of each bucket in an epoch."""
    return np.array([b.num_samples / b.batch for b in buckets])


_Step = list[np.ndarray]
"""Samples of a step: for each bucket, their number by shape, [replicas, shapes]."""


class _Drawing:
    """Counts the samples of steps, one step at a time.

    Counts by replica and shape are summed at the end of each step, because those of all
    steps would take gigabytes for a thousand replicas.
    """

    def __init__(
        self, buckets: tuple[Bucket, ...], classes: Sequence[SampleClass], seed: int
    ):
        by_form: dict[Form, SampleClass] = {c.form: c for c in classes}
        self._buckets = buckets
        self.classes = tuple(by_form[bucket.form] for bucket in buckets)
        self._ends = [np.cumsum(samples.counts) for samples in self.classes]
        self._rng = np.random.default_rng([seed, len(buckets)])

    def draw(self, counts: np.ndarray) -> _Step:
        """Draws the samples of a step's micro-batches, [replicas, buckets]."""
        return [
            self._rng.multinomial(
                counts[:, i] * bucket.batch,
                np.array(samples.counts) / samples.num_samples,
            )
            for i, (bucket, samples) in enumerate(
                zip(self._buckets, self.classes, strict=True)
            )
        ]

    def look_up(self, schedule: Schedule, step: int) -> _Step:
        """Counts the samples of a step of a schedule."""
        held = [
            np.zeros((schedule.num_replicas, len(ends)), np.int64)
            for ends in self._ends
        ]
        for replica in range(schedule.num_replicas):
            for micro_batch in schedule.micro_batches(step, replica):
                ends = self._ends[micro_batch.bucket]
                index = np.searchsorted(ends, micro_batch.members, side="right")
                held[micro_batch.bucket][replica] += np.bincount(
                    index, minlength=len(ends)
                )
        return held

    def summed(self, step: _Step) -> tuple[np.ndarray, list[np.ndarray]]:
        """Returns a step's tokens, [replicas, buckets], and samples by shape."""
        tokens = [
            held @ samples.tokens
            for held, samples in zip(step, self.classes, strict=True)
        ]
        return np.stack(tokens, axis=-1), [held.sum(axis=0) for held in step]

    def result(
        self, counts: np.ndarray, parts: Sequence[tuple[np.ndarray, list[np.ndarray]]]
    ) -> StepSamples:
        """Joins the sums of all steps."""
        tokens, samples = zip(*parts, strict=True)
        return StepSamples(
            buckets=self._buckets,
            classes=self.classes,
            counts=counts,
            tokens=np.stack(tokens),
            samples=tuple(map(np.stack, zip(*samples, strict=True))),
        )
