"""The plan that a run follows: its own, one from a file, or a new one."""

import dataclasses
import sys
from pathlib import Path

from rich.console import Console

from jaxload.balance.config import BalanceConfig
from jaxload.balance.program import Layout
from jaxload.config import Config
from jaxload.data.manifest import Manifest
from jaxload.files import read_json
from jaxload.planning import plan as plan_lib
from jaxload.planning.check import (
    check_dataset,
    check_groups,
    check_plan_file,
    lay_out,
)
from jaxload.planning.plan import Plan
from jaxload.planning.planner import apply_plan
from jaxload.planning.samples import Samples, prepared_samples, random_samples
from jaxload.runs.setup import Hardware, make_planner
from jaxload.runs.workdir import RESTORE, WorkDir


def settle_plan(
    config: Config,
    manifest: Manifest,
    hardware: Hardware,
    workdir: WorkDir,
    console: Console,
    *,
    plan_file: Path | None,
) -> Plan:
    """Returns the plan of a run.

    A resumed run keeps its plan, on whatever devices. A new one takes programs, costs
    and budgets from a file, if there is one, and deals its own samples.
    """
    num_groups = hardware.mesh.replica
    if workdir.plan.exists():
        content = read_json(workdir.plan, remedy=RESTORE)
        plan = plan_lib.from_dict(content, name=str(workdir.plan))
        check_dataset(plan, manifest)
        plan = lay_out(plan, hardware.mesh)
        check_groups(plan, num_groups)
        return plan
    return make_plan(config, manifest, hardware, console, plan_file=plan_file)


def make_plan(
    config: Config,
    manifest: Manifest | None,
    hardware: Hardware,
    console: Console,
    *,
    plan_file: Path | None,
) -> Plan:
    """Returns the plan of a run that begins.

    Args:
        config: Of the run.
        manifest: The dataset; None: random samples stand in for it.
        hardware: Devices of the run.
        console: Shows progress.
        plan_file: Has programs, costs and budgets; None: they are planned.
    """
    num_groups = hardware.mesh.replica
    if plan_file is None:
        samples = _samples(
            config,
            manifest,
            config.balance,
            hardware.mesh.layout,
            num_groups,
        )
        planner = make_planner(
            config, samples, hardware, console, num_replicas=num_groups
        )
        return planner.plan()
    plan = read_plan(plan_file)
    check_plan_file(plan, config.model, hardware.mesh, name=f"plan {plan_file}")
    check_groups(plan, num_groups)
    # The plan has chosen shapes: all others are counted, and take no planned one's
    # place.
    every_shape = dataclasses.replace(plan.config, max_buckets=sys.maxsize)
    samples = _samples(
        config, manifest, every_shape, plan.mesh.layout, plan.num_replicas
    )
    return apply_plan(plan, samples)


def _samples(
    config: Config,
    manifest: Manifest | None,
    balance: BalanceConfig,
    layout: Layout,
    num_replicas: int,
) -> Samples:
    if manifest is not None:
        return prepared_samples(manifest, balance, layout, num_replicas=num_replicas)
    shapes = config.data.random_shapes
    return random_samples(shapes, balance, layout, num_replicas=num_replicas)


def read_plan(path: Path) -> Plan:
    """Reads a plan that jaxload.plan wrote."""
    content = read_json(path, remedy="make one with python -m jaxload.plan --out")
    return plan_lib.from_dict(content, name=f"plan {path}")
