"""From a workload file to what each policy does with it."""

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from jaxload.balance.architecture import Remat, analytic_cost
from jaxload.balance.batch_sizes import BalanceConfig
from jaxload.balance.cost import CostModel
from jaxload.balance.mixed import Mixed
from jaxload.balance.scenario import Setting, can_lockstep
from jaxload.balance.schedule import Lockstep
from jaxload.balance.simulation import POLICIES, Played, make_schedule, play
from jaxload.console import phase
from jaxload.data.workload import is_prepared
from jaxload.errors import InputError
from jaxload.files import check_writable, write_atomically
from jaxload.models import preset
from jaxload.planning.analytic_cost import architecture_of
from jaxload.planning.planner import cover_survey, read_fit, token_limit
from jaxload.planning.survey import sample_ids, survey_manifest
from jaxload.shapes.clips import ShapeRules

_WITH_SCHEDULE = ("mixed", "lockstep")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """What is simulated."""

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

    def __post_init__(self):
        if self.seed < 0:
            raise InputError(f"--seed {self.seed}: expected 0 or more")
        for name in ("accumulate", "num_steps", "num_replicas", "max_buckets"):
            if getattr(self, name) < 1:
                option = name.removeprefix("num_").replace("_", "-")
                raise InputError(
                    f"--{option} {getattr(self, name)}: expected 1 or more"
                )
        if not 1.0 <= self.memory_headroom < math.inf:
            raise InputError(
                f"--memory-headroom {self.memory_headroom}: expected 1.0 or more; the "
                "longest shape has to fit"
            )
        for policy in self.policies:
            if policy not in POLICIES:
                raise InputError(
                    f"--policies {policy}: expected some of {', '.join(POLICIES)}"
                )


def simulate(
    question: Question, schedule_out: Path | None, console: Console
) -> tuple[Setting, list[Played]]:
    """Chooses shapes, plays every policy and writes the schedule if asked to."""
    writer = _scheduled_policy(question, schedule_out)
    setting = read_setting(question, console)
    policies = question.policies
    if not can_lockstep(setting) and policies != ("lockstep",):
        policies = tuple(p for p in policies if p != "lockstep")
        console.print(
            f"lockstep is left out: no shape has {setting.num_replicas} samples",
            highlight=False,
        )
    played, schedules = [], {}
    with phase(console, "simulating", len(policies)) as advance:
        for policy in policies:
            if policy in _WITH_SCHEDULE:
                schedules[policy] = make_schedule(policy, setting)
            played.append(
                play(
                    policy,
                    setting,
                    num_steps=question.num_steps,
                    schedule=schedules.get(policy),
                )
            )
            advance()
    if schedule_out is not None and writer is not None:
        _write_schedule(schedules[writer], question, setting, schedule_out, console)
    return setting, played


def read_setting(question: Question, console: Console) -> Setting:
    """Reads the workload and chooses its shapes."""
    if is_prepared(question.workload):
        raise InputError(
            f"--workload {question.workload}: a prepared data set, whose shapes are "
            "fixed; python -m jaxload.plan --manifest compares policies on it"
        )
    survey = survey_manifest(
        question.workload,
        question.rules,
        max_bad_share=question.max_bad_share,
        console=console,
    )
    config = BalanceConfig(
        max_tokens=1, policy="mixed", max_buckets=question.max_buckets
    )
    chosen = cover_survey(
        survey, question.rules, config, num_replicas=question.num_replicas
    )
    longest = max(shape.tokens for shape in chosen.shapes)
    max_tokens = int(question.memory_headroom * longest)
    return Setting(
        cover=chosen,
        config=dataclasses.replace(config, max_tokens=max_tokens),
        cost_model=_cost_model(question),
        max_batch=token_limit(max_tokens).max_batch,
        num_replicas=question.num_replicas,
        accumulate=question.accumulate,
        seed=question.seed,
    )


def _cost_model(question: Question) -> CostModel:
    if question.costs is not None:
        return read_fit(question.costs).cost
    architecture = architecture_of(preset(question.model))
    return analytic_cost(architecture, remat=question.remat)


def _scheduled_policy(question: Question, schedule_out: Path | None) -> str | None:
    """The policy whose schedule is written; found out before anything is computed."""
    if schedule_out is None:
        return None
    for policy in _WITH_SCHEDULE:
        if policy in question.policies:
            check_writable(schedule_out)
            return policy
    raise InputError(
        f"--schedule-out {schedule_out}: expected one of {', '.join(_WITH_SCHEDULE)} "
        f"among --policies, got {', '.join(question.policies)}"
    )


def _write_schedule(
    schedule: Lockstep | Mixed,
    question: Question,
    setting: Setting,
    path: Path,
    console: Console,
) -> None:
    ids = sample_ids(question.workload, question.rules, setting.cover.shapes)
    by_shape = dict(zip(setting.cover.shapes, ids, strict=True))
    with phase(console, f"writing {path}", question.num_steps) as advance:

        def lines() -> Iterator[str]:
            for step in range(question.num_steps):
                for replica in range(setting.num_replicas):
                    yield json.dumps(_row(schedule, step, replica, by_shape)) + "\n"
                advance()

        write_atomically(path, lines())


def _row(schedule: Lockstep | Mixed, step: int, replica: int, ids: dict) -> dict:
    micro = []
    for micro_batch in schedule.micro_batches(step, replica):
        bucket = schedule.buckets[micro_batch.bucket]
        frames, height, width = bucket.shape.pixels
        micro.append(
            {
                "frames": frames,
                "height": height,
                "width": width,
                "tokens": bucket.shape.tokens,
                "batch": bucket.batch,
                "ids": [ids[bucket.shape][m] for m in micro_batch.members.tolist()],
            }
        )
    return {"step": step, "replica": replica, "micro": micro}
