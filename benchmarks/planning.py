"""Measures the time and memory of planning for many samples, on one core.

    python -m benchmarks.planning [--rows N] [--only PART]

| row | measurement | limit |
|---|---|---|
| histogram | from a histogram of N samples to the mixed schedule | 60 s, 2 GB |
| Parquet | the same from N rows with ids, read as a stream | 60 s, 2 GB |
| look-up | buckets of a step, and samples of one replica, among ten billion | 50 ms |
| hard lists | from up to a million rows to both schedules, CPU time | 20 s |

Each row runs in its own process on one core. Time excludes imports; memory is the
process's peak. The Parquet file has the same samples as the histogram, so both must
give the same plan. Hard lists are planned for R = 2 to 256 replicas with A = 1 and 4
accumulations; the slowest plan counts.
"""

import argparse
import dataclasses
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import hard_lists, hard_plans, look_up, one_core, scenario
from benchmarks.hard_lists import HARD_LISTS
from benchmarks.limit_table import Row, print_table
from benchmarks.scaled_workload import BYTES_PER_ROW, write_histogram, write_rows
from jaxload.balance.mixed import Mixed
from jaxload.balance.pattern import Pattern
from jaxload.balance.scenario import make_mixed
from jaxload.console import Console
from jaxload.planning.classes import Classes

NUM_ROWS = 100_000_000
NUM_LOOKED_UP = 10_000_000_000

_REPLICAS = 1024
_ACCUMULATE = 4
_MAX_SECONDS = 60.0
_MAX_BYTES = 2e9
_PARTS = ("samples", "look-up", "lists")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """A schedule planned from a file, and the duration of planning."""

    seconds: float
    classes_seconds: float
    """Part of `seconds` that reading the file and choosing lengths took."""

    chosen: Classes
    schedule: Mixed


def plan(path: Path) -> Planned:
    """Plans a mixed schedule from a workload file."""
    start = time.perf_counter()
    read = scenario.read(path, num_replicas=_REPLICAS, accumulate=_ACCUMULATE)
    chosen = time.perf_counter()
    schedule = make_mixed(read.scenario)
    return Planned(
        seconds=time.perf_counter() - start,
        classes_seconds=chosen - start,
        chosen=read.chosen,
        schedule=schedule,
    )


def check(planned: Planned, num_samples: int) -> None:
    """Asserts that each sample is either left out or runs in every epoch."""
    chosen, schedule = planned.chosen, planned.schedule
    left_out = sum(out.count for out in chosen.left_out)
    assert sum(c.num_samples for c in chosen.classes) + left_out == num_samples

    def capacity(patterns: Sequence[Pattern], of_form: list[int]) -> int:
        return sum(
            pattern.times * pattern.counts[i] * schedule.buckets[i].batch
            for pattern in patterns
            for i in of_form
        )

    for samples in chosen.classes:
        buckets = enumerate(schedule.buckets)
        of_form = [i for i, b in buckets if b.form == samples.form]
        count = samples.num_samples
        assert {schedule.buckets[i].num_samples for i in of_form} == {count}
        smallest = min(schedule.buckets[i].batch for i in of_form)
        left = count - capacity(schedule.patterns, of_form)
        # The last micro-batch of the rest may be only partly filled.
        assert 0 <= left <= capacity(schedule.rest, of_form) < left + smallest


def measure_samples(
    num_rows: int, directory: Path, say: Callable[[str], None]
) -> list[Row]:
    """Measures planning from a histogram and from rows; reports progress to `say`."""
    histogram = directory / "histogram.csv"
    num_samples = write_histogram(histogram, num_rows)
    say(f"planning for a histogram of {num_samples:,} samples")
    planned, peak = one_core.run(plan, histogram)
    check(planned, num_samples)
    row = _plan_row(f"histogram of {num_samples:,}", planned, peak)
    return [row, _measure_parquet(histogram, num_samples, planned, say)]


def measure_look_up(directory: Path, say: Callable[[str], None]) -> list[Row]:
    """Measures look-ups of steps; reports progress to `say`."""
    histogram = directory / "histogram.csv"
    num_samples = write_histogram(histogram, NUM_LOOKED_UP)
    say(f"looking up steps among {num_samples:,} samples")
    planned, _ = one_core.run(plan, histogram)
    check(planned, num_samples)
    return [look_up.measure(planned.schedule, num_samples)]


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
        help=f"least number of samples to plan for (default: {NUM_ROWS:,}); hard lists "
        f"have at most as many rows, and at most {hard_lists.NUM_ROWS:,}",
    )
    parser.add_argument(
        "--only",
        choices=(*_PARTS, *HARD_LISTS),
        metavar="PART",
        help=f"measure only one of {', '.join(_PARTS)}, or one of the lists: "
        f"{'; '.join(HARD_LISTS)}",
    )
    args = parser.parse_args(argv)
    if args.rows < _REPLICAS:
        parser.error(f"--rows {args.rows}: expected {_REPLICAS} or more")
    # Without a width, piped tables would be truncated to 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 140)
    parts = _PARTS if args.only is None else (args.only,)
    rows, hard_rows = [], []
    with (
        Console(stderr=True).status("starting") as status,
        tempfile.TemporaryDirectory() as name,
    ):
        directory, say = Path(name), status.update
        for part in parts:
            if part == "samples":
                rows += measure_samples(args.rows, directory, say)
            elif part == "look-up":
                rows += measure_look_up(directory, say)
            else:
                names = list(HARD_LISTS) if part == "lists" else [part]
                most = min(args.rows, hard_lists.NUM_ROWS)
                hard_rows = hard_plans.measure(names, most, directory, say)
    title = f"Planning for {_REPLICAS} replicas, {_ACCUMULATE} accumulations"
    for heading, found in ((title, rows), ("Planning for hard lists", hard_rows)):
        if found:
            print_table(heading, found, console)
    return 1 if any(row.missed for row in (*rows, *hard_rows)) else 0


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
        return _row(name, f"skipped: {sizes}")
    say(f"writing {num_samples:,} rows")
    file_bytes, _ = one_core.run(write_rows, histogram, path)
    say(f"planning for {num_samples:,} rows")
    planned, peak = one_core.run(plan, path)
    path.unlink()
    assert planned.chosen == expected.chosen
    assert planned.schedule == expected.schedule
    return _plan_row(name, planned, peak, f"; file {file_bytes / 1e9:.2f} GB")


def _plan_row(name: str, planned: Planned, peak: int, more: str = "") -> Row:
    deal_seconds = planned.seconds - planned.classes_seconds
    num_classes = len(planned.chosen.classes)
    note = f"{planned.classes_seconds:.1f} s to {num_classes} lengths, "
    note += f"{deal_seconds:.1f} s to the schedule{more}"
    return _row(name, note, planned.seconds, peak)


def _row(name: str, note: str, seconds: float = math.nan, peak_bytes: int = 0) -> Row:
    return Row(
        name=name,
        note=note,
        max_seconds=_MAX_SECONDS,
        max_bytes=_MAX_BYTES,
        seconds=seconds,
        peak_bytes=peak_bytes,
    )


if __name__ == "__main__":
    sys.exit(main())
