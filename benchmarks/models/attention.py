"""Memory and time of our attention against the plain form.

    python -m benchmarks.models.attention

Our memory should be linear in tokens: twice as many take twice as much. Peaks are the
growth of a separate process's resident memory during the first call.
"""

import concurrent.futures
import dataclasses
import functools
import multiprocessing
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from rich.table import Table

from jaxload.console import Console
from jaxload.ops.attention import attention, attention_reference
from jaxload.testing import assert_trees_close

MAX_GROWTH = 2.2
"""Maximum ratio of memory with twice as many tokens."""

NUM_TOKENS = (8_192, 16_384)  # For memory; the second is twice the first.
_TIMED_TOKENS = (512, 1_560)
_NUM_HEADS, _HEAD_WIDTH = 12, 128  # As in Wan 2.1 1.3B.
_NUM_ROUNDS = 5

DIRECTIONS = ("forward", "gradients")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of one call in float32, in bytes."""

    temporary: int
    """Temporary memory that XLA allocates."""

    peak: int
    """Growth of resident memory, including results but not arguments."""


def report() -> list[Table]:
    """Measures memory and time; returns the tables to print."""
    return [_memory_table(), _time_table()]


def _memory_table() -> Table:
    table = Table(
        title=f"Attention on CPU, 1 sample, {_NUM_HEADS} heads of {_HEAD_WIDTH}, "
        f"float32. Goal: growth of at most {MAX_GROWTH}",
        caption="Peak is the growth of resident memory, including results.",
    )
    columns = ("", *(f"{n:,} tokens" for n in NUM_TOKENS), "growth")
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    table.add_column("goal")
    for direction in DIRECTIONS:
        few, many = (measure_memory(direction, n) for n in NUM_TOKENS)
        for name in ("temporary", "peak"):
            before, after = getattr(few, name), getattr(many, name)
            table.add_row(
                f"{direction}, {name}",
                *(f"{num_bytes / 1e6:,.0f} MB" for num_bytes in (before, after)),
                f"{after / before:.2f}",
                "held" if after / before <= MAX_GROWTH else "[bold red]NOT HELD[/]",
            )
    return table


def measure_memory(direction: str, num_tokens: int) -> Memory:
    """Measures one call in a separate process."""
    with concurrent.futures.ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn")
    ) as pool:
        return pool.submit(_measure_memory, direction, num_tokens).result()


def _measure_memory(direction: str, num_tokens: int) -> Memory:
    arguments = jax.block_until_ready(_arguments(num_tokens))
    compiled = jax.jit(_function(direction, attention)).lower(*arguments).compile()
    analysis = compiled.memory_analysis()
    assert analysis is not None
    Path("/proc/self/clear_refs").write_text("5")  # Resets the peak after compiling.
    before = _peak_bytes()
    jax.block_until_ready(compiled(*arguments))
    return Memory(
        temporary=analysis.temp_size_in_bytes,
        peak=_peak_bytes() - before,
    )


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return 1024 * int(kilobytes)


def _arguments(num_tokens: int) -> list[jax.Array]:
    """Draws queries, keys, values, and the gradient of the result."""
    shape = 1, num_tokens, _NUM_HEADS, _HEAD_WIDTH
    return [jax.random.normal(jax.random.key(i), shape) for i in range(4)]


def _function(direction: str, form: Callable[..., Any]) -> Callable[..., Any]:
    def gradients(q, k, v, dout):
        out, vjp = jax.vjp(form, q, k, v)
        return out, vjp(dout)

    return gradients if direction == "gradients" else lambda q, k, v, _: form(q, k, v)


def _time_table() -> Table:
    table = Table(
        title=f"Time of the same calls, medians of {_NUM_ROUNDS} interleaved rounds. "
        "Gradients include the forward pass",
    )
    for column in ("", "tokens", "ours", "plain form", "plain / ours"):
        table.add_column(column, justify="right" if column else "left")
    for direction in DIRECTIONS:
        for num_tokens in _TIMED_TOKENS:
            ours, plain = measure_seconds(direction, num_tokens)
            table.add_row(
                direction,
                f"{num_tokens:,}",
                *(f"{1e3 * seconds:,.1f} ms" for seconds in (ours, plain)),
                f"{plain / ours:.2f}",
            )
    return table


def measure_seconds(direction: str, num_tokens: int) -> tuple[float, float]:
    """Returns our median time and the plain form's, after checking that both agree."""
    arguments = _arguments(num_tokens)
    functions = [
        functools.partial(jax.jit(_function(direction, form)), *arguments)
        for form in (attention, attention_reference)
    ]
    assert_trees_close(*(function() for function in functions))
    rounds = [
        [_seconds(function) for function in functions] for _ in range(_NUM_ROUNDS)
    ]
    ours, plain = (statistics.median(times) for times in zip(*rounds, strict=True))
    return ours, plain


def _seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - start


def main() -> int:
    """Runs `python -m benchmarks.models.attention`."""
    # Without a width, piped tables would be truncated to 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 120)
    for table in report():
        console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
