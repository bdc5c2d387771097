"""Times layer_norm_modulate against the plain form as XLA compiles it.

    python -m benchmarks.layer_norm_modulate [--json]

A ratio above one means that ours is faster.
"""

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from jaxload.ops.layer_norm_modulate import (
    layer_norm_modulate,
    layer_norm_modulate_reference,
)
from jaxload.testing import assert_trees_close

_SHAPES = ((1, 4096, 1536), (8, 512, 1536), (1, 512, 1536), (8, 160, 128))
_DTYPES = (jnp.float32, jnp.bfloat16)
_NUM_ROUNDS = 5
_SECONDS_PER_RUN = 0.1
_MIN_TURNS = 4  # The first touches new memory, and must not weigh much.

# x [B, S, D], scale and shift [B, D], dy [B, S, D].
_Inputs = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
_Op = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Medians for one shape, dtype and direction."""

    shape: tuple[int, int, int]
    dtype: str
    direction: str
    ours_us: float
    plain_us: float

    @property
    def ratio(self) -> float:
        """How many times faster ours is."""
        return self.plain_us / self.ours_us


def _make_inputs(shape: tuple[int, int, int], dtype: jnp.dtype) -> _Inputs:
    x_key, scale_key, shift_key, dy_key = jax.random.split(jax.random.key(0), 4)
    batch, tokens, width = shape
    return (
        jax.random.normal(x_key, shape, dtype),
        jax.random.normal(scale_key, (batch, width), dtype),
        jax.random.normal(shift_key, (batch, width), dtype),
        # As small as the gradient of an average over tokens: sums over them are then
        # near one, where the tolerances hold.
        jax.random.normal(dy_key, shape, dtype) / tokens**0.5,
    )


def _forward(op: _Op, inputs: _Inputs) -> _Inputs:
    x, scale, shift, dy = inputs
    return op(x, scale, shift), scale, shift, dy


def _forward_backward(op: _Op, inputs: _Inputs) -> _Inputs:
    x, scale, shift, dy = inputs
    y, vjp = jax.vjp(op, x, scale, shift)
    dx, dscale, dshift = vjp(dy)
    return dx, dscale, dshift, y


_DIRECTIONS = {"forward": _forward, "forward + backward": _forward_backward}


def _compile_loop(direction: str, op: _Op, inputs: _Inputs) -> Callable[[int], float]:
    """Returns a function that times `2 * n` runs of the op, in seconds for all.

    Every run takes the results of the one before, inside of one program: new arrays for
    each would time page faults. Two runs per turn, so that arrays swap places and are
    not copied back at the end of a turn.
    """
    step = _DIRECTIONS[direction]

    def two_steps(_: int, state: _Inputs) -> _Inputs:
        return step(op, step(op, state))

    loop = jax.jit(lambda n, state: jax.lax.fori_loop(0, n, two_steps, state))
    jax.block_until_ready(loop(1, inputs))

    def run(num_turns: int) -> float:
        start = time.perf_counter()
        jax.block_until_ready(loop(num_turns, inputs))
        return time.perf_counter() - start

    return run


def _measure(
    shape: tuple[int, int, int], dtype: jnp.dtype, direction: str
) -> Measurement:
    inputs = _make_inputs(shape, dtype)
    step = jax.jit(_DIRECTIONS[direction], static_argnums=0)
    assert_trees_close(
        step(layer_norm_modulate, inputs), step(layer_norm_modulate_reference, inputs)
    )
    arms = {
        "ours": _compile_loop(direction, layer_norm_modulate, inputs),
        "plain": _compile_loop(direction, layer_norm_modulate_reference, inputs),
    }
    num_turns = {
        name: max(_MIN_TURNS, round(_SECONDS_PER_RUN / run(1)))
        for name, run in arms.items()
    }
    seconds = {name: [] for name in arms}
    for _ in range(_NUM_ROUNDS):  # Interleaved: a slow spell of the machine hits both.
        for name, run in arms.items():
            seconds[name].append(run(num_turns[name]) / (2 * num_turns[name]))
    median_us = {name: statistics.median(s) * 1e6 for name, s in seconds.items()}
    return Measurement(
        shape=shape,
        dtype=jnp.dtype(dtype).name,
        direction=direction,
        ours_us=median_us["ours"],
        plain_us=median_us["plain"],
    )


def _print_table(measurements: Sequence[Measurement]):
    table = Table("shape", "dtype", "direction", "ours us", "plain us", "ratio")
    for column in table.columns[3:]:
        column.justify = "right"
    for m in measurements:
        shape = "x".join(str(size) for size in m.shape)
        times = (f"{m.ours_us:.0f}", f"{m.plain_us:.0f}", f"{m.ratio:.2f}")
        table.add_row(shape, m.dtype, m.direction, *times)
    mean = statistics.geometric_mean(m.ratio for m in measurements)
    table.add_section()
    table.add_row("", "", "geometric mean", "", "", f"{mean:.2f}")
    Console().print(table)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m benchmarks.layer_norm_modulate`; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON, not a table")
    args = parser.parse_args(argv)

    *arguments, _ = _make_inputs((1, 1, 1), jnp.float32)
    lowered = jax.jit(layer_norm_modulate).lower(*arguments).as_text()
    if "jaxload_layer_norm_modulate_fwd" not in lowered:
        sys.exit(
            "benchmarks.layer_norm_modulate: there is no kernel to time for the "
            f"platform {jax.default_backend()!r}; build the extension with `make setup`"
        )

    cases = list(itertools.product(_SHAPES, _DTYPES, _DIRECTIONS))
    # On stderr, so that --json can be piped.
    with Progress(console=Console(stderr=True), transient=True) as progress:
        tracked = progress.track(cases, description="layer_norm_modulate")
        measurements = [_measure(*case) for case in tracked]
    if args.json:
        rows = [dataclasses.asdict(m) | {"ratio": m.ratio} for m in measurements]
        print(json.dumps(rows, indent=2))
    else:
        _print_table(measurements)
    return 0


if __name__ == "__main__":
    sys.exit(main())
