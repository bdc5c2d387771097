"""Simulation of each policy on the samples of a workload file."""

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path

from jaxload.balance.config import BalanceConfig
from jaxload.balance.cost import CostModel
from jaxload.balance.mixed import Mixed
from jaxload.balance.program import Layout, Remat
from jaxload.balance.scenario import Scenario, can_lockstep
from jaxload.balance.schedule import Lockstep
from jaxload.balance.simulation import (
    POLICIES,
    SimulationResult,
    make_schedule,
    simulate_policy,
)
from jaxload.console import Console, phase
from jaxload.data.workload import is_prepared
from jaxload.errors import InputError
from jaxload.files import check_writable, write_atomically
from jaxload.models import preset
from jaxload.planning.analytic_cost import analytic_cost
from jaxload.planning.clip_ids import ClipIds
from jaxload.planning.comparison import searching_deal
from jaxload.planning.costs import measured_cost, read_calibration
from jaxload.planning.memory import TokenMemory
from jaxload.planning.samples import surveyed_samples
from jaxload.planning.survey import survey_manifest
from jaxload.seed import check_seed
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.geometry import Geometry
from jaxload.shapes.shape import Shape

_WITH_SCHEDULE = ("mixed", "lockstep")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulationOptions:
    """Workload, costs, replicas and policies of one simulation."""

    workload: Path
    model: str
    remat: Remat
    costs: Path | None
    num_replicas: int
    accumulate: int
    memory_headroom: float
    policies: tuple[str, ...]
    max_buckets: int
    num_steps: int
    seed: int
    max_bad_share: float
    rules: ShapeRules

    @property
    def geometry(self) -> Geometry:
        """Sizes of the model's tokens, with the strides of the built-in codec."""
        return Geometry(patch=preset(self.model).patch)

    def __post_init__(self):
        check_seed(self.seed, f"--seed {self.seed}")
        for name in ("accumulate", "num_steps", "num_replicas", "max_buckets"):
            if getattr(self, name) < 1:
                option = name.removeprefix("num_").replace("_", "-")
                raise InputError(
                    f"--{option} {getattr(self, name)}: expected 1 or more"
                )
        if not 1.0 <= self.memory_headroom < math.inf:
            raise InputError(
                f"--memory-headroom {self.memory_headroom}: expected 1.0 or more, so "
                "that one sample of the longest shape is within the memory budget"
            )
        for policy in self.policies:
            if policy not in POLICIES:
                raise InputError(
                    f"--policies {policy}: expected some of {', '.join(POLICIES)}"
                )


def simulate(
    options: SimulationOptions, schedule_out: Path | None, console: Console
) -> tuple[Scenario, list[SimulationResult]]:
    """Chooses shapes, simulates every policy and, given a path, writes the schedule.

    Returns the scenario, and the result of each policy.
    """
    writer = _scheduled_policy(options, schedule_out)
    scenario = read_scenario(options, console)
    policies = options.policies
    if not can_lockstep(scenario) and policies != ("lockstep",):
        policies = tuple(p for p in policies if p != "lockstep")
        console.say(
            f"lockstep is left out: no shape has {scenario.num_replicas} samples"
        )
    results, schedules = [], {}
    for policy in policies:
        if policy in _WITH_SCHEDULE:
            schedules[policy] = _schedule(policy, scenario, console)
        with phase(console, f"simulating {policy}", options.num_steps) as advance:
            result = simulate_policy(
                policy,
                scenario,
                num_steps=options.num_steps,
                schedule=schedules.get(policy),
                on_step=advance,
            )
        results.append(result)
    if schedule_out is not None and writer is not None:
        _write_schedule(schedules[writer], options, scenario, schedule_out, console)
    return scenario, results


def _schedule(policy: str, scenario: Scenario, console: Console) -> Lockstep | Mixed:
    if policy == "lockstep":
        return make_schedule(policy, scenario)
    with searching_deal(console) as advance:
        return make_schedule(policy, scenario, advance)


def read_scenario(options: SimulationOptions, console: Console) -> Scenario:
    """Reads the workload and chooses shapes for its clips."""
    cost_model = _cost_model(options)  # Before the long work, as it may fail.
    if is_prepared(options.workload):
        raise InputError(
            f"--workload {options.workload}: a prepared dataset, whose shapes are "
            "fixed; python -m jaxload.plan --manifest compares policies on it"
        )
    survey = survey_manifest(
        options.workload,
        options.rules,
        options.geometry,
        max_bad_share=options.max_bad_share,
        console=console,
    )
    config = BalanceConfig(
        max_tokens=1, policy="mixed", max_buckets=options.max_buckets
    )
    chosen = surveyed_samples(
        survey,
        options.rules,
        config,
        Layout(),
        num_replicas=options.num_replicas,
        console=console,
    ).cover
    longest = max(shape.tokens for shape in chosen.shapes)
    max_tokens = int(options.memory_headroom * longest)
    return Scenario(
        cover=chosen,
        config=dataclasses.replace(config, max_tokens=max_tokens),
        cost_model=cost_model,
        limit=TokenMemory(max_tokens=max_tokens, remat=options.remat).limit,
        num_replicas=options.num_replicas,
        accumulate=options.accumulate,
        seed=options.seed,
    )


def _cost_model(options: SimulationOptions) -> CostModel:
    analytic = analytic_cost(preset(options.model))
    if options.costs is not None:
        return measured_cost(read_calibration(options.costs), analytic)
    return analytic


def _scheduled_policy(
    options: SimulationOptions, schedule_out: Path | None
) -> str | None:
    """Returns the policy whose schedule is written; checks that it can be written."""
    if schedule_out is None:
        return None
    for policy in _WITH_SCHEDULE:
        if policy in options.policies:
            check_writable(schedule_out)
            return policy
    raise InputError(
        f"--schedule-out {schedule_out}: expected one of {', '.join(_WITH_SCHEDULE)} "
        f"among --policies, got {', '.join(options.policies)}"
    )


def _write_schedule(
    schedule: Lockstep | Mixed,
    options: SimulationOptions,
    scenario: Scenario,
    path: Path,
    console: Console,
) -> None:
    shapes = scenario.cover.shapes
    ids = ClipIds(options.workload, options.rules, shapes, options.geometry)
    with phase(console, f"writing {path}", options.num_steps) as advance:

        def lines() -> Iterator[str]:
            for step in range(options.num_steps):
                for replica in range(scenario.num_replicas):
                    row = _row(schedule, step, replica, shapes, ids)
                    yield json.dumps(row) + "\n"
                advance()

        write_atomically(path, lines())


def _row(
    schedule: Lockstep | Mixed,
    step: int,
    replica: int,
    shapes: tuple[Shape, ...],
    clip_ids: ClipIds,
) -> dict:
    micro = []
    for micro_batch in schedule.micro_batches(step, replica):
        bucket = schedule.buckets[micro_batch.bucket]
        frames, height, width = bucket.shape.pixels
        ids, starts = clip_ids.look_up(shapes.index(bucket.shape), micro_batch.members)
        micro.append(
            {
                "frames": frames,
                "height": height,
                "width": width,
                "tokens": bucket.shape.tokens,
                "batch": bucket.batch,
                "ids": ids,
                "starts": starts,
            }
        )
    return {"step": step, "replica": replica, "micro": micro}
