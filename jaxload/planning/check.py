"""Checks that a plan was made for the run that would use it."""

import dataclasses
import math

from jaxload.balance.bucket import Bucket
from jaxload.balance.program import Layout
from jaxload.data.form_rows import FormRows
from jaxload.data.manifest import Manifest
from jaxload.errors import InputError
from jaxload.models import ModelConfig
from jaxload.parallel.config import MeshConfig
from jaxload.planning.model_record import difference
from jaxload.planning.plan import Plan
from jaxload.shapes.geometry import Geometry

_AGAIN = "plan again for this run"


def check_plan_file(
    plan: Plan, model: ModelConfig, mesh: MeshConfig, *, name: str
) -> None:
    """Refuses a plan for another model, or for groups of other mesh sizes."""
    other = difference(plan.model, model)
    if other:
        raise InputError(f"{name}: planned for another model: {other}; {_AGAIN}")
    planned, given = (_group(m) for m in (plan.mesh, mesh))
    if planned != given:
        raise InputError(
            f"{name}: planned for replicas of {planned}, and this run has replicas of "
            f"{given}; {_AGAIN}, or set mesh.fsdp={plan.mesh.fsdp} and "
            f"mesh.tensor={plan.mesh.tensor}"
        )


def check_geometry(plan: Plan, geometry: Geometry, *, name: str) -> None:
    """Refuses a plan for a codec or a model of another geometry."""
    if plan.geometry != geometry:
        raise InputError(
            f"{name}: planned for a codec and model with {plan.geometry}, and the "
            f"config has {geometry}; use the config that the plan was made with"
        )


def check_same_plan(run: Plan, given: Plan, *, name: str) -> None:
    """Refuses a plan file that differs from the plan that a run follows."""
    parts = [(p.buckets, p.patterns, p.rest, p.num_replicas) for p in (run, given)]
    if parts[0] != parts[1]:
        raise InputError(
            f"{name}: differs from the plan that the run began with; leave --plan out "
            "to continue it, or choose another --workdir"
        )


def check_num_groups(plan: Plan, num_groups: int) -> None:
    """Refuses more groups than the plan has replicas, as some would have no work."""
    if num_groups > plan.num_replicas:
        raise InputError(
            f"replicas of the plan: {plan.num_replicas}, groups of devices to run "
            f"them: {num_groups}; use at most {plan.num_replicas} x "
            f"{plan.mesh.devices_per_group} devices, a larger mesh.fsdp, or a new run "
            f"with a plan for {num_groups} replicas"
        )


def check_dataset(plan: Plan, manifest: Manifest) -> None:
    """Refuses a dataset other than the one that a run was planned for."""
    if plan.dataset != manifest.digest():
        raise InputError(
            f"dataset {manifest.directory}: the run was planned for another "
            f"({plan.dataset}, this one is {manifest.digest()}); restore that "
            "dataset, or train in another --workdir"
        )
    forms = tuple(dict.fromkeys(bucket.form for bucket in plan.buckets))
    rows = FormRows(manifest, forms)
    for bucket in plan.buckets:
        found = rows.num_rows(bucket.form)
        if found != bucket.num_samples:
            raise InputError(
                f"dataset {manifest.directory}: the plan of the run has "
                f"{bucket.num_samples} samples of {bucket.form}, this dataset has "
                f"{found}; restore both, or train in another --workdir"
            )


def lay_out(plan: Plan, mesh: MeshConfig) -> Plan:
    """Returns a run's plan for the devices that resume the run.

    The schedule stays the same. Every program is divided among the devices of the new
    groups.

    Raises:
        InputError: A batch cannot be divided evenly; the message names sizes that can.
    """
    if _group(plan.mesh) == _group(mesh):
        return dataclasses.replace(plan, mesh=mesh)
    layout = mesh.layout
    uneven = next((b for b in plan.buckets if b.batch % layout.batch), None)
    if uneven is not None:
        raise InputError(
            f"bucket {uneven}: mesh.fsdp={mesh.fsdp} devices cannot share "
            f"{uneven.batch} samples evenly; {_nearest(plan, mesh)} (a run planned "
            f"with balance.batch_multiple={mesh.fsdp} could use {mesh.fsdp})"
        )
    buckets = tuple(_laid_out(bucket, plan, layout) for bucket in plan.buckets)
    return dataclasses.replace(plan, buckets=buckets, mesh=mesh)


def _laid_out(bucket: Bucket, plan: Plan, layout: Layout) -> Bucket:
    """Returns a bucket with another layout; its bytes become unknown."""
    program = dataclasses.replace(bucket.program, layout=layout)
    return dataclasses.replace(
        bucket,
        program=program,
        cost=plan.cost_model(program, bucket.lengths.mean),
        num_bytes=0,
        over_budget=False,
    )


def _nearest(plan: Plan, mesh: MeshConfig) -> str:
    """Names the nearest fsdp size and number of devices that can run the plan."""
    num_devices = mesh.replica * mesh.devices_per_group
    common = math.gcd(*(bucket.batch for bucket in plan.buckets))
    options = [
        (groups * size * mesh.tensor, size)
        for size in range(1, min(common, num_devices) + 1)
        if common % size == 0
        for groups in range(1, min(plan.num_replicas, num_devices) + 1)
    ]
    used, size = max(
        (option for option in options if option[0] <= num_devices),
        key=lambda option: (option[0], -abs(option[1] - mesh.fsdp)),
    )
    if used == num_devices:
        return f"the nearest that divides every batch is mesh.fsdp={size}"
    return f"use {used} devices with mesh.fsdp={size}"


def _group(mesh: MeshConfig) -> str:
    return f"fsdp={mesh.fsdp} x tensor={mesh.tensor} devices"
