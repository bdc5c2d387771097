"""Table of measurements with limits on time and memory."""

import dataclasses
import math
import os
from collections.abc import Sequence

from rich.table import Table

from jaxload.console import Console


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """Row of the table."""

    name: str
    note: str
    max_seconds: float
    max_bytes: float = math.inf
    seconds: float = math.nan
    """Measured time; NaN if the measurement was skipped."""

    peak_bytes: int = 0

    @property
    def missed(self) -> bool:
        """True if time or memory is over its limit."""
        return self.seconds > self.max_seconds or self.peak_bytes > self.max_bytes


def print_table(title: str, rows: Sequence[Row], console: Console) -> None:
    """Prints the rows, and marks rows that miss a limit."""
    table = Table(
        title=f"{title}, on one core of {os.cpu_count()}; load average "
        f"{os.getloadavg()[0]:.1f}"
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


def _duration(seconds: float) -> str:
    if math.isnan(seconds):
        return ""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"
