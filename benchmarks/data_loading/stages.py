"""Where the time of a sample goes, in one thread."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.data_loading.samples import NUM_TEXT_TOKENS, Dataset
from jaxload.data.record import decode_record
from jaxload.data.source import MicroBatchSource, open_records

STAGES = ("schedule look-up", "ArrayRecord read", "decode_record", "copy and the rest")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """Seconds of a sample."""

    name: str
    record_bytes: int
    seconds: float
    stages: tuple[float, ...]
    """As in `STAGES`."""


def measure(dataset: Dataset, num_rounds: int) -> Row:
    """Times stages and the whole in turn; the copy is what is left of the whole."""
    count = dataset.scale.num_batches
    source = MicroBatchSource(
        dataset.manifest,
        dataset.schedule,
        replicas=[0],
        num_micro_steps=count,
        num_text_tokens=NUM_TEXT_TOKENS,
    )
    records = open_records(dataset.manifest)
    batches = [dataset.rows(step).tolist() for step in range(count)]
    rows = [row for batch in batches for row in batch]
    kept = [records[row] for row in rows[: len(dataset.manifest)]]

    def read() -> None:
        for row in rows:
            records[row]

    def decode() -> None:
        for content in kept:
            decode_record(content)

    def look_up() -> None:
        for step in range(count):
            dataset.rows(step)

    def whole() -> None:
        for step in range(count):
            source[step]

    per_sample = {
        look_up: len(rows),
        read: len(rows),
        decode: len(kept),
        whole: len(rows),
    }
    taken: dict[Callable[[], None], list[float]] = {f: [] for f in per_sample}
    for _ in range(1 + num_rounds):  # The first one warms up.
        for function, samples in per_sample.items():
            start = time.perf_counter()
            function()
            taken[function].append((time.perf_counter() - start) / samples)
    *parts, total = (statistics.median(seconds[1:]) for seconds in taken.values())
    return Row(
        name=dataset.scale.name,
        record_bytes=dataset.record_bytes,
        seconds=total,
        stages=(*parts, total - sum(parts)),
    )


def print_table(rows: Sequence[Row], console: Console) -> None:
    """Prints shares of the time."""
    table = Table(
        title="Time of a sample in one thread, by stage",
        caption="Medians. Stages are timed by themselves; copying into the micro-batch "
        "is what is left of the whole.",
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
