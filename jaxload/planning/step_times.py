"""Measures the time of a run's micro-steps on the devices of this machine."""

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.stages import Compiled

from jaxload.balance.calibration import Calibration
from jaxload.balance.form import Form, Grid, Length
from jaxload.balance.program import Program, Remat
from jaxload.balance.regression import MIN_POINTS, Timing, regress_costs
from jaxload.config import Config
from jaxload.console import Console, phase
from jaxload.data.batch_spec import batch_spec, random_batch
from jaxload.errors import InputError
from jaxload.parallel.placement import Group
from jaxload.planning.footprint import program_bytes, resident_bytes
from jaxload.planning.form_choice import form_of
from jaxload.planning.memory import remats_to_try
from jaxload.planning.model_record import as_json
from jaxload.shapes.geometry import Geometry
from jaxload.shapes.shape import Shape
from jaxload.training.lowering import Lowering

GridPoint = tuple[Shape, int]
"""A shape, and the number of samples per device."""

_NUM_LENGTHS = 6
_DEFAULT_TOKENS = 32_760  # A clip of 81 frames at 480p.
_FRAMES = 32  # Approximate latent frames of the longest clip of a grid.
_MIN_TOKENS = 8  # With fewer, the grid has too few lengths to regress costs.
_COMPILE_SHARE = 0.8  # Share of the time budget; the rest is for timing.
_MIN_ROUNDS, _MAX_ROUNDS = 5, 40


