"""Time of layer_norm_modulate against XLA's plain form and an elementwise map.

The map reads and writes as many arrays of the size of x as a pass must: one and one
forward, two and one backward. It shows the limit set by memory bandwidth.
"""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from rich.table import Table

from jaxload.console import Console
from jaxload.ops.layer_norm_modulate import (
    layer_norm_modulate,
    layer_norm_modulate_reference,
)
from jaxload.testing import assert_trees_close

_NUM_ROUNDS = 5
_SECONDS_PER_RUN = 0.25

# Minimum number of arrays of the size of x that are read or written.
_NUM_ARRAYS = {"forward": 2, "backward": 3, "forward + backward": 5}

# Minimum speedup over XLA's plain form; maximum time as a multiple of the map's.
_MIN_SPEEDUP = {"forward": 2.0, "backward": 8.0}
_MAX_OVER_MAP = 1.5

_Op = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
_Arrays = tuple[jax.Array, ...]


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Arguments of the operation, and the gradient of its result."""

    x: jax.Array  # [B, S, D]
    scale: jax.Array  # [B, D]
    shift: jax.Array  # [B, D]
    dy: jax.Array  # [B, S, D]

    @property
    def arguments(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Arguments of the operation, without the gradient."""
        return self.x, self.scale, self.shift


@dataclasses.dataclass(frozen=True)
class Arm:
    """A function to time, called with constants and its own previous result."""

    step: Callable[[Any, Any], Any]
    constants: Any
    state: Any
    steps_per_turn: int = 2
    """Steps per iteration of the loop. With two, each step writes to the buffer that
    the other reads, and XLA need not copy. With one, XLA cannot fuse two steps."""

    compiler_options: dict[str, str] | None = None


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Medians for one shape, dtype and direction, in milliseconds."""

    shape: tuple[int, ...]
    dtype: str
    direction: str
    ours_ms: float
    xla_ms: float
    map_ms: float
    gb_per_s: float

    @property
    def speedup(self) -> float:
        """Time of XLA's plain form divided by ours."""
        return self.xla_ms / self.ours_ms

    @property
    def over_map(self) -> float:
        """Our time divided by that of the map."""
        return self.ours_ms / self.map_ms


def _make_inputs(shape: tuple[int, int, int], dtype: jnp.dtype) -> Inputs:
    x_key, scale_key, shift_key, dy_key = jax.random.split(jax.random.key(0), 4)
    batch, tokens, width = shape
    return Inputs(
        x=jax.random.normal(x_key, shape, dtype),
        # Small, so that values neither grow nor vanish over many steps.
        scale=0.1 * jax.random.normal(scale_key, (batch, width)),
        shift=0.1 * jax.random.normal(shift_key, (batch, width)),
        # As small as the gradient of a mean over tokens, so that sums over tokens stay
        # below 1, where the tolerances hold.
        dy=jax.random.normal(dy_key, shape, dtype) / (4 * tokens**0.5),
    )


# The arms. Each step takes an array of the size of x that the previous step returned,
# and adds to sums over tokens, so that XLA cannot eliminate any work. It also returns
# the array that it took: each of two steps then writes to the buffer that the other
# reads, and XLA need not allocate or copy.


def _add(sums: Sequence[jax.Array], more: Sequence[jax.Array]) -> list[jax.Array]:
    return [a + b for a, b in zip(sums, more, strict=True)]


def _our_forward(inputs: Inputs) -> Arm:
    def step(modulation: tuple[jax.Array, jax.Array], state: _Arrays) -> _Arrays:
        x, _ = state
        return layer_norm_modulate(x, *modulation), x

    return Arm(step, (inputs.scale, inputs.shift), (inputs.x, inputs.dy))


def _plain_forward(inputs: Inputs) -> Arm:
    # Does not return x, because XLA's code is faster if it may write in place.
    def step(modulation: tuple[jax.Array, jax.Array], x: jax.Array) -> jax.Array:
        return layer_norm_modulate_reference(x, *modulation)

    return Arm(step, (inputs.scale, inputs.shift), inputs.x)


