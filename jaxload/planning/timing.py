"""Measures what the micro-steps of a run take on the devices at hand."""

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import ml_dtypes
import numpy as np
from jax.sharding import Mesh
from jax.stages import Compiled
from rich.console import Console

from jaxload.balance.regression import Timing
from jaxload.config import Config
from jaxload.console import phase
from jaxload.errors import InputError
from jaxload.parallel.mesh import local_replicas, place_batch
from jaxload.shapes.shape import Shape
from jaxload.training.programs import init_state, lower_micro_step, make_trainer
from jaxload.training.step import Sums, TrainState

GridPoint = tuple[Shape, int]
"""A shape and a batch size."""

_NUM_LENGTHS = 6
_FRAMES = 32  # About as many as the longest clip of a grid has.
_MIN_TOKENS = 8  # Fewer leave too few lengths for a fit.
_COMPILE_SHARE = 0.8  # Of the budget; the rest is for running.
_MIN_ROUNDS, _MAX_ROUNDS = 5, 40


def default_grid(max_tokens: int) -> list[GridPoint]:
    """Lengths and batch sizes up to so many tokens in a micro-batch.

    Each length has one sample, as many as fit, and a number between. The order is such
    that any beginning of the grid is spread over the whole of it.
    """
    if max_tokens < _MIN_TOKENS:
        raise InputError(
            f"balance.max_tokens={max_tokens}: expected {_MIN_TOKENS} or more, to "
            "measure several lengths; raise it"
        )
    side = max(1, int((max_tokens / _FRAMES) ** 0.5))
    frames = np.geomspace(1, max_tokens // side**2, _NUM_LENGTHS).round().astype(int)
    points = []
    for count in np.unique(frames).tolist():
        shape = Shape(count, 2 * side, 2 * side)
        fits = max_tokens // shape.tokens
        batches = {1, round(fits**0.5), fits}
        points += [(shape, batch) for batch in sorted(batches)]
    return _spread(points)


def measure_steps(
    config: Config,
    mesh: Mesh,
    *,
    grid: Sequence[GridPoint],
    seconds_budget: float,
    console: Console,
) -> list[Timing]:
    """Times the training micro-step of each point: forward, backward and sums.

    Each point is compiled and run once to warm up; none is begun once most of the
    budget is spent. Then all run in turn, round after round, and a point's time is its
    median: a minute in which the machine is slow falls on all of them.
    """
    start = time.perf_counter()
    trainer = make_trainer(config)
    state, sums = init_state(config, trainer, mesh)
    steps: list[_Step] = []
    with phase(console, "compiling", len(grid)) as advance:
        for shape, batch in grid:
            if time.perf_counter() - start > _COMPILE_SHARE * seconds_budget:
                break
            program = lower_micro_step(config, trainer, mesh, shape, batch).compile()
            arrays = _random_batch(config, mesh, shape, batch)
            sums = jax.block_until_ready(program(state, sums, arrays))
            steps.append(_Step(shape, batch, program, arrays, []))
            advance()
    if len(steps) < len(grid):
        console.print(
            f"most of the {seconds_budget:g} s is spent: {len(grid) - len(steps)} of "
            f"{len(grid)} points are left out",
            highlight=False,
            soft_wrap=True,
        )
    with phase(console, "measuring", _MAX_ROUNDS) as advance:
        for count in range(_MAX_ROUNDS if steps else 0):
            spent = time.perf_counter() - start > seconds_budget
            if spent and count >= _MIN_ROUNDS:
                break
            sums = _run_round(steps, state, sums)
            advance()
    return [step.timing() for step in steps]


class _Step(NamedTuple):
    """A point of the grid, ready to run, and what each run took."""

    shape: Shape
    batch: int
    program: Compiled
    arrays: dict[str, jax.Array]
    seconds: list[float]

    def timing(self) -> Timing:
        return Timing(
            batch=self.batch,
            tokens=self.shape.tokens,
            seconds=statistics.median(self.seconds),
        )


def _run_round(steps: Sequence[_Step], state: TrainState, sums: Sums) -> Sums:
    """Runs every step once; the sums are donated from one to the next."""
    for step in steps:
        begin = time.perf_counter()
        sums = jax.block_until_ready(step.program(state, sums, step.arrays))
        step.seconds.append(time.perf_counter() - begin)
    return sums


def _random_batch(
    config: Config, mesh: Mesh, shape: Shape, batch: int
) -> dict[str, jax.Array]:
    """Noise on the devices, in the form of a bucket's micro-batch."""
    model = config.model
    count = batch * len(local_replicas(mesh))
    rng = np.random.default_rng(config.train.seed)
    latent = (count, shape.frames, shape.height, shape.width, model.channels)
    text = (count, model.num_text_tokens, model.text_dim)
    return place_batch(
        {
            "latent": rng.standard_normal(latent).astype(ml_dtypes.bfloat16),
            "text": rng.standard_normal(text).astype(ml_dtypes.bfloat16),
            "id": np.arange(count, dtype=np.int32),
        },
        mesh,
    )


def _spread(points: Sequence[GridPoint]) -> list[GridPoint]:
    """Orders points so that each is as far as can be from all before it.

    Distances are those of the logarithms of length and batch size. The first is the
    shortest alone, so the longest and the largest batch follow.
    """
    places = np.log([(shape.tokens, batch) for shape, batch in points])
    order = [0]
    distance = np.full(len(points), np.inf)
    while len(order) < len(points):
        last = places[order[-1]]
        distance = np.minimum(distance, np.hypot(*(places - last).T))
        order.append(int(distance.argmax()))
    return [points[i] for i in order]
