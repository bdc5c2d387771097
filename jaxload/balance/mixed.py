"""The mixed schedule: each replica runs buckets of its own, and all finish together.

The deal says how often an epoch runs each pattern of micro-batches. All patterns, each
repeated that often, form one long list of replica-steps. An epoch visits the list in
strides of the golden ratio, so that any window of consecutive replica-steps is spread
about evenly over the list, and thereby over the buckets. The position in the list
determines the samples, so any host can start at any step, and an epoch takes every
sample once. The remainder of a form, less than a micro-batch, is carried over to the
next epoch. Epochs follow each other without a gap, even within a step.
"""

import dataclasses
import functools
import math

import numpy as np

from jaxload.balance.bucket import Bucket
from jaxload.balance.form import Form
from jaxload.balance.pattern import Pattern
from jaxload.balance.program import Program
from jaxload.balance.schedule import MicroBatch
from jaxload.balance.stream import shuffled, stream_members

_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixed:
    """Schedule of the policy `mixed`: a pure function of seed, step and replica."""

    buckets: tuple[Bucket, ...]
    patterns: tuple[Pattern, ...]
    """Patterns of the deal, whose counts are per bucket."""

    rest: tuple[Pattern, ...]
    """Patterns that run once an epoch; micro-batches run only if samples fill them."""

    seed: int
    num_replicas: int

    @property
    def programs(self) -> tuple[Program, ...]:
        """Programs of the catalogue, by bucket."""
        return tuple(bucket.program for bucket in self.buckets)

    @property
    def max_micro_batches(self) -> int:
        """Largest number of micro-batches in a pattern."""
        return max(sum(pattern.counts) for pattern in (*self.patterns, *self.rest))

    def step_counts(self, step: int) -> np.ndarray:
        """Returns the micro-batches of each bucket per replica, [replicas, buckets]."""
        counts = np.empty((self.num_replicas, len(self.buckets)), np.int64)
        for epoch, replicas, positions in self._positions(step):
            pattern = np.searchsorted(self._table.ends, positions, side="right")
            counts[replicas] = self._table.counts[pattern]
            in_rest = pattern >= len(self.patterns)
            if in_rest.any():
                rows = pattern[in_rest] - len(self.patterns)
                counts[np.arange(self.num_replicas)[replicas][in_rest]] = (
                    self._rest_counts(epoch)[rows]
                )
        return counts

    def micro_batches(self, step: int, replica: int) -> tuple[MicroBatch, ...]:
        """Returns the micro-batches that one replica runs in one step, in order."""
        epoch, index = divmod(step * self.num_replicas + replica, self._table.size)
        position = self._position(epoch, index)
        pattern = int(np.searchsorted(self._table.ends, position, side="right"))
        turn = position - (int(self._table.ends[pattern - 1]) if pattern else 0)
        counts = self._table.counts[pattern]
        if pattern >= len(self.patterns):
            counts = self._rest_counts(epoch)[pattern - len(self.patterns)]
        return tuple(
            self._micro_batch(epoch, pattern, bucket, turn * int(count) + k)
            for bucket, count in enumerate(counts)
            for k in range(count)
        )

    def epoch(self, step: int) -> float:
        """Returns the number of passes over the data before a step, as a fraction."""
        return step * self.num_replicas / self._table.size

    def epoch_counts(self) -> np.ndarray:
        """Returns the most micro-batches of each bucket that an epoch may run."""
        times = [p.times for p in (*self.patterns, *self.rest)]
        return np.array(times) @ self._table.counts

    def carried(self, epoch: int) -> dict[str, int]:
        """Returns how many samples of each form an epoch carries over to the next."""
        table = self._table
        return {
            str(form): (epoch + 1) * table.left[i] % table.smallest[i]
            for i, form in enumerate(table.forms)
        }

    def _micro_batch(
        self, epoch: int, pattern: int, bucket: int, index: int
    ) -> MicroBatch:
        """Returns micro-batch `index` of a bucket, among all runs of one pattern."""
        table, batch = self._table, self.buckets[bucket].batch
        form = table.form_of[bucket]
        # Positions are Python integers, which do not overflow.
        past = epoch * table.core[form]
        past += (
            epoch * table.left[form] // table.smallest[form] * (table.smallest[form])
        )
        first = past + int(table.firsts[pattern, bucket]) + index * batch
        members = stream_members(
            first,
            batch,
            num_samples=self.buckets[bucket].num_samples,
            seed=self.seed,
            stream=form,
        )
        return MicroBatch(bucket, members)

    def _positions(self, step: int) -> list[tuple[int, slice, np.ndarray]]:
        """Returns epoch, replicas and list positions for each epoch in a step."""
        size, parts, replica = self._table.size, [], 0
        while replica < self.num_replicas:
            epoch, index = divmod(step * self.num_replicas + replica, size)
            count = min(self.num_replicas - replica, size - index)
            first = self._position(epoch, index)
            positions = (first + np.arange(count) * self._table.stride) % size
            parts.append((epoch, slice(replica, replica + count), positions))
            replica += count
        return parts

    def _position(self, epoch: int, index: int) -> int:
        """Returns the list position of replica-step `index` of an epoch."""
        size = self._table.size
        stream = len(self.buckets)  # Not the stream of any form.
        start = shuffled(0, size=size, seed=self.seed, stream=stream, lap=epoch)
        return (start + index * self._table.stride) % size

    def _rest_counts(self, epoch: int) -> np.ndarray:
        """Returns the counts of `rest` in an epoch, without partial micro-batches."""
        table = self._table
        counts = table.counts[len(self.patterns) :]
        before = np.cumsum(counts, axis=0) - counts
        full = np.array(
            [
                (epoch + 1) * table.left[s] // table.smallest[s]
                - epoch * table.left[s] // table.smallest[s]
                for s in table.form_of
            ]
        )
        return np.clip(full - before, 0, counts)

    @functools.cached_property
    def _table(self) -> "_Table":
        return _make_table(self.buckets, self.patterns, self.rest)