def _backward(
    vjp: Callable[[Any, jax.Array], _Arrays], constants: Any, inputs: Inputs
) -> Arm:
    def step(constants: Any, state: _Arrays) -> _Arrays:
        dy, _, *sums = state
        dx, *more = vjp(constants, dy)
        return dx, dy, *_add(sums, more)

    return Arm(step, constants, (inputs.dy, inputs.x, inputs.scale, inputs.shift))


def _our_backward(inputs: Inputs) -> Arm:
    _, vjp = jax.jit(functools.partial(jax.vjp, layer_norm_modulate))(*inputs.arguments)
    return _backward(lambda vjp, dy: vjp(dy), vjp, inputs)


def _plain_backward(inputs: Inputs) -> Arm:
    # Recomputes from x, scale and shift: the residuals would be larger than x.
    def vjp(arguments: _Arrays, dy: jax.Array) -> _Arrays:
        return jax.vjp(layer_norm_modulate_reference, *arguments)[1](dy)

    return _backward(vjp, inputs.arguments, inputs)


def _forward_backward(op: _Op, inputs: Inputs) -> Arm:
    def step(modulation: tuple[jax.Array, jax.Array], state: _Arrays) -> _Arrays:
        x, dy, _, _, *sums = state
        y, vjp = jax.vjp(op, x, *modulation)
        dx, *more = vjp(dy)
        return dx, y, x, dy, *_add(sums, more)

    modulation = (inputs.scale, inputs.shift)
    activations = (inputs.x, inputs.dy)
    return Arm(step, modulation, (*activations, *activations, *modulation))


# The maps run in place: the fastest that memory bandwidth allows.


def _forward_map(inputs: Inputs) -> Arm:
    def step(_: None, x: jax.Array) -> jax.Array:
        return (0.9 * x.astype(jnp.float32) + 0.1).astype(x.dtype)

    return Arm(step, None, inputs.x, steps_per_turn=1)


def _backward_map(inputs: Inputs) -> Arm:
    def step(x: jax.Array, dy: jax.Array) -> jax.Array:
        mixed = 0.1 * x.astype(jnp.float32) + 0.9 * dy.astype(jnp.float32)
        return mixed.astype(x.dtype)

    # Otherwise XLA hoists the product with x out of the loop, into an array that is
    # larger than x if x has 16 bits. For the plain forms, hoisting stays enabled.
    options = {"xla_disable_hlo_passes": "while-loop-invariant-code-motion"}
    return Arm(step, inputs.x, inputs.dy, steps_per_turn=1, compiler_options=options)


def _arms(direction: str, inputs: Inputs) -> dict[str, Arm]:
    """Returns our arm and XLA's for a direction."""
    if direction == "forward":
        return {"ours": _our_forward(inputs), "xla": _plain_forward(inputs)}
    if direction == "backward":
        return {"ours": _our_backward(inputs), "xla": _plain_backward(inputs)}
    return {
        "ours": _forward_backward(layer_norm_modulate, inputs),
        "xla": _forward_backward(layer_norm_modulate_reference, inputs),
    }


# Timing.


def _compile_loop(arm: Arm) -> Callable[[int], float]:
    """Returns a function that runs an arm for some turns, and returns seconds per step.

    All steps are in one program, because on a CPU the page faults of a new array cost
    more than the arithmetic. Each run continues from the last, in the same memory.
    """

    @functools.partial(jax.jit, donate_argnums=2, compiler_options=arm.compiler_options)
    def loop(num_turns: int, constants: Any, state: Any) -> Any:
        def turn(_: int, state: Any) -> Any:
            for _ in range(arm.steps_per_turn):
                state = arm.step(constants, state)
            return state

        return jax.lax.fori_loop(0, num_turns, turn, state)

    state = loop(0, arm.constants, jax.tree.map(jnp.copy, arm.state))

    def run(num_turns: int) -> float:
        nonlocal state
        jax.block_until_ready(state)
        start = time.perf_counter()
        state = jax.block_until_ready(loop(num_turns, arm.constants, state))
        seconds = time.perf_counter() - start
        return seconds / (num_turns * arm.steps_per_turn)

    return run


