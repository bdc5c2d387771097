"""Plan that a run follows: its own if resumed, one from a file, or a new one."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jaxload import config as config_lib
from jaxload.balance.program import Layout
from jaxload.codecs.codec import is_causal, load_codec
from jaxload.config import Config
from jaxload.console import Console
from jaxload.data.manifest import Manifest
from jaxload.errors import InputError
from jaxload.files import read_json
from jaxload.planning import plan as plan_lib
from jaxload.planning.check import (
    check_dataset,
    check_geometry,
    check_num_groups,
    check_plan_file,
    check_same_plan,
    lay_out,
)
from jaxload.planning.plan import Plan
from jaxload.planning.planner import apply_plan
from jaxload.planning.samples import Samples, prepared_samples, random_samples
from jaxload.runs.dataset import geometry_of, random_shapes
from jaxload.runs.setup import Hardware, make_planner
from jaxload.runs.workdir import RESTORE, WorkDir


def settle_plan(
    config: Config,
    manifest: Manifest,
    hardware: Hardware,
    workdir: WorkDir,
    console: Console,
    *,
    recorded: Plan | None,
    plan_file: Path | None,
) -> Plan:
    """Returns the plan of a new or resumed run.

    A resumed run keeps its `recorded` plan, on any devices. A new run takes programs,
    costs and budgets from `plan_file`, if given, and assigns its own samples to them.
    """
    num_groups = hardware.mesh.replica
    if recorded is not None:
        check_dataset(recorded, manifest)
        if plan_file is not None:
            given = make_plan(config, manifest, hardware, console, plan_file=plan_file)
            check_same_plan(recorded, given, name=f"plan {plan_file}")
        plan = lay_out(recorded, hardware.mesh)
        check_num_groups(plan, num_groups)
        return plan
    if workdir.has_checkpoint:
        raise InputError(
            f"{workdir.plan}: is missing, and its run has a checkpoint; {RESTORE}"
        )
    return make_plan(config, manifest, hardware, console, plan_file=plan_file)


def recorded_plan(workdir: WorkDir) -> Plan | None:
    """Returns the plan of the run that a work directory holds, if any."""
    if not workdir.plan.exists():
        return None
    content = read_json(workdir.plan, remedy=RESTORE)
    return plan_lib.from_dict(
        content, name=str(workdir.plan), remedy="choose another --workdir"
    )


def make_plan(
    config: Config,
    manifest: Manifest | None,
    hardware: Hardware,
    console: Console,
    *,
    plan_file: Path | None,
) -> Plan:
    """Returns the plan of a new run; `settle_plan` also handles resumed runs.

    Args:
        config: Config of the run.
        manifest: Manifest of the dataset; None: random samples replace the dataset.
        hardware: Devices of the run.
        console: Shows progress.
        plan_file: Plan whose programs, costs and budgets are used, while the samples
            are dealt anew; None: makes a new plan.

    Raises:
        InputError: The plan is for another model, mesh or geometry.
    """
    num_groups = hardware.mesh.replica
    if plan_file is None:
        samples = find_samples(config, manifest, hardware.mesh.layout, num_groups)
        planner = make_planner(
            config, samples, hardware, console, num_replicas=num_groups
        )
        return planner.plan()
    plan = read_plan(plan_file)
    check_plan_file(plan, config.model, hardware.mesh, name=f"plan {plan_file}")
    check_geometry(plan, geometry_of(config), name=f"plan {plan_file}")
    check_num_groups(plan, num_groups)
    samples = find_samples(config, manifest, plan.mesh.layout, plan.num_replicas)
    return apply_plan(plan, samples)


def follow_plan(
    config: Config, plan_file: Path, assignments: Sequence[str], console: Console
) -> Config:
    """Returns a config with the fields that a plan was made with; prints the changes.

    Args:
        config: Config of the run.
        plan_file: File of the plan.
        assignments: Values of `--set`, which must agree with the plan.
        console: Shows the fields that the plan changes.

    Raises:
        InputError: The plan was made with another value than `--set` gives.
    """
    plan = read_plan(plan_file)
    train = dataclasses.replace(config.train, accumulate=plan.accumulate)
    followed = dataclasses.replace(config, balance=plan.config, train=train)
    changes = config_lib.differences(config, followed)
    for path, (here, there) in changes.items():
        if any(assignment.startswith(f"{path}=") for assignment in assignments):
            raise InputError(
                f"--set {path}={here}: plan {plan_file} was made with {there}; plan "
                "again with that value, or leave it out"
            )
    if changes:
        taken = ", ".join(f"{path}={there}" for path, (_, there) in changes.items())
        console.say(f"from plan {plan_file}: {taken}")
    return followed


def find_samples(
    config: Config, manifest: Manifest | None, layout: Layout, num_replicas: int
) -> Samples:
    """Counts the samples of a dataset, or random ones if there is none."""
    if manifest is not None:
        return prepared_samples(manifest)
    return random_samples(
        random_shapes(config),
        layout,
        may_cut=is_causal(load_codec(config.data.codec)),
        num_replicas=num_replicas,
    )


def read_plan(path: Path) -> Plan:
    """Reads a plan file that jaxload.plan wrote."""
    remedy = "make one with python -m jaxload.plan --out"
    content = read_json(path, remedy=remedy, kind="plan")
    return plan_lib.from_dict(content, name=f"plan {path}")
