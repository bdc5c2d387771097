"""Seconds to compile a train step, by the number of layers.

    python -m benchmarks.models.compile_time

Blocks are stacked and scanned, so that only one is traced and compiled at any depth.
Each round measures all depths, without compile caches.
"""

import contextlib
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import jax
from rich.table import Table

from benchmarks.models.h100 import make_lowering, one_sample_each
from jaxload.console import Console
from jaxload.models import WanConfig
from jaxload.parallel.config import MeshConfig

DEPTHS = (2, 8, 30)
MAX_RATIO = 1.3
NUM_ROUNDS = 3

CONFIG = WanConfig(
    width=256,
    depth=1,
    num_heads=2,
    mlp_width=1024,
    text_dim=256,
    num_text_tokens=64,
    compute_dtype="float32",
    remat="attention",
)
_LATENT = (3, 16, 16)


def measure(
    num_rounds: int = NUM_ROUNDS, advance: Callable[[], None] = lambda: None
) -> dict[int, float]:
    """Returns the median seconds to lower and compile, by depth."""
    seconds: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    with _no_cache():
        _compile(DEPTHS[0])  # Excludes one-time set-up from the timing.
        for i in range(num_rounds):
            shift = i % len(DEPTHS)
            for depth in DEPTHS[shift:] + DEPTHS[:shift]:
                seconds[depth].append(_compile(depth))
            advance()
    return {depth: statistics.median(taken) for depth, taken in seconds.items()}


@contextlib.contextmanager
def _no_cache() -> Iterator[None]:
    name = "jax_enable_compilation_cache"
    before = getattr(jax.config, name)
    jax.config.update(name, False)
    try:
        yield
    finally:
        jax.config.update(name, before)


def _compile(depth: int) -> float:
    jax.clear_caches()  # Forces tracing.
    start = time.perf_counter()
    config = dataclasses.replace(CONFIG, depth=depth)
    lowering = make_lowering(config, MeshConfig(), jax.devices()[:1])
    program = one_sample_each(lowering, _LATENT, "attention")
    lowering.micro_step(program, lowering.placement.groups[0]).compile()
    lowering.update().compile()
    return time.perf_counter() - start


def ratio(seconds: dict[int, float]) -> float:
    """Returns the longest time divided by the shortest."""
    return max(seconds.values()) / min(seconds.values())


def print_table(seconds: dict[int, float], console: Console) -> None:
    """Prints seconds and their ratio."""
    held = "held" if ratio(seconds) <= MAX_RATIO else "[bold red]NOT HELD[/]"
    table = Table(
        title="Seconds to compile a train step, by layers. Goal: longest at "
        f"most {MAX_RATIO} times the shortest",
        caption=f"Width {CONFIG.width}, on CPU. Medians of rounds.",
    )
    for column in ("layers", "seconds", "to the fewest"):
        table.add_column(column, justify="right")
    for depth, taken in seconds.items():
        table.add_row(str(depth), f"{taken:.2f}", f"{taken / seconds[DEPTHS[0]]:.2f}")
    console.print(table)
    console.print(f"Longest to shortest: {ratio(seconds):.2f}, {held}")


def main() -> int:
    """Runs `python -m benchmarks.models.compile_time`; returns the exit code."""
    seconds = measure()
    print_table(seconds, Console())
    return 0 if ratio(seconds) <= MAX_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
