"""Measures the time and memory of planning for many samples, on one core.

    python -m benchmarks.planning [--rows N]

| row | measurement | limit |
|---|---|---|
| histogram | from a histogram of N samples to the mixed schedule | 60 s, 2 GB |
| Parquet | the same from N rows with ids, read as a stream | 60 s, 2 GB |
| look-up | buckets of a step, and samples of one replica, among ten billion | 50 ms |

Each row runs in its own process on one core. Time excludes imports; memory is the
process's peak. The Parquet file has the same samples as the histogram, so both must
give the same plan.
"""

import argparse
import dataclasses
import math
import os
import pickle
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from benchmarks import one_core
from benchmarks.scaled_workload import BYTES_PER_ROW, write_histogram, write_rows
from jaxload.balance.mixed import Mixed
from jaxload.balance.pattern import Pattern
from jaxload.balance.scenario import make_mixed
from jaxload.console import Console
from jaxload.planning.scenarios import SimulationOptions, read_scenario
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.cover import Cover

NUM_ROWS = 100_000_000
NUM_LOOKED_UP = 10_000_000_000

_REPLICAS = 1024
_ACCUMULATE = 4
_MAX_SECONDS = 60.0
_MAX_BYTES = 2e9
_MAX_LOOK_UP_SECONDS = 0.050
_NUM_LOOK_UPS = 50
_NUM_EPOCHS = 100  # Looked-up steps are drawn from these epochs.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """A schedule planned from a file, and the duration of planning."""

    seconds: float
    cover_seconds: float
    """Part of `seconds` that reading the file and choosing shapes took."""

    cover: Cover
    schedule: Mixed