def _time(arms: dict[str, Arm]) -> dict[str, float]:
    """Returns the median milliseconds of a step of each arm."""
    runs = {name: _compile_loop(arm) for name, arm in arms.items()}
    num_turns = {
        name: max(1, round(_SECONDS_PER_RUN / (run(1) * arms[name].steps_per_turn)))
        for name, run in runs.items()
    }
    seconds = {name: [] for name in arms}
    for i in range(_NUM_ROUNDS):  # Interleaved, so that noise affects all arms.
        for name, run in runs.items():
            if i % 2 == 0 or num_turns[name] > 1:  # Slow arms run less often.
                seconds[name].append(run(num_turns[name]))
    return {name: 1e3 * statistics.median(s) for name, s in seconds.items()}


def _check(inputs: Inputs):
    @functools.partial(jax.jit, static_argnums=0)
    def value_and_grads(op: _Op, dy: jax.Array, *arguments: jax.Array):
        y, vjp = jax.vjp(op, *arguments)
        return y, vjp(dy)

    assert_trees_close(
        value_and_grads(layer_norm_modulate, inputs.dy, *inputs.arguments),
        value_and_grads(layer_norm_modulate_reference, inputs.dy, *inputs.arguments),
    )


def measure(shape: tuple[int, int, int], dtype: str) -> list[Measurement]:
    """Checks the results and times each direction.

    Raises:
        AssertionError: Ours and the plain form disagree.
    """
    inputs = _make_inputs(shape, jnp.dtype(dtype))
    _check(inputs)
    return [_measure(inputs, direction) for direction in _NUM_ARRAYS]


def _measure(inputs: Inputs, direction: str) -> Measurement:
    maps = {"forward": _forward_map(inputs), "backward": _backward_map(inputs)}
    maps = {name: arm for name, arm in maps.items() if name in direction}
    times_ms = _time(_arms(direction, inputs) | maps)
    num_bytes = _NUM_ARRAYS[direction] * inputs.x.nbytes
    return Measurement(
        shape=inputs.x.shape,
        dtype=inputs.x.dtype.name,
        direction=direction,
        ours_ms=times_ms["ours"],
        xla_ms=times_ms["xla"],
        map_ms=sum(times_ms[name] for name in maps),
        gb_per_s=num_bytes / times_ms["ours"] / 1e6,
    )


# Printing.


def _means(measurements: Sequence[Measurement], direction: str) -> tuple[float, float]:
    """Returns the geometric means of `speedup` and `over_map` for a direction."""
    rows = [m for m in measurements if m.direction == direction]
    return (
        statistics.geometric_mean(m.speedup for m in rows),
        statistics.geometric_mean(m.over_map for m in rows),
    )


def targets(measurements: Sequence[Measurement]) -> dict[str, bool]:
    """Returns the targets in words, each with True if these measurements meet it."""
    met = {}
    for direction, wanted in _MIN_SPEEDUP.items():
        speedup, over_map = _means(measurements, direction)
        name = f"{direction}: at least {wanted:g} times as fast as XLA"
        met[name] = speedup >= wanted
        name = f"{direction}: at most {_MAX_OVER_MAP:g} times as long as the map"
        met[name] = over_map <= _MAX_OVER_MAP
    met["no row slower than XLA"] = all(m.speedup >= 1 for m in measurements)
    return met


def print_table(measurements: Sequence[Measurement], console: Console):
    """Prints all rows, their geometric means, and which targets were met."""
    titles = ("ours ms", "XLA ms", "map ms", "XLA / ours", "ours / map", "GB/s")
    table = Table("shape", "dtype", "direction", *titles)
    for column in table.columns[3:]:
        column.justify = "right"
    for m in measurements:
        shape = "x".join(str(size) for size in m.shape)
        times = [f"{ms:.3g}" for ms in (m.ours_ms, m.xla_ms, m.map_ms)]
        ratios = (f"{m.speedup:.2f}", f"{m.over_map:.2f}", f"{m.gb_per_s:.1f}")
        table.add_row(shape, m.dtype, m.direction, *times, *ratios)
    table.add_section()
    for direction in _NUM_ARRAYS:
        speedup, over_map = _means(measurements, direction)
        means = (f"{speedup:.2f}", f"{over_map:.2f}")
        table.add_row("geometric mean", "", direction, "", "", "", *means, "")
    console.print(table)
    for target, is_met in targets(measurements).items():
        console.say(f"{'met' if is_met else 'missed'}: {target}")
