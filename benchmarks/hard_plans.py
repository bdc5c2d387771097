"""Measures CPU time of planning for hard lists, for R replicas and A accumulations.

Time is from the file to both schedules, lockstep and mixed. Each list is planned in a
process of its own.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import one_core, scenario
from benchmarks.hard_lists import write_list
from benchmarks.limit_table import Row
from jaxload.balance.scenario import can_lockstep, make_lockstep, make_mixed

_REPLICAS = (2, 16, 64, 256)
_ACCUMULATE = (1, 4)
_MAX_SECONDS = 20.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timed:
    """CPU time of one plan, and the size of its mixed schedule."""

    seconds: float
    num_replicas: int
    accumulate: int
    num_lengths: int
    num_patterns: int


def measure(
    names: Sequence[str], num_rows: int, directory: Path, say: Callable[[str], None]
) -> list[Row]:
    """Measures lists of at most `num_rows` rows; reports progress to `say`."""
    rows, path = [], directory / "list.parquet"
    for name in names:
        say(f"planning for the list: {name}")
        written, _ = one_core.run(write_list, name, num_rows, path)
        plans, peak = one_core.run(plan, path)
        slowest = max(plans, key=lambda timed: timed.seconds)
        most = max(timed.num_patterns for timed in plans)
        rows.append(
            Row(
                name=name,
                note=f"{written:,} rows, {slowest.num_lengths} lengths; slowest: R = "
                f"{slowest.num_replicas}, A = {slowest.accumulate}; at most {most} "
                "patterns",
                max_seconds=_MAX_SECONDS,
                seconds=slowest.seconds,
                peak_bytes=peak,
            )
        )
    return rows


def plan(path: Path) -> list[Timed]:
    """Plans a list for each number of replicas and of accumulations."""
    timed = []
    for num_replicas, accumulate in itertools.product(_REPLICAS, _ACCUMULATE):
        start = time.process_time()
        workload = scenario.read(path, num_replicas=num_replicas, accumulate=accumulate)
        read = workload.scenario
        if can_lockstep(read):
            make_lockstep(read)
        mixed = make_mixed(read)
        timed.append(
            Timed(
                seconds=time.process_time() - start,
                num_replicas=num_replicas,
                accumulate=accumulate,
                num_lengths=len(read.classes),
                num_patterns=len(mixed.patterns) + len(mixed.rest),
            )
        )
    return timed