@dataclasses.dataclass(frozen=True, kw_only=True)
class LookedUp:
    """Time to look up steps of a schedule."""

    seconds: float
    """Median over the look-ups."""

    longest_seconds: float
    schedule_bytes: int
    """Size of the pickled schedule."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """Row of the table."""

    name: str
    note: str
    max_seconds: float = _MAX_SECONDS
    max_bytes: float = _MAX_BYTES
    seconds: float = math.nan
    """Measured time; NaN if the measurement was skipped."""

    peak_bytes: int = 0

    @property
    def missed(self) -> bool:
        """True if time or memory is over its limit."""
        return self.seconds > self.max_seconds or self.peak_bytes > self.max_bytes


def plan(path: Path) -> Planned:
    """Plans a mixed schedule from a workload file."""
    options = SimulationOptions(
        workload=path,
        model="wan2.1-t2v-14b",
        remat="none",
        costs=None,
        num_replicas=_REPLICAS,
        accumulate=_ACCUMULATE,
        memory_headroom=2.0,
        policies=("mixed",),
        max_buckets=32,
        num_steps=1,
        seed=0,
        max_bad_share=0.0,
        rules=ShapeRules(),
    )
    start = time.perf_counter()
    scenario = read_scenario(options, Console(quiet=True))
    covered = time.perf_counter()
    schedule = make_mixed(scenario)
    return Planned(
        seconds=time.perf_counter() - start,
        cover_seconds=covered - start,
        cover=scenario.cover,
        schedule=schedule,
    )


def look_up(schedule: Mixed) -> LookedUp:
    """Times random look-ups in a freshly unpickled schedule, as on a new host."""
    content = pickle.dumps(schedule)
    schedule = pickle.loads(content)
    rng = np.random.default_rng(0)
    num_steps = _NUM_EPOCHS * epoch_size(schedule) // _REPLICAS
    seconds = []
    for step in rng.choice(num_steps, _NUM_LOOK_UPS, replace=False).tolist():
        replica = int(rng.integers(_REPLICAS))
        start = time.perf_counter()
        counts = schedule.step_counts(step)
        micro_batches = schedule.micro_batches(step, replica)
        seconds.append(time.perf_counter() - start)
        assert counts.shape == (_REPLICAS, len(schedule.buckets))
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


def epoch_size(schedule: Mixed) -> int:
    """Returns the number of replica-steps in an epoch."""
    return sum(p.times for p in (*schedule.patterns, *schedule.rest))


def check(planned: Planned, num_samples: int) -> None:
    """Asserts that each sample is either left out or runs in every epoch."""
    cover, schedule = planned.cover, planned.schedule
    left_out = sum(out.count for out in cover.left_out)
    assert sum(cover.num_samples) + left_out == num_samples

    def capacity(patterns: Sequence[Pattern], of_shape: list[int]) -> int:
        return sum(
            pattern.times * pattern.counts[i] * schedule.buckets[i].batch
            for pattern in patterns
            for i in of_shape
        )

    for shape, count in zip(cover.shapes, cover.num_samples, strict=True):
        of_shape = [i for i, b in enumerate(schedule.buckets) if b.shape == shape]
        assert {schedule.buckets[i].num_samples for i in of_shape} == {count}
        smallest = min(schedule.buckets[i].batch for i in of_shape)
        left = count - capacity(schedule.patterns, of_shape)
        # The last micro-batch of the rest may be only partly filled.
        assert 0 <= left <= capacity(schedule.rest, of_shape) < left + smallest


def measure(
    num_rows: int, num_looked_up: int, directory: Path, say: Callable[[str], None]
) -> list[Row]:
    """Measures all rows; writes files to `directory`, and reports progress to `say`."""
    histogram = directory / "histogram.csv"
    num_samples = write_histogram(histogram, num_rows)
    say(f"planning for a histogram of {num_samples:,} samples")
    planned, peak = one_core.run(plan, histogram)
    check(planned, num_samples)
    rows = [_plan_row(f"histogram of {num_samples:,}", planned, peak)]
    rows.append(_measure_parquet(histogram, num_samples, planned, say))

    num_samples = write_histogram(histogram, num_looked_up)
    say(f"looking up steps among {num_samples:,} samples")
    planned, _ = one_core.run(plan, histogram)
    check(planned, num_samples)
    found, peak = one_core.run(look_up, planned.schedule)
    rows.append(
        Row(
            name=f"look-up among {num_samples:,}",
            note=f"median of {_NUM_LOOK_UPS} steps, the longest "
            f"{found.longest_seconds * 1e3:.2f} ms; the schedule has "
            f"{found.schedule_bytes:,} bytes",
            max_seconds=_MAX_LOOK_UP_SECONDS,
            max_bytes=math.inf,
            seconds=found.seconds,
            peak_bytes=peak,
        )
    )
    return rows


def print_table(rows: Sequence[Row], console: Console) -> None:
    """Prints the rows, and marks rows that miss a limit."""
    table = Table(
        title=f"Planning for {_REPLICAS} replicas, {_ACCUMULATE} accumulations, on one "
        f"core of {os.cpu_count()}; load average {os.getloadavg()[0]:.1f}"
    )
    for name in ("from", "time", "limit", "memory", "limit", "note"):
        table.add_column(name, justify="left" if name in ("from", "note") else "right")
    for row in rows:
        table.add_row(
            row.name,
            _duration(row.seconds),
            _duration(row.max_seconds),
            f"{row.peak_bytes / 1e9:.2f} GB" if row.peak_bytes else "",
            f"{row.max_bytes / 1e9:.0f} GB" if math.isfinite(row.max_bytes) else "",
            ("[bold red]MISSED[/]: " if row.missed else "") + row.note,
        )
    console.print(table)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m benchmarks.planning`; returns 1 if a limit is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.planning",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=NUM_ROWS,
        metavar="N",
        help=f"least number of samples to plan for (default: {NUM_ROWS:,})",
    )
    args = parser.parse_args(argv)
    if args.rows < _REPLICAS:
        parser.error(f"--rows {args.rows}: expected {_REPLICAS} or more")
    # Without a width, piped tables would be truncated to 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 140)
    with (
        Console(stderr=True).status("starting") as status,
        tempfile.TemporaryDirectory() as directory,
    ):
        rows = measure(args.rows, NUM_LOOKED_UP, Path(directory), status.update)
    print_table(rows, console)
    return 1 if any(row.missed for row in rows) else 0


def _measure_parquet(
    histogram: Path, num_samples: int, expected: Planned, say: Callable[[str], None]
) -> Row:
    name = f"Parquet of {num_samples:,}"
    path = histogram.with_name("rows.parquet")
    free, needed = shutil.disk_usage(path.parent).free, num_samples * BYTES_PER_ROW
    if free < needed:
        sizes = (
            f"{free / 1e9:.1f} GB free in {path.parent}, expected {needed / 1e9:.1f}"
        )
        return Row(name=name, note=f"skipped: {sizes}")
    say(f"writing {num_samples:,} rows")
    file_bytes, _ = one_core.run(write_rows, histogram, path)
    say(f"planning for {num_samples:,} rows")
    planned, peak = one_core.run(plan, path)
    path.unlink()
    assert planned.cover == expected.cover
    assert planned.schedule == expected.schedule
    return _plan_row(name, planned, peak, f"; file {file_bytes / 1e9:.2f} GB")


def _plan_row(name: str, planned: Planned, peak: int, more: str = "") -> Row:
    deal_seconds = planned.seconds - planned.cover_seconds
    return Row(
        name=name,
        note=f"{planned.cover_seconds:.1f} s to {len(planned.cover.shapes)} shapes, "
        f"{deal_seconds:.1f} s to the schedule{more}",
        seconds=planned.seconds,
        peak_bytes=peak,
    )


def _duration(seconds: float) -> str:
    if math.isnan(seconds):
        return ""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


if __name__ == "__main__":
    sys.exit(main())
