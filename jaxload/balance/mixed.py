"""The mixed schedule: each replica runs buckets of its own, and all finish together.

The deal says how often in an epoch each pattern of micro-batches is run. Its patterns,
each repeated as often, form one long list of replica-steps; an epoch goes through it in
strides of the golden ratio. Any window of consecutive replica-steps is then spread over
the list about evenly, and with that over the buckets. The place in the list says which
samples are taken, so any step can be asked for first, on any host, and an epoch
takes every sample once. What is left over of a bucket, less than a micro-batch, goes to
the next epoch. Epochs follow each other without a gap, also within a step.
"""

import dataclasses
import functools
import math

import numpy as np

from jaxload.balance.bucket import Bucket
from jaxload.balance.pattern import Pattern
from jaxload.balance.program import Program
from jaxload.balance.schedule import MicroBatch
from jaxload.balance.stream import shuffled, stream_members

_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixed:
    """(seed, step, replica) -> micro-batches, with nothing remembered."""

    buckets: tuple[Bucket, ...]
    patterns: tuple[Pattern, ...]
    """How many micro-batches of each bucket, and how often an epoch has them."""

    rest: tuple[Pattern, ...]
    """Once an epoch each; a micro-batch that is not full stays away."""

    seed: int
    num_replicas: int

    @property
    def programs(self) -> tuple[Program, ...]:
        """Programs of the catalogue, by bucket."""
        return tuple(bucket.program for bucket in self.buckets)

    @property
    def max_micro_batches(self) -> int:
        """Micro-batches of the pattern that has the most."""
        return max(sum(pattern.counts) for pattern in (*self.patterns, *self.rest))

    def step_counts(self, step: int) -> np.ndarray:
        """Micro-batches of each bucket on each replica, [replicas, buckets]."""
        counts = np.empty((self.num_replicas, len(self.buckets)), np.int64)
        for epoch, replicas, places in self._places(step):
            pattern = np.searchsorted(self._table.ends, places, side="right")
            counts[replicas] = self._table.counts[pattern]
            in_rest = pattern >= len(self.patterns)
            if in_rest.any():
                rows = pattern[in_rest] - len(self.patterns)
                counts[np.arange(self.num_replicas)[replicas][in_rest]] = (
                    self._rest_counts(epoch)[rows]
                )
        return counts

    def micro_batches(self, step: int, replica: int) -> tuple[MicroBatch, ...]:
        """What one replica runs in one step."""
        epoch, index = divmod(step * self.num_replicas + replica, self._table.size)
        place = self._place(epoch, index)
        pattern = int(np.searchsorted(self._table.ends, place, side="right"))
        turn = place - (int(self._table.ends[pattern - 1]) if pattern else 0)
        counts = self._table.counts[pattern]
        if pattern >= len(self.patterns):
            counts = self._rest_counts(epoch)[pattern - len(self.patterns)]
        return tuple(
            self._micro_batch(epoch, pattern, bucket, turn * int(count) + k)
            for bucket, count in enumerate(counts)
            for k in range(count)
        )

    def epoch(self, step: int) -> float:
        """Passes over the data that are done when a step begins."""
        return step * self.num_replicas / self._table.size

    def epoch_counts(self) -> np.ndarray:
        """Micro-batches of each bucket in an epoch, or one more of some."""
        times = [p.times for p in (*self.patterns, *self.rest)]
        return np.array(times) @ self._table.counts

    def carried(self, epoch: int) -> dict[str, int]:
        """Samples of each shape that wait when an epoch ends, fewer than a batch."""
        table = self._table
        return {
            str(shape): (epoch + 1) * table.left[i] % table.smallest[i]
            for i, shape in enumerate(table.shapes)
        }

    def _micro_batch(
        self, epoch: int, pattern: int, bucket: int, index: int
    ) -> MicroBatch:
        """The `index`-th micro-batch of a bucket among those of a pattern."""
        table, batch = self._table, self.buckets[bucket].batch
        shape = table.shape_of[bucket]
        # All arithmetic on positions is in Python's integers, which do not overflow.
        past = epoch * table.core[shape]
        past += (
            epoch * table.left[shape] // table.smallest[shape] * (table.smallest[shape])
        )
        first = past + int(table.firsts[pattern, bucket]) + index * batch
        members = stream_members(
            first,
            batch,
            num_samples=self.buckets[bucket].num_samples,
            seed=self.seed,
            stream=shape,
        )
        return MicroBatch(bucket, members)

    def _places(self, step: int) -> list[tuple[int, slice, np.ndarray]]:
        """A step's places in the list, for each epoch that it touches."""
        size, parts, replica = self._table.size, [], 0
        while replica < self.num_replicas:
            epoch, index = divmod(step * self.num_replicas + replica, size)
            count = min(self.num_replicas - replica, size - index)
            first = self._place(epoch, index)
            places = (first + np.arange(count) * self._table.stride) % size
            parts.append((epoch, slice(replica, replica + count), places))
            replica += count
        return parts

    def _place(self, epoch: int, index: int) -> int:
        """The place in the list of an epoch's replica-step."""
        size = self._table.size
        stream = len(self.buckets)  # None of a shape's.
        start = shuffled(0, size=size, seed=self.seed, stream=stream, lap=epoch)
        return (start + index * self._table.stride) % size

    def _rest_counts(self, epoch: int) -> np.ndarray:
        """The rest's patterns without the micro-batches that are not full."""
        table = self._table
        counts = table.counts[len(self.patterns) :]
        before = np.cumsum(counts, axis=0) - counts
        full = np.array(
            [
                (epoch + 1) * table.left[s] // table.smallest[s]
                - epoch * table.left[s] // table.smallest[s]
                for s in table.shape_of
            ]
        )
        return np.clip(full - before, 0, counts)

    @functools.cached_property
    def _table(self) -> "_Table":
        return _make_table(self.buckets, self.patterns, self.rest)


