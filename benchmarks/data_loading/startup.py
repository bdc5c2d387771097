"""Measures the time from a manifest of millions of rows to the first micro-batch."""

import dataclasses
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table

from jaxload.console import Console

MAX_SECONDS = 2.0
WORKERS = (0, 2)
_ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """One start, in a fresh process."""

    num_rows: int
    import_seconds: float
    check_seconds: float
    """Time to read the manifest's metadata and check the shards."""

    plan_seconds: float
    """Time to sort rows by shape and make the schedule."""

    read_seconds: float
    """Time to read the first micro-batch."""

    seconds: float
    """Total time without imports."""

    peak_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """All starts with one number of workers."""

    num_workers: int
    starts: tuple[Start, ...]

    def median(self, name: str) -> float:
        """Returns the median of a field of the starts."""
        return statistics.median(getattr(start, name) for start in self.starts)


def measure(directory: Path, num_rounds: int, advance: Callable[[], None]) -> list[Row]:
    """Times fresh processes, alternating with and without workers."""
    starts: dict[int, list[Start]] = {workers: [] for workers in WORKERS}
    for _ in range(num_rounds):
        for workers in WORKERS:
            result = subprocess.run(
                [
                    *(sys.executable, "-m", "benchmarks.data_loading.first_batch"),
                    *(str(directory), str(workers)),
                ],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                cwd=_ROOT,
            )
            starts[workers].append(Start(**json.loads(result.stdout)))
            advance()
    return [
        Row(num_workers=workers, starts=tuple(done)) for workers, done in starts.items()
    ]


def print_table(rows: Sequence[Row], console: Console) -> None:
    """Prints median times by phase."""
    num_rows = rows[0].starts[0].num_rows
    table = Table(
        title=f"From a manifest of {num_rows:,} rows to the first micro-batch, in a "
        f"fresh process. Goal: under {MAX_SECONDS:.0f} s",
        caption="Medians. The time excludes imports of the main process, but includes "
        "those of workers. Memory: peak of the main process.",
    )
    columns = (
        "workers",
        "time",
        "manifest and shards",
        "schedule",
        "first micro-batch",
    )
    for name in (*columns, "imports", "memory"):
        table.add_column(name, justify="right")
    table.add_column("goal")
    for row in rows:
        names = ("seconds", "check_seconds", "plan_seconds", "read_seconds")
        held = row.median("seconds") < MAX_SECONDS
        table.add_row(
            str(row.num_workers),
            *(f"{row.median(name):.2f} s" for name in (*names, "import_seconds")),
            f"{row.median('peak_bytes') / 1e6:,.0f} MB",
            "held" if held else "[bold red]NOT HELD[/]",
        )
    console.print(table)
