"""Measures memory over many epochs of reading; it must not grow."""

import concurrent.futures
import dataclasses
import multiprocessing
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from benchmarks.data_loading.samples import Dataset
from benchmarks.data_loading.throughput import open_ours
from jaxload.console import Console

MAX_GROWTH = 0.05
MAX_GROWTH_BYTES = 20e6
WORKERS = (0, 2)
_SHARED = "/dev/shm"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """Resident memory of all reading processes over time, in bytes."""

    num_workers: int
    num_batches: int
    samples: tuple[int, ...]
    shared_growth: int
    """Growth of the machine's shared memory after the first quarter, in bytes."""

    @property
    def first(self) -> float:
        """Median of the first quarter."""
        return statistics.median(self.samples[: max(1, len(self.samples) // 4)])

    @property
    def last(self) -> float:
        """Median of the last quarter."""
        return statistics.median(self.samples[-max(1, len(self.samples) // 4) :])

    @property
    def held(self) -> bool:
        """True if memory grew by no more than the goal allows."""
        growth = self.last - self.first
        return growth <= max(MAX_GROWTH * self.first, MAX_GROWTH_BYTES)


def measure(dataset: Dataset, num_workers: int, num_epochs: int, every: int) -> Row:
    """Samples memory while a separate process reads epochs."""
    with concurrent.futures.ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn")
    ) as pool:
        return pool.submit(_read, dataset, num_workers, num_epochs, every).result()


def _read(dataset: Dataset, num_workers: int, num_epochs: int, every: int) -> Row:
    count = int(num_epochs * dataset.schedule.epoch_counts().sum())
    reading = open_ours(dataset, num_workers, count)
    samples, shared = [], []
    for step, _ in enumerate(reading):
        if step % every == 0:
            processes = [
                os.getpid(),
                *(p.pid for p in multiprocessing.active_children()),
            ]
            samples.append(sum(_resident_bytes(pid) for pid in processes if pid))
            shared.append(_shared_bytes())
    reading.close()
    return Row(
        num_workers=num_workers,
        num_batches=count,
        samples=tuple(samples),
        shared_growth=shared[-1] - shared[len(shared) // 4],
    )


def _resident_bytes(pid: int) -> int:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (FileNotFoundError, ProcessLookupError):  # The process has ended.
        return 0
    return int(pages) * os.sysconf("SC_PAGESIZE")


def _shared_bytes() -> int:
    disk = os.statvfs(_SHARED)
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize


def print_table(rows: Sequence[Row], name: str, console: Console) -> None:
    """Prints memory in the first and last quarter of the reading time."""
    table = Table(
        title=f"Resident memory while reading {name!r}, all processes. Goal: growth "
        f"within {MAX_GROWTH:.0%} or {MAX_GROWTH_BYTES / 1e6:.0f} MB",
        caption="Medians of the first and the last quarter. Shared memory is the whole "
        "machine's, from the first quarter's end on.",
    )
    for column in ("workers", "micro-batches", "first", "last", "growth", "shared"):
        table.add_column(column, justify="right")
    table.add_column("goal")
    for row in rows:
        table.add_row(
            str(row.num_workers),
            str(row.num_batches),
            f"{row.first / 1e6:,.0f} MB",
            f"{row.last / 1e6:,.0f} MB",
            f"{(row.last - row.first) / 1e6:+,.1f} MB",
            f"{row.shared_growth / 1e6:+,.1f} MB",
            "held" if row.held else "[bold red]NOT HELD[/]",
        )
    console.print(table)
