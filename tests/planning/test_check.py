"""Tests that plans for another run are rejected, with the difference named."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxload.balance.program import Layout
from jaxload.config import Config, override_all
from jaxload.console import Console
from jaxload.data.manifest import Manifest
from jaxload.errors import InputError
from jaxload.parallel.config import MeshConfig
from jaxload.planning.check import (
    check_dataset,
    check_num_groups,
    check_plan_file,
    lay_out,
)
from jaxload.planning.plan import Plan, from_dict, to_json
from jaxload.runs.planned import make_plan
from jaxload.runs.setup import Hardware
from jaxload.shapes.shape import Shape

COUNTS = {Shape(1, 4, 4): 21, Shape(2, 4, 4): 15}

MakePlan = Callable[..., Plan]


@pytest.fixture(scope="module")
def plan(plan_of: MakePlan) -> Plan:
    """Returns a plan for two replicas of two devices."""
    mesh = MeshConfig(replica=2, fsdp=2)
    return plan_of(COUNTS, num_replicas=2, mesh=mesh, max_tokens=16)


@pytest.fixture
def plan_in_sixes(plan_of: MakePlan) -> MakePlan:
    """Returns a function that plans batches of 6 and 12 for single-device replicas."""

    def plan_in_sixes(num_replicas: int) -> Plan:
        plan = plan_of(
            dict.fromkeys(COUNTS, 60),
            num_replicas=num_replicas,
            max_tokens=72,
            batch_multiple=6,
            rule="equal-token",
        )
        assert sorted(bucket.batch for bucket in plan.buckets)[0] == 6
        return plan

    return plan_in_sixes


def hardware(**mesh: int) -> Hardware:
    """Returns hardware without a compiler."""
    return Hardware(
        mesh=MeshConfig(**mesh),
        memory_bytes=0,
        target="cpu",
        compiler=None,
        lowering=None,
        is_gpu=False,
    )


def begin(
    config: Config, manifest: Manifest, plan: Plan, path: Path, **mesh: int
) -> Plan:
    """Starts a run with a plan from a file."""
    path.write_text(to_json(plan))
    console = Console(quiet=True)
    return make_plan(config, manifest, hardware(**mesh), console, plan_file=path)


def refusal(function: Callable[[], object]) -> str:
    with pytest.raises(InputError) as error:
        function()
    assert "\n" not in str(error.value)
    return str(error.value)


# --- A plan from a file ---


def test_another_model_is_refused_with_its_field_and_both_values(
    debug_config: Config, debug_manifest: Manifest, plan: Plan, tmp_path: Path
):
    path = tmp_path / "plan.json"
    config = override_all(debug_config, ["model.depth=3"])
    message = refusal(
        lambda: begin(config, debug_manifest, plan, path, replica=2, fsdp=2)
    )
    assert message == (
        f"plan {path}: planned for another model: model.depth is 2 there and 3 here; "
        "plan again for this run"
    )


@pytest.mark.parametrize(
    ("planned", "given", "refused"),
    [
        ("none", "none", False),
        ("full", "auto", False),  # Each program of the plan has its own remat policy.
        ("auto", "full", True),
        ("none", "full", True),
    ],
)
def test_any_planned_remat_is_accepted_if_the_run_has_auto(
    debug_config: Config, plan: Plan, planned: str, given: str, refused: bool
):
    plan = dataclasses.replace(plan, model={**plan.model, "remat": planned})
    model = override_all(debug_config, [f"model.remat={given}"]).model
    if not refused:
        check_plan_file(plan, model, plan.mesh, name="plan x")
        return
    message = refusal(lambda: check_plan_file(plan, model, plan.mesh, name="plan x"))
    assert f"model.remat is {planned!r} there and {given!r} here" in message


def test_other_devices_per_replica_are_refused_with_the_difference(
    debug_config: Config, debug_manifest: Manifest, plan: Plan, tmp_path: Path
):
    path = tmp_path / "plan.json"
    message = refusal(
        lambda: begin(debug_config, debug_manifest, plan, path, replica=2, tensor=2)
    )
    assert "planned for replicas of fsdp=2 x tensor=1 devices" in message
    assert "this run has replicas of fsdp=1 x tensor=2 devices" in message
    assert "or set mesh.fsdp=2 and mesh.tensor=1" in message


def test_more_groups_than_replicas_are_refused(
    debug_config: Config, debug_manifest: Manifest, plan: Plan, tmp_path: Path
):
    path = tmp_path / "plan.json"
    message = refusal(
        lambda: begin(debug_config, debug_manifest, plan, path, replica=3, fsdp=2)
    )
    assert message == (
        "replicas of the plan: 2, groups of devices to run them: 3; use at most 2 x 2 "
        "devices, a larger mesh.fsdp, or a new run with a plan for 3 replicas"
    )


def test_fewer_groups_than_replicas_run_them_in_turn(
    debug_config: Config, debug_manifest: Manifest, plan: Plan, tmp_path: Path
):
    path = tmp_path / "plan.json"
    found = begin(debug_config, debug_manifest, plan, path, replica=1, fsdp=2)
    assert found.num_replicas == 2
    assert found.dataset == debug_manifest.digest()


def test_other_shapes_do_not_replace_planned_shapes(
    debug_config: Config, debug_manifest: Manifest, plan: Plan, tmp_path: Path
):
    # The longest clips have the most content, but not one of the plan's two shapes.
    assert plan.config.max_buckets == 2
    found = begin(
        debug_config, debug_manifest, plan, tmp_path / "plan.json", replica=2, fsdp=2
    )
    assert [b.program for b in found.buckets] == [b.program for b in plan.buckets]
    (left_out,) = found.left_out
    assert (left_out.reason, left_out.count, left_out.examples) == (
        "shape that the plan has no program for",
        12,
        ("3x4x6 (12)",),
    )


# --- A run's own plan ---


def test_a_run_keeps_its_dataset(plan: Plan, debug_manifest: Manifest):
    plan = dataclasses.replace(plan, dataset=debug_manifest.digest())
    check_dataset(plan, debug_manifest)
    other = dataclasses.replace(debug_manifest, fingerprint={"codec": "other"})
    message = refusal(lambda: check_dataset(plan, other))
    assert "the run was planned for another" in message
    assert plan.dataset in message


def test_a_run_is_laid_out_on_another_mesh(plan_of: MakePlan):
    plan = plan_of(COUNTS, num_replicas=2, max_tokens=16, batch_multiple=2)
    compiled = tuple(dataclasses.replace(b, num_bytes=123) for b in plan.buckets)
    plan = dataclasses.replace(plan, buckets=compiled)
    mesh = MeshConfig(replica=1, fsdp=2)
    found = lay_out(plan, mesh)
    assert found.mesh == mesh
    for before, after in zip(plan.buckets, found.buckets, strict=True):
        program = before.program
        assert after.program == dataclasses.replace(program, layout=Layout(batch=2))
        assert after.num_samples == before.num_samples
        assert after.num_bytes == 0  # The bytes on other devices are unknown.
    before, after = plan.schedule(0), found.schedule(0)
    for step in range(4):
        for replica in range(2):
            one, other = (s.micro_batches(step, replica) for s in (before, after))
            assert [m.members.tolist() for m in one] == [
                m.members.tolist() for m in other
            ]
    assert from_dict(json.loads(to_json(found)), name="plan") == found


def test_a_plan_for_equal_groups_keeps_its_programs(plan: Plan):
    mesh = MeshConfig(replica=1, fsdp=2)
    assert lay_out(plan, mesh) == dataclasses.replace(plan, mesh=mesh)


@pytest.mark.parametrize(
    ("num_replicas", "replica", "fsdp", "nearest"), [(4, 2, 4, 2), (4, 1, 12, 6)]
)
def test_batches_that_devices_cannot_share_name_a_mesh_that_works(
    plan_in_sixes: MakePlan, num_replicas: int, replica: int, fsdp: int, nearest: int
):
    plan = plan_in_sixes(num_replicas)
    message = refusal(lambda: lay_out(plan, MeshConfig(replica=replica, fsdp=fsdp)))
    assert f"mesh.fsdp={fsdp} devices cannot share" in message
    assert f"the nearest that divides every batch is mesh.fsdp={nearest} " in message
    assert f"balance.batch_multiple={fsdp} could use {fsdp}" in message
    works = MeshConfig(replica=replica * fsdp // nearest, fsdp=nearest)
    check_num_groups(lay_out(plan, works), works.replica)


def test_if_no_mesh_suits_fewer_devices_are_suggested(plan_in_sixes: MakePlan):
    # fsdp=6 does not divide 8 devices; with fsdp=2, one of 4 groups would have no work.
    plan = plan_in_sixes(3)
    message = refusal(lambda: lay_out(plan, MeshConfig(replica=1, fsdp=8)))
    assert "; use 6 devices with mesh.fsdp=6 (" in message
    check_num_groups(lay_out(plan, MeshConfig(replica=1, fsdp=6)), 1)
