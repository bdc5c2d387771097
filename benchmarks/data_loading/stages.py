"""Measures the loading time per sample by stage, in one thread."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from benchmarks.data_loading.samples import NUM_TEXT_TOKENS, Dataset
from jaxload.console import Console
from jaxload.data.record import decode_record
from jaxload.data.source import MicroBatchSource, open_records

STAGES = ("schedule look-up", "ArrayRecord read", "decode_record", "copy and the rest")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """Loading time per sample, in seconds."""

    name: str
    record_bytes: int
    seconds: float
    stages: tuple[float, ...]
    """Seconds of each stage, in the order of `STAGES`."""


def measure(dataset: Dataset, num_rounds: int) -> Row:
    """Times each stage and the whole in turn; the copy is the whole minus the stages.

    Each round reads different steps, because a source caches the schedule of recent
    steps.
    """
    count = dataset.scale.num_batches
    source = MicroBatchSource(
        dataset.manifest,
        dataset.schedule,
        replicas=[0],
        num_at_once=1,
        num_steps=(1 + num_rounds) * count,
        num_text_tokens=NUM_TEXT_TOKENS,
    )
    records = open_records(dataset.manifest)

    def look_up(steps: range) -> None:
        for step in steps:
            dataset.rows(step)

    def read(rows: list[int]) -> None:
        for row in rows:
            records[row]

    def decode(kept: list[bytes]) -> None:
        for content in kept:
            decode_record(content)

    def whole(steps: range) -> None:
        for step in steps:
            source[step]

    rounds = []
    for i in range(1 + num_rounds):
        steps = range(i * count, (i + 1) * count)
        # This also fills the caches of shuffled orders, which rarely miss in training.
        rows = [row for step in steps for row in dataset.rows(step).tolist()]
        kept = [records[row] for row in rows[: len(dataset.manifest)]]
        rounds.append(
            (
                _seconds(look_up, steps) / len(rows),
                _seconds(read, rows) / len(rows),
                _seconds(decode, kept) / len(kept),
                _seconds(whole, steps) / len(rows),
            )
        )
    # The first round is warm-up.
    *parts, total = map(statistics.median, zip(*rounds[1:], strict=True))
    return Row(
        name=dataset.scale.name,
        record_bytes=dataset.record_bytes,
        seconds=total,
        stages=(*parts, total - sum(parts)),
    )


def _seconds(function: Callable[[Any], None], argument: Any) -> float:
    start = time.perf_counter()
    function(argument)
    return time.perf_counter() - start


def print_table(rows: Sequence[Row], console: Console) -> None:
    """Prints the time and share of each stage."""
    table = Table(
        title="Time of a sample in one thread, by stage",
        caption="Medians. Stages are timed separately; the time to copy into the "
        "micro-batch is the total minus the other stages.",
    )
    table.add_column("records")
    for column in ("KB", "time", *STAGES):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.record_bytes / 1e3:,.0f}",
            f"{row.seconds * 1e6:,.1f} us",
            *(f"{s * 1e6:,.1f} us, {s / row.seconds:.0%}" for s in row.stages),
        )
    console.print(table)