@dataclasses.dataclass(frozen=True)
class _Table:
    """Arrays that depend only on the deal, and are the same for all steps."""

    forms: tuple
    form_of: list[int]
    """Index of the form of each bucket."""

    counts: np.ndarray
    """Number of micro-batches, [patterns and rest, buckets]."""

    ends: np.ndarray
    """End of each pattern's repeats in the list of replica-steps, exclusive."""

    size: int
    stride: int
    firsts: np.ndarray
    """Stream position of each pattern's first sample in an epoch, [patterns and rest,
    buckets]."""

    core: list[int]
    """Number of samples of each form that `patterns` take in an epoch."""

    left: list[int]
    """Number of samples of each form that are left to `rest`."""

    smallest: list[int]
    """Batch size of each form in `rest`."""


def _make_table(
    buckets: tuple[Bucket, ...],
    patterns: tuple[Pattern, ...],
    rest: tuple[Pattern, ...],
) -> _Table:
    forms = tuple(dict.fromkeys(bucket.form for bucket in buckets))
    index_of = {form: i for i, form in enumerate(forms)}
    form_of = [index_of[bucket.form] for bucket in buckets]
    batch = np.array([bucket.batch for bucket in buckets])
    counts = np.array([p.counts for p in (*patterns, *rest)], np.int64)
    times = np.array([p.times for p in (*patterns, *rest)], np.int64)
    firsts = np.zeros_like(counts)
    used = np.zeros(len(forms), np.int64)
    core = np.zeros(len(forms), np.int64)
    for row in range(len(counts)):
        if row == len(patterns):
            core = used.copy()
        for bucket in np.flatnonzero(counts[row]):
            firsts[row, bucket] = used[form_of[bucket]]
            used[form_of[bucket]] += times[row] * counts[row, bucket] * batch[bucket]
    if not rest:
        core = used
    num_samples = {bucket.form: bucket.num_samples for bucket in buckets}
    smallest: dict[Form, int] = {}
    for bucket in buckets:
        known = smallest.setdefault(bucket.form, bucket.batch)
        smallest[bucket.form] = min(known, bucket.batch)
    size = int(times.sum())
    return _Table(
        forms=forms,
        form_of=form_of,
        counts=counts,
        ends=np.cumsum(times),
        size=size,
        stride=_stride(size),
        firsts=firsts,
        core=core.tolist(),
        left=[num_samples[s] - int(c) for s, c in zip(forms, core, strict=True)],
        smallest=[smallest[form] for form in forms],
    )


def _stride(size: int) -> int:
    """Returns a stride near the golden section of `size` that visits every position."""
    stride = max(1, round(size * _GOLDEN))
    while math.gcd(stride, size) > 1:
        stride += 1
    return stride
