"""The lockstep schedule: at each micro-step every replica runs the same bucket.

Each bucket is an endless stream of its samples, shuffled anew in each pass. The stream
is cut into rounds of one micro-batch for each replica. An epoch takes from each stream
the rounds that the samples fill; the remainder, smaller than one round, is carried over
to the next epoch. Within an epoch the rounds come in random order. A step is computed
from its number, without any state, so any host can start at any step.
"""

import bisect
import dataclasses
from typing import Protocol, runtime_checkable

import numpy as np

from jaxload.balance.bucket import Bucket
from jaxload.balance.program import Program
from jaxload.balance.stream import shuffled, stream_members
from jaxload.errors import InputError


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """Samples that one replica runs through one program at once."""

    bucket: int
    """Index of the bucket in the catalogue."""

    members: np.ndarray
    """Indices of samples within the bucket, each in [0, num_samples)."""


@runtime_checkable
class Schedule(Protocol):
    """Pure function (step, replica) -> micro-batches that a run follows."""

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Catalogue that micro-batches refer to."""
        ...

    @property
    def programs(self) -> tuple[Program, ...]:
        """Programs of the catalogue, by bucket."""
        ...

    @property
    def num_replicas(self) -> int:
        """Number of logical replicas, each with micro-batches of its own."""
        ...

    @property
    def max_micro_batches(self) -> int:
        """Upper bound on the micro-batches of one replica in one step."""
        ...

    def micro_batches(self, step: int, replica: int) -> tuple[MicroBatch, ...]:
        """Returns the micro-batches that one replica runs in one step, in order."""
        ...

    def step_counts(self, step: int) -> np.ndarray:
        """Returns the micro-batches of each bucket per replica, [replicas, buckets]."""
        ...

    def epoch(self, step: int) -> float:
        """Returns the number of passes over the data before a step, as a fraction."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lockstep:
    """Schedule of the policy `lockstep`: a pure function of seed, step and replica."""

    buckets: tuple[Bucket, ...]
    seed: int
    num_replicas: int
    accumulate: int
    """Number of micro-batches that each replica runs in a step."""

    def __post_init__(self):
        for bucket in self.buckets:
            needed = bucket.batch * self.num_replicas
            if bucket.num_samples < needed:
                raise InputError(
                    f"bucket {bucket} has {bucket.num_samples} samples: expected at "
                    f"least {needed}, one micro-batch for each of {self.num_replicas} "
                    "replicas; plan again for this number of replicas"
                )

    @property
    def programs(self) -> tuple[Program, ...]:
        """Programs of the catalogue, by bucket."""
        return tuple(bucket.program for bucket in self.buckets)

    @property
    def max_micro_batches(self) -> int:
        """Number of micro-batches of one replica in one step."""
        return self.accumulate

    def step_buckets(self, step: int) -> tuple[int, ...]:
        """Returns the bucket of each micro-step of a step, equal on all replicas."""
        first = step * self.accumulate
        return tuple(self._round(first + i)[0] for i in range(self.accumulate))

    def step_counts(self, step: int) -> np.ndarray:
        """Returns the micro-batches of each bucket per replica, [replicas, buckets]."""
        counts = np.bincount(self.step_buckets(step), minlength=len(self.buckets))
        return np.tile(counts, (self.num_replicas, 1))

    def micro_batches(self, step: int, replica: int) -> tuple[MicroBatch, ...]:
        """Returns the micro-batches that one replica runs in one step, in order."""
        first = step * self.accumulate
        return tuple(
            self.micro_batch(first + i, replica) for i in range(self.accumulate)
        )

    def micro_batch(self, micro_step: int, replica: int) -> MicroBatch:
        """Returns a replica's micro-batch; `micro_step` counts from the run's start."""
        index, turn = self._round(micro_step)
        bucket = self.buckets[index]
        first = (turn * self.num_replicas + replica) * bucket.batch
        members = stream_members(
            first,
            bucket.batch,
            num_samples=bucket.num_samples,
            seed=self.seed,
            stream=index,
        )
        return MicroBatch(index, members)

    def carried(self, epoch: int) -> dict[str, int]:
        """Returns how many samples of each form an epoch carries over to the next."""
        return {
            str(b.form): (epoch + 1) * b.num_samples % (b.batch * self.num_replicas)
            for b in self.buckets
        }

    def epoch_counts(self) -> np.ndarray:
        """Returns the mean number of micro-batches of each bucket in an epoch."""
        return np.array([b.num_samples / b.batch for b in self.buckets])

    def epoch(self, step: int) -> float:
        """Returns the number of passes over the data before a step, as a fraction."""
        micro_step = step * self.accumulate
        epoch, start = self._epoch(micro_step)
        return epoch + (micro_step - start) / (self._rounds_before(epoch + 1) - start)

    def _round(self, micro_step: int) -> tuple[int, int]:
        """Returns the bucket of a micro-step, and its round in the bucket's stream."""
        epoch, start = self._epoch(micro_step)
        before = [self._bucket_rounds(b, epoch) for b in self.buckets]
        after = [self._bucket_rounds(b, epoch + 1) for b in self.buckets]
        ends = np.cumsum(np.subtract(after, before)).tolist()
        position = shuffled(
            micro_step - start,
            size=ends[-1],
            seed=self.seed,
            stream=len(self.buckets),
            lap=epoch,
        )
        index = bisect.bisect_right(ends, position)
        return index, after[index] - (ends[index] - position)

    def _epoch(self, micro_step: int) -> tuple[int, int]:
        """Returns the epoch of a micro-step, and the epoch's first micro-step."""
        # Each epoch has at least one round, so its index is at most the micro-step.
        epoch = (
            bisect.bisect_right(
                range(micro_step + 2), micro_step, key=self._rounds_before
            )
            - 1
        )
        return epoch, self._rounds_before(epoch)

    def _rounds_before(self, epoch: int) -> int:
        return sum(self._bucket_rounds(bucket, epoch) for bucket in self.buckets)

    def _bucket_rounds(self, bucket: Bucket, epoch: int) -> int:
        """Returns the full rounds in the first `epoch` passes of a bucket's stream."""
        return epoch * bucket.num_samples // (bucket.batch * self.num_replicas)
