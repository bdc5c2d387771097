"""Times the look-up of steps in a schedule, as on a new host."""

import dataclasses
import pickle
import statistics
import time

import numpy as np

from benchmarks import one_core
from benchmarks.limit_table import Row
from jaxload.balance.mixed import Mixed

_MAX_SECONDS = 0.050
_NUM_LOOK_UPS = 50
_NUM_EPOCHS = 100  # Looked-up steps are drawn from these epochs.


@dataclasses.dataclass(frozen=True, kw_only=True)
class LookedUp:
    """Time to look up steps of a schedule."""

    seconds: float
    """Median over the look-ups."""

    longest_seconds: float
    schedule_bytes: int
    """Size of the pickled schedule."""


def measure(schedule: Mixed, num_samples: int) -> Row:
    """Measures look-ups in a schedule of so many samples."""
    found, peak = one_core.run(look_up, schedule)
    return Row(
        name=f"look-up among {num_samples:,}",
        note=f"median of {_NUM_LOOK_UPS} steps, the longest "
        f"{found.longest_seconds * 1e3:.2f} ms; the schedule has "
        f"{found.schedule_bytes:,} bytes",
        max_seconds=_MAX_SECONDS,
        seconds=found.seconds,
        peak_bytes=peak,
    )


def look_up(schedule: Mixed) -> LookedUp:
    """Times random look-ups in a freshly unpickled schedule, as on a new host."""
    content = pickle.dumps(schedule)
    schedule = pickle.loads(content)
    rng = np.random.default_rng(0)
    num_steps = _NUM_EPOCHS * _epoch_size(schedule) // schedule.num_replicas
    seconds = []
    for step in rng.choice(num_steps, _NUM_LOOK_UPS, replace=False).tolist():
        replica = int(rng.integers(schedule.num_replicas))
        start = time.perf_counter()
        counts = schedule.step_counts(step)
        micro_batches = schedule.micro_batches(step, replica)
        seconds.append(time.perf_counter() - start)
        assert counts.shape == (schedule.num_replicas, len(schedule.buckets))
        found = [m.bucket for m in micro_batches]
        assert (np.bincount(found, minlength=len(counts.T)) == counts[replica]).all()
        for micro_batch in micro_batches:
            bucket = schedule.buckets[micro_batch.bucket]
            assert len(micro_batch.members) == bucket.batch
            assert micro_batch.members.min() >= 0
            assert micro_batch.members.max() < bucket.num_samples
    return LookedUp(
        seconds=statistics.median(seconds),
        longest_seconds=max(seconds),
        schedule_bytes=len(content),
    )


def _epoch_size(schedule: Mixed) -> int:
    """Returns the number of replica-steps in an epoch."""
    return sum(p.times for p in (*schedule.patterns, *schedule.rest))
