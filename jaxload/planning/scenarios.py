"""Simulation of each policy on the samples of a workload file."""

import dataclasses
import math
from pathlib import Path

from jaxload.balance.config import BalanceConfig, FormChoice
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
from jaxload.files import check_writable
from jaxload.models import family_of, preset
from jaxload.planning.analytic_cost import analytic_cost
from jaxload.planning.classes import Classes, classes_by_grid, classes_by_length
from jaxload.planning.clip_ids import ClipIds
from jaxload.planning.comparison import searching_deal
from jaxload.planning.costs import measured_cost, read_calibration
from jaxload.planning.memory import TokenMemory
from jaxload.planning.samples import (
    Samples,
    fewest_samples,
    shaped_samples,
    surveyed_samples,
)
from jaxload.planning.schedule_file import write_schedule
from jaxload.planning.survey import Survey, survey_manifest
from jaxload.seed import check_seed
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.geometry import Geometry

PUBLISHED = ("equal-token", "dual")
"""Policies of the literature, whose samples all have the shape of their bucket."""

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
    form: FormChoice
    max_buckets: int
    num_steps: int
    seed: int
    max_bad_share: float
    rules: ShapeRules

    @property
    def by_grid(self) -> bool:
        """True if all samples of a program have one shape."""
        if self.form == "auto":
            return family_of(preset(self.model)).form == "grid"
        return self.form == "grid"

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """Samples of a workload file by form, and the scenario to simulate."""

    samples: Samples
    chosen: Classes
    scenario: Scenario


def simulate(
    options: SimulationOptions, schedule_out: Path | None, console: Console
) -> tuple[Workload, list[SimulationResult]]:
    """Chooses forms, simulates every policy and, given a path, writes the schedule.

    By length, the policies of the literature are also simulated by grid, as they were
    published. Returns the workload, and the result of each policy.
    """
    writer = _scheduled_policy(options, schedule_out)
    cost_model = _cost_model(options)  # Before the long work, as it may fail.
    survey = _survey(options, console)
    workload = _workload(options, survey, cost_model, console, by_grid=options.by_grid)
    scenario = workload.scenario
    policies = options.policies
    if not can_lockstep(scenario) and policies != ("lockstep",):
        policies = tuple(p for p in policies if p != "lockstep")
        console.say(
            f"lockstep is left out: no class has {scenario.num_replicas} samples"
        )
    results, schedules = [], {}
    published = [p for p in PUBLISHED if p in policies and not options.by_grid]
    if published:
        by_grid = _workload(options, survey, cost_model, console, by_grid=True)
        for policy in published:
            result = _simulate(policy, by_grid.scenario, options, None, console)
            results.append(dataclasses.replace(result, policy=f"{policy}, grid"))
    for policy in policies:
        if policy in _WITH_SCHEDULE:
            schedules[policy] = _schedule(policy, scenario, console)
        schedule = schedules.get(policy)
        results.append(_simulate(policy, scenario, options, schedule, console))
    if schedule_out is not None and writer is not None:
        ids = ClipIds(
            options.workload,
            options.rules,
            workload.samples.cover.shapes,
            options.geometry,
        )
        write_schedule(
            schedules[writer],
            workload.samples,
            ids,
            schedule_out,
            num_steps=options.num_steps,
            console=console,
        )
    return workload, results


def _simulate(
    policy: str,
    scenario: Scenario,
    options: SimulationOptions,
    schedule: Lockstep | Mixed | None,
    console: Console,
) -> SimulationResult:
    with phase(console, f"simulating {policy}", options.num_steps) as advance:
        return simulate_policy(
            policy,
            scenario,
            num_steps=options.num_steps,
            schedule=schedule,
            on_step=advance,
        )


def _schedule(policy: str, scenario: Scenario, console: Console) -> Lockstep | Mixed:
    if policy == "lockstep":
        return make_schedule(policy, scenario)
    with searching_deal(console) as advance:
        return make_schedule(policy, scenario, advance)


def read_workload(options: SimulationOptions, console: Console) -> Workload:
    """Reads the workload file, and chooses forms for its clips."""
    cost_model = _cost_model(options)
    survey = _survey(options, console)
    return _workload(options, survey, cost_model, console, by_grid=options.by_grid)


def _survey(options: SimulationOptions, console: Console) -> Survey:
    if is_prepared(options.workload):
        raise InputError(
            f"--workload {options.workload}: a prepared dataset, whose sizes are "
            "fixed; python -m jaxload.plan --manifest compares policies on it"
        )
    return survey_manifest(
        options.workload,
        options.rules,
        options.geometry,
        max_bad_share=options.max_bad_share,
        console=console,
    )


def _workload(
    options: SimulationOptions,
    survey: Survey,
    cost_model: CostModel,
    console: Console,
    *,
    by_grid: bool,
) -> Workload:
    """Chooses forms for the clips of a survey."""
    config = BalanceConfig(
        max_tokens=1, policy="mixed", max_buckets=options.max_buckets
    )
    # Fewer samples than one per replica are also enough for the lockstep's classes.
    lockstep = dataclasses.replace(config, policy="lockstep")
    fewest = fewest_samples(config, Layout(), options.num_replicas)
    if by_grid:
        samples = shaped_samples(
            survey,
            options.rules,
            max_shapes=options.max_buckets,
            min_samples=fewest,
            console=console,
        )
    else:
        samples = surveyed_samples(survey, options.rules, may_cut=True, console=console)
    longest = max(shape.tokens for shape in samples.cover.shapes)
    max_tokens = int(options.memory_headroom * longest)
    if by_grid:
        chosen = classes_by_grid(samples, config, min_samples=fewest)
    else:
        chosen = classes_by_length(
            samples,
            config,
            cost_model,
            num_devices=options.num_replicas,
            min_samples=fewest_samples(lockstep, Layout(), options.num_replicas),
            longest_row=max_tokens,
            multiple=1,
        )
    scenario = Scenario(
        classes=chosen.classes,
        config=dataclasses.replace(config, max_tokens=max_tokens),
        cost_model=cost_model,
        limit=TokenMemory(max_tokens=max_tokens, remat=options.remat).limit,
        num_replicas=options.num_replicas,
        accumulate=options.accumulate,
        seed=options.seed,
    )
    return Workload(samples=samples, chosen=chosen, scenario=scenario)


def _cost_model(options: SimulationOptions) -> CostModel:
    analytic = analytic_cost(preset(options.model), skips_padding=True)
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