def default_grid(max_tokens: int, geometry: Geometry) -> list[GridPoint]:
    """Returns lengths and batch sizes of at most `max_tokens` tokens per micro-batch.

    Each length comes with a batch of one sample, the largest batch, and one in between.
    Any prefix of the list is spread over the whole grid.
    """
    if max_tokens < _MIN_TOKENS:
        raise InputError(
            f"balance.max_tokens={max_tokens}: expected {_MIN_TOKENS} or more, to "
            "measure several lengths; raise it"
        )
    side = max(1, int((max_tokens / _FRAMES) ** 0.5))
    frames = np.geomspace(1, max_tokens // side**2, _NUM_LENGTHS).round().astype(int)
    _, rows, columns = geometry.patch
    points = []
    for count in np.unique(frames).tolist():
        shape = Shape(count, rows * side, columns * side, geometry)
        largest = max_tokens // shape.tokens
        batches = {1, round(largest**0.5), largest}
        points += [(shape, batch) for batch in sorted(batches)]
    return _spread(points)


def measure_costs(
    config: Config,
    lowering: Lowering,
    *,
    budget: int,
    seconds: float,
    console: Console,
) -> Calibration:
    """Times micro-steps on this machine and regresses costs from the times.

    Args:
        config: Config of the run.
        lowering: Programs for the devices of this machine.
        budget: Bytes of each device that may be used; 0: not known.
        seconds: Approximate duration of the measurement.
        console: Shows progress.
    """
    max_tokens = config.balance.max_tokens or _DEFAULT_TOKENS
    grid = default_grid(max_tokens, Geometry(patch=config.model.patch))
    longest = max((shape for shape, _ in grid), key=lambda shape: shape.tokens)
    by_length = form_of(config) == "length"
    remat = _fastest_remat(config, lowering, longest, budget)
    timings = measure_steps(
        lowering,
        grid=grid,
        remat=remat,
        by_length=by_length,
        seconds_budget=seconds,
        seed=config.train.seed,
        console=console,
    )
    num_full = sum(timing.mean_length is None for timing in timings)
    if num_full < MIN_POINTS:
        raise InputError(
            f"measuring for {seconds:g} s: {num_full} of {len(grid)} points were "
            f"measured, expected {MIN_POINTS} or more; measure longer "
            "(calibrate --seconds, balance.measure_seconds)"
        )
    placement = lowering.placement
    return regress_costs(
        timings,
        source=f"regressed from {num_full} micro-steps on "
        f"{placement.devices_per_group} x {placement.device_kind}",
        remat=remat,
        model=as_json(config.model),
        devices_per_group=placement.devices_per_group,
    )


def _fastest_remat(
    config: Config, lowering: Lowering, longest: Shape, budget: int
) -> Remat:
    """Returns the fastest remat policy whose longest sample is within the budget."""
    remats = remats_to_try(config.model.remat)
    if not budget:
        return remats[0]
    group = lowering.placement.local_groups[0]
    for remat in remats:
        program = _program(lowering, Grid.of(longest), 1, remat)
        compiled = lowering.micro_step(program, group).compile()
        if program_bytes(compiled) + resident_bytes(lowering, program) <= budget:
            return remat
    raise InputError(
        f"measuring costs: one sample of {longest.tokens:,} tokens needs more than the "
        f"{budget:,} bytes of a device; set balance.max_tokens to the tokens that fit, "
        "or shard the model over more devices (mesh.fsdp)"
    )


def _program(lowering: Lowering, form: Form, samples: int, remat: Remat) -> Program:
    """Returns the program with `samples` samples per device."""
    layout = lowering.placement.layout
    return Program(form=form, batch=samples * layout.batch, layout=layout, remat=remat)


def measure_steps(
    lowering: Lowering,
    *,
    grid: Sequence[GridPoint],
    remat: Remat,
    by_length: bool,
    seconds_budget: float,
    seed: int,
    console: Console,
) -> list[Timing]:
    """Times the training micro-step of each point: forward, backward and sums.

    Each point is compiled and run once to warm up. Points that are not compiled when
    most of the time budget is spent are skipped. Then all points run in turn, in
    rounds, so that a slow minute of the machine affects all points alike. The time of a
    point is the median over the rounds.

    By length, each program runs full rows, and also rows of which half is padding.
    """
    start = time.perf_counter()
    group = lowering.placement.local_groups[0]
    runner = _Runner(lowering, group)
    steps: list[_Step] = []
    num_compiled = 0
    with phase(console, "compiling", len(grid)) as advance:
        for shape, samples in grid:
            if time.perf_counter() - start > _COMPILE_SHARE * seconds_budget:
                break
            form = Length(shape.tokens, shape.geometry) if by_length else Grid.of(shape)
            program = _program(lowering, form, samples, remat)
            compiled = lowering.micro_step(program, group).compile()
            spec = batch_spec(lowering.trainer.model, program)
            for lengths in (None, _half_full(program)) if by_length else (None,):
                arrays = random_batch(spec, seed=seed, lengths=lengths)
                mean = None
                if lengths is not None:
                    mean = float(arrays["grid"].prod(axis=1).mean())
                placed = group.place_batch(arrays)
                steps.append(_Step(program, compiled, placed, mean, []))
                runner.run(steps[-1])
            num_compiled += 1
            advance()
    if num_compiled < len(grid):
        console.say(
            f"most of the {seconds_budget:g} s is spent: {len(grid) - num_compiled} of "
            f"{len(grid)} points are left out"
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
    """A compiled point of the grid with its batch, and the seconds of each run."""

    program: Program
    compiled: Compiled
    arrays: dict[str, jax.Array]
    mean_length: float | None
    """Mean tokens of the samples; None if the rows are full."""

    seconds: list[float]

    def timing(self) -> Timing:
        return Timing(
            batch=self.program.samples_per_device,
            tokens=self.program.tokens,
            seconds=statistics.median(self.seconds),
            mean_length=self.mean_length,
        )


def _half_full(program: Program) -> list[int]:
    """Returns lengths of samples that fill half of the rows of a program."""
    tokens, batch = program.tokens, program.batch
    if batch == 1:
        return [max(1, tokens // 2)]
    return np.linspace(1, tokens, batch).round().astype(int).tolist()


class _Runner:
    """Runs steps on one group; each step donates the gradient sums to the next."""

    def __init__(self, lowering: Lowering, group: Group):
        placement = lowering.placement
        state, sums = lowering.init("noise").compile()()
        self._step = placement.state_view(state.step, group)
        self._model = placement.state_view(state.model, group)
        self._sums = placement.sums_view(sums, group)

    def run(self, step: _Step) -> float:
        """Runs a step to completion and returns its seconds."""
        begin = time.perf_counter()
        sums, _ = step.compiled(self._step, self._model, self._sums, step.arrays)
        self._sums = jax.block_until_ready(sums)
        return time.perf_counter() - begin


def _spread(points: Sequence[GridPoint]) -> list[GridPoint]:
    """Orders points so that each is as far as possible from all earlier ones.

    Distances are between logarithms of length and batch size. The first point is the
    shortest length with one sample, so the longest length and the largest batch follow.
    """
    logs = np.log([(shape.tokens, batch) for shape, batch in points])
    order = [0]
    distance = np.full(len(points), np.inf)
    while len(order) < len(points):
        last = logs[order[-1]]
        distance = np.minimum(distance, np.hypot(*(logs - last).T))
        order.append(int(distance.argmax()))
    return [points[i] for i in order]
