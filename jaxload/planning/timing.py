"""Measures what the micro-steps of a run take on the devices at hand."""

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.stages import Compiled
from rich.console import Console

from jaxload.balance.program import Grid, Program, Remat
from jaxload.balance.regression import MIN_POINTS, CostFit, Timing, fit_costs
from jaxload.config import Config
from jaxload.console import phase
from jaxload.data.batch_spec import batch_spec, random_batch
from jaxload.errors import InputError
from jaxload.parallel.placement import Group
from jaxload.planning.footprint import program_bytes, resident_bytes
from jaxload.planning.memory import remats_to_try
from jaxload.planning.model_record import as_json
from jaxload.shapes.shape import Shape
from jaxload.training.lowering import Lowering

GridPoint = tuple[Shape, int]
"""A shape, and samples of it on each device."""

_NUM_LENGTHS = 6
_DEFAULT_TOKENS = 32_760  # A clip of 81 frames at 480p.
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


def measure_costs(
    config: Config,
    lowering: Lowering,
    *,
    budget: int,
    seconds: float,
    console: Console,
) -> CostFit:
    """Times micro-steps here and regresses costs from them.

    Args:
        config: Of the run.
        lowering: Programs for the devices of this machine.
        budget: Bytes of each device that may be used; 0: not known.
        seconds: About how long to measure.
        console: Shows progress.
    """
    grid = default_grid(config.balance.max_tokens or _DEFAULT_TOKENS)
    longest = max((shape for shape, _ in grid), key=lambda shape: shape.tokens)
    remat = _fastest_remat(config, lowering, longest, budget)
    timings = measure_steps(
        lowering,
        grid=grid,
        remat=remat,
        seconds_budget=seconds,
        seed=config.train.seed,
        console=console,
    )
    if len(timings) < MIN_POINTS:
        raise InputError(
            f"{seconds:g} s to measure in: {len(timings)} of {len(grid)} points were "
            f"measured in that time, expected {MIN_POINTS} or more; give it longer "
            "(calibrate --seconds, balance.measure_seconds)"
        )
    placement = lowering.placement
    return fit_costs(
        timings,
        source=f"regressed from {len(timings)} micro-steps on "
        f"{placement.devices_per_group} x {placement.device_kind}",
        remat=remat,
        model=as_json(config.model),
        devices_per_group=placement.devices_per_group,
    )


def _fastest_remat(
    config: Config, lowering: Lowering, longest: Shape, budget: int
) -> Remat:
    """Returns the fastest policy whose longest micro-step is within the budget."""
    remats = remats_to_try(config.model.remat)
    if not budget:
        return remats[0]
    group = lowering.placement.local_groups[0]
    for remat in remats:
        program = _program(lowering, longest, 1, remat)
        compiled = lowering.micro_step(program, group).compile()
        if program_bytes(compiled) + resident_bytes(lowering, program) <= budget:
            return remat
    raise InputError(
        f"measuring costs: one sample of {longest.tokens:,} tokens needs more than the "
        f"{budget:,} bytes of a device; set balance.max_tokens to the tokens that fit, "
        "or shard the model over more devices (mesh.fsdp)"
    )


def _program(lowering: Lowering, shape: Shape, samples: int, remat: Remat) -> Program:
    """Returns the program of so many samples on each device."""
    layout = lowering.placement.layout
    return Program(
        form=Grid.of(shape), batch=samples * layout.batch, layout=layout, remat=remat
    )


def measure_steps(
    lowering: Lowering,
    *,
    grid: Sequence[GridPoint],
    remat: Remat,
    seconds_budget: float,
    seed: int,
    console: Console,
) -> list[Timing]:
    """Times the training micro-step of each point: forward, backward and sums.

    Each point is compiled and run once to warm up; none is begun once most of the
    budget is spent. Then all run in turn, round after round, and a point's time is its
    median: a minute in which the machine is slow falls on all of them.
    """
    start = time.perf_counter()
    group = lowering.placement.local_groups[0]
    runner = _Runner(lowering, group)
    steps: list[_Step] = []
    with phase(console, "compiling", len(grid)) as advance:
        for shape, samples in grid:
            if time.perf_counter() - start > _COMPILE_SHARE * seconds_budget:
                break
            program = _program(lowering, shape, samples, remat)
            arrays = random_batch(
                batch_spec(lowering.trainer.model, program), seed=seed
            )
            compiled = lowering.micro_step(program, group).compile()
            steps.append(_Step(program, compiled, group.place_batch(arrays), []))
            runner.run(steps[-1])
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
            for step in steps:
                step.seconds.append(runner.run(step))
            advance()
    return [step.timing() for step in steps]


class _Step(NamedTuple):
    """A point of the grid, ready to run, and the seconds of each run."""

    program: Program
    compiled: Compiled
    arrays: dict[str, jax.Array]
    seconds: list[float]

    def timing(self) -> Timing:
        return Timing(
            batch=self.program.samples_per_device,
            tokens=self.program.tokens,
            seconds=statistics.median(self.seconds),
        )


class _Runner:
    """Holds the state of one group; sums are donated from one step to the next."""

    def __init__(self, lowering: Lowering, group: Group):
        placement = lowering.placement
        state, sums = lowering.init("noise").compile()()
        self._step = placement.state_view(state.step, group)
        self._model = placement.state_view(state.model, group)
        self._sums = placement.sums_view(sums, group)

    def run(self, step: _Step) -> float:
        """Runs a step to its end; returns its seconds."""
        begin = time.perf_counter()
        sums, _ = step.compiled(self._step, self._model, self._sums, step.arrays)
        self._sums = jax.block_until_ready(sums)
        return time.perf_counter() - begin


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
