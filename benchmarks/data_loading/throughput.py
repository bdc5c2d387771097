"""Measures samples per second of raw ArrayRecord, our loader and a PyTorch DataLoader.

All three read the same rows in the same order from a warm page cache, and take turns
within each round. Between turns, prefetching loaders have time to fill their buffers.
Each turn first consumes as many micro-batches as the buffers hold, without timing them.
"""

import contextlib
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.table import Table

from benchmarks.data_loading.raw import RawReaders
from benchmarks.data_loading.samples import (
    NUM_TEXT_TOKENS,
    Dataset,
    check_batch,
    decoded_batches,
)
from benchmarks.data_loading.torch_process import TorchProcess, without_ids
from jaxload.console import Console
from jaxload.data.config import DataConfig
from jaxload.data.loader import Loader, LoaderIterator

LEAST_OF_RAW = 0.8
LEAST_OF_TORCH = 2.0
_NUM_PREFETCH = 4
_SETTLE_SECONDS = 0.3

# Threads and two queues each hold up to `num_prefetch` micro-batches.
_WARM_BATCHES = 3 * _NUM_PREFETCH


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """Samples per second for one record size and number of workers."""

    name: str
    record_bytes: int
    num_workers: int
    raw: float
    ours: float
    torch: float = math.nan
    """Samples per second of PyTorch; NaN if it is not installed."""

    @property
    def goals(self) -> str:
        """Verdict on each goal."""
        words = [_held(self.ours / self.raw >= LEAST_OF_RAW)]
        if not math.isnan(self.torch):
            words.append(_held(self.ours / self.torch >= LEAST_OF_TORCH))
        return ", ".join(words)


def _held(held: bool) -> str:
    return "held" if held else "[bold red]NOT HELD[/]"


def open_ours(dataset: Dataset, num_workers: int, num_steps: int) -> LoaderIterator:
    """Opens our loader in the same way as training does."""
    config = DataConfig(
        path=str(dataset.manifest.directory),
        num_workers=num_workers,
        num_threads=2,
        num_prefetch=_NUM_PREFETCH,
    )
    loader = Loader(
        dataset.manifest,
        dataset.schedule,
        config,
        replicas=[0],
        num_at_once=1,
        num_steps=num_steps,
        num_text_tokens=NUM_TEXT_TOKENS,
    )
    return iter(loader)


@contextlib.contextmanager
def _opened(
    dataset: Dataset,
    batches: Sequence[list[int]],
    num_workers: int,
    torch: TorchProcess | None,
) -> Iterator[tuple[RawReaders, LoaderIterator]]:
    raw = RawReaders(dataset.manifest, max(1, num_workers))
    ours = open_ours(dataset, num_workers, len(batches))
    if torch:
        torch.open(
            dataset, batches, num_workers=num_workers, num_prefetch=_NUM_PREFETCH
        )
    try:
        yield raw, ours
    finally:
        raw.close()
        ours.close()
        if torch:
            torch.close_loader()


def measure(
    dataset: Dataset,
    num_workers: int,
    num_rounds: int,
    torch: TorchProcess | None,
    advance: Callable[[], None],
) -> Row:
    """Checks the first micro-batches, then times rounds over the following ones."""
    num_warm = _WARM_BATCHES * max(1, num_workers)
    num_timed = dataset.scale.num_batches
    num_checked = num_timed
    total = num_checked + num_rounds * (num_warm + num_timed)
    batches = [dataset.rows(step).tolist() for step in range(total)]
    seconds: dict[str, list[float]] = {"raw": [], "ours": [], "torch": []}
    num_samples = []
    with _opened(dataset, batches, num_workers, torch) as (raw, ours):
        check(dataset, ours, torch, num_checked)
        raw.seconds(batches[:num_checked])
        for i in range(num_rounds):
            start = num_checked + i * (num_warm + num_timed) + num_warm
            timed = batches[start : start + num_timed]
            num_samples.append(sum(map(len, timed)))

            def run_raw(timed: Sequence[list[int]] = timed) -> tuple[float, int]:
                return raw.seconds(timed), sum(map(len, timed))

            turns = {"raw": run_raw, "ours": lambda: _run(ours, num_warm, num_timed)}
            if torch:
                turns["torch"] = lambda: torch.run(num_warm, num_timed)
            names = list(turns)
            for name in names[i % len(names) :] + names[: i % len(names)]:
                time.sleep(_SETTLE_SECONDS)
                taken, count = turns[name]()
                assert count == num_samples[-1], f"{name} read {count} samples"
                seconds[name].append(taken)
            advance()
    rates = {
        name: statistics.median(map(_divide, num_samples, taken)) if taken else math.nan
        for name, taken in seconds.items()
    }
    return Row(
        name=dataset.scale.name,
        record_bytes=dataset.record_bytes,
        num_workers=num_workers,
        **rates,
    )


def _divide(count: int, seconds: float) -> float:
    return count / seconds


def _run(ours: LoaderIterator, num_warm: int, num_timed: int) -> tuple[float, int]:
    for _ in range(num_warm):
        next(ours)
    start = time.perf_counter()
    num_samples = 0
    for _ in range(num_timed):
        num_samples += len(next(ours).arrays["id"])
    return time.perf_counter() - start, num_samples


def check(
    dataset: Dataset,
    ours: LoaderIterator,
    torch: TorchProcess | None,
    num_batches: int,
) -> None:
    """Asserts that both loaders return the micro-batches decoded from the records."""
    for step, expected in enumerate(decoded_batches(dataset, num_batches)):
        what = f"micro-batch {step} of {dataset.scale.name!r}"
        check_batch(next(ours).arrays, expected, what)
        if torch:
            found = torch.read(Path(dataset.files) / "checked")
            check_batch(found, without_ids(expected), f"PyTorch's {what}")


def print_table(rows: Sequence[Row], console: Console) -> None:
    """Prints rates, ratios and goals."""
    table = Table(
        title="Samples per second, from a warm page cache. Goals: at least "
        f"{LEAST_OF_RAW} of raw ArrayRecord, {LEAST_OF_TORCH:.0f} times PyTorch",
        caption="Medians over rounds. A consumer counts the samples and touches no "
        "array. raw: one process, or two for two workers, whose malloc "
        "keeps memory; its bytes are dropped.",
    )
    for name in ("records", "KB", "workers", "raw", "ours", "ours/raw"):
        table.add_column(name, justify="left" if name == "records" else "right")
    for name in ("PyTorch", "ours/PyTorch", "goals"):
        table.add_column(name, justify="left" if name == "goals" else "right")
    for row in rows:
        missing = math.isnan(row.torch)
        table.add_row(
            row.name,
            f"{row.record_bytes / 1e3:,.0f}",
            str(row.num_workers),
            f"{row.raw:,.0f}",
            f"{row.ours:,.0f}",
            f"{row.ours / row.raw:.2f}",
            "-" if missing else f"{row.torch:,.0f}",
            "-" if missing else f"{row.ours / row.torch:.1f}",
            row.goals,
        )
    console.print(table)