@dataclasses.dataclass(frozen=True)
class _Table:
    """What follows from the deal alone."""

    shapes: tuple
    shape_of: list[int]
    """Of each bucket."""

    counts: np.ndarray
    """Micro-batches, [patterns and rest, buckets]."""

    ends: np.ndarray
    """Where each pattern's run in the list ends."""

    size: int
    stride: int
    firsts: np.ndarray
    """First sample of each pattern's run, [patterns and rest, buckets]."""

    core: list[int]
    """Samples of each shape that the patterns take in an epoch."""

    left: list[int]
    """Those that they leave to the rest."""

    smallest: list[int]
    """Batch size of the rest, for each shape."""


def _make_table(
    buckets: tuple[Bucket, ...],
    patterns: tuple[Pattern, ...],
    rest: tuple[Pattern, ...],
) -> _Table:
    shapes = tuple(dict.fromkeys(bucket.shape for bucket in buckets))
    shape_of = [shapes.index(bucket.shape) for bucket in buckets]
    batch = np.array([bucket.batch for bucket in buckets])
    counts = np.array([p.counts for p in (*patterns, *rest)], np.int64)
    times = np.array([p.times for p in (*patterns, *rest)], np.int64)
    firsts = np.zeros_like(counts)
    used = np.zeros(len(shapes), np.int64)
    core = np.zeros(len(shapes), np.int64)
    for row in range(len(counts)):
        if row == len(patterns):
            core = used.copy()
        for bucket in np.flatnonzero(counts[row]):
            firsts[row, bucket] = used[shape_of[bucket]]
            used[shape_of[bucket]] += times[row] * counts[row, bucket] * batch[bucket]
    if not rest:
        core = used
    num_samples = {bucket.shape: bucket.num_samples for bucket in buckets}
    size = int(times.sum())
    return _Table(
        shapes=shapes,
        shape_of=shape_of,
        counts=counts,
        ends=np.cumsum(times),
        size=size,
        stride=_stride(size),
        firsts=firsts,
        core=core.tolist(),
        left=[num_samples[s] - int(c) for s, c in zip(shapes, core, strict=True)],
        smallest=[
            min(b.batch for b in buckets if b.shape == shape) for shape in shapes
        ],
    )


def _stride(size: int) -> int:
    """The whole number nearest to the golden section that visits every place."""
    stride = max(1, round(size * _GOLDEN))
    while math.gcd(stride, size) > 1:
        stride += 1
    return stride
