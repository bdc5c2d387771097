"""Tests of plan files that were damaged, forged or edited by hand."""

import copy
import dataclasses
import functools
import io
import json
import operator
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxload.config import Config
from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.parallel.config import MeshConfig
from jaxload.planning.check import (
    check_geometry,
    check_num_groups,
    check_plan_file,
    check_same_plan,
    lay_out,
)
from jaxload.planning.plan import Plan, to_json
from jaxload.planning.planner import apply_plan
from jaxload.planning.samples import random_samples
from jaxload.reports.plan import print_plan
from jaxload.runs.planned import read_plan
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.shape import Shape
from tests.json_edits import as_bytes, assert_one_line, damaged, edits

COUNTS = {Shape(1, 8, 8): 640, Shape(5, 8, 8): 320, Shape(9, 8, 8): 77}
POLICIES = ("lockstep", "mixed")
MESH = MeshConfig(replica=2)
MAX_READ = 80_000_000  # Bytes; the buffer for the largest JSON file takes most.
NUM_SIMULATED = 10_000  # Most samples of a step that a test draws.


@pytest.fixture(scope="module")
def plans(plan_of: Callable[..., Plan]) -> dict[str, Plan]:
    """Returns a plan of each policy, with a value in every field of its file."""
    return {
        policy: dataclasses.replace(
            plan_of(COUNTS, policy=policy, num_replicas=2, mesh=MESH, max_buckets=3),
            rules=ShapeRules(),
            idle_shares={"mixed": 0.1},
        )
        for policy in POLICIES
    }


@pytest.fixture(scope="module")
def contents(plans: dict[str, Plan]) -> dict[str, Any]:
    return {policy: json.loads(to_json(plan)) for policy, plan in plans.items()}


def use(path: Path, config: Config) -> None:
    """Reads a plan and does with it what `train` and `plan` do before they compile."""
    plan = read_plan(path)
    print_plan(plan, Console(file=io.StringIO(), width=200))
    assert read_plan(path) == plan or plan.kept_content != plan.kept_content
    check_same_plan(plan, plan, name="plan")
    follow(plan)
    for mesh in (plan.mesh, MeshConfig(replica=2, fsdp=3)):
        refusable(lambda mesh=mesh: lay_out(plan, mesh))
    name = f"plan {path}"
    refusable(lambda: check_plan_file(plan, config.model, MESH, name=name))
    refusable(lambda: check_geometry(plan, plan.geometry, name=name))
    refusable(lambda: check_num_groups(plan, 2))
    if plan.num_replicas <= 64:
        refusable(lambda: follow(deal_again(plan)))


def deal_again(plan: Plan) -> Plan:
    """Returns the plan for other numbers of samples."""
    samples = random_samples(
        tuple(COUNTS),
        plan.mesh.layout,
        may_cut=True,
        num_replicas=plan.num_replicas,
    )
    return apply_plan(plan, samples)


def follow(plan: Plan) -> None:
    """Makes a plan's schedule, and draws some of its micro-batches."""
    schedule = plan.schedule(seed=0)
    assert schedule.max_micro_batches >= 1
    schedule.epoch_counts()
    schedule.carried(3)
    for step in (0, 1, 10**6):
        schedule.epoch(step)
        if schedule.num_replicas > 64 or schedule.max_micro_batches > 2_000:
            continue
        counts = schedule.step_counts(step)
        assert counts.shape == (schedule.num_replicas, len(plan.buckets))
        batches = [bucket.batch for bucket in plan.buckets]
        if int((counts @ batches).sum()) > NUM_SIMULATED:
            continue
        for replica in range(schedule.num_replicas):
            for micro_batch in schedule.micro_batches(step, replica):
                bucket = plan.buckets[micro_batch.bucket]
                assert len(micro_batch.members) == bucket.batch
                assert micro_batch.members.min() >= 0
                assert micro_batch.members.max() < bucket.num_samples


def refusable(function: Callable[[], object]) -> None:
    """Calls a function that may refuse its arguments in one line."""
    try:
        function()
    except InputError as error:
        assert_one_line(error)


def check(path: Path, config: Config) -> None:
    """Asserts that a plan can be used, or is refused in one line that names it."""
    try:
        use(path, config)
    except InputError as error:
        assert_one_line(error, f"plan {path}: ")


@pytest.mark.fuzz
@pytest.mark.parametrize("policy", POLICIES)
@given(data=st.data())
def test_an_edited_plan_can_be_used_or_is_one_line(
    contents: dict[str, Any],
    debug_config: Config,
    tmp_path: Path,
    policy: str,
    data: st.DataObject,
):
    path = tmp_path / "plan.json"
    path.write_bytes(as_bytes(data.draw(edits(contents[policy]))))
    check(path, debug_config)


@pytest.mark.fuzz
@given(data=st.data())
def test_a_damaged_plan_can_be_used_or_is_one_line(
    plans: dict[str, Plan], debug_config: Config, tmp_path: Path, data: st.DataObject
):
    path = tmp_path / "plan.json"
    path.write_bytes(data.draw(damaged(to_json(plans["mixed"]).encode())))
    check(path, debug_config)


FORGED: list[tuple[str, str, Any, str]] = [
    ("mixed", "patterns.0.counts.0", 2**60, "patterns.0.counts=1152921504606846976"),
    ("mixed", "patterns.0.counts.0", -1, "patterns.0.counts=-1: expected 0 to 1,048"),
    ("mixed", "patterns.0.times", -1, "patterns.0.times=-1: expected 1 to"),
    ("mixed", "patterns.0.times", 10**9, "patterns.0: expected at most the 640 sam"),
    ("mixed", "rest.0.times", 2, "rest.0.times=2: expected 1 to 1"),
    ("mixed", "budget", 1e-300, "budget=1e-300: expected about the cost of a micro-"),
    ("mixed", "buckets.0.program.batch", 2**40, "buckets.0.program.batch=1099511627"),
    ("mixed", "buckets.0.program.batch", 0, "buckets.0.program.batch=0: expected 1 to"),
    ("lockstep", "buckets.0.num_samples", 0, "buckets.0.num_samples=0: expected 1 to"),
    ("lockstep", "buckets.0.num_samples", 13, "num_images=640: expected 0 to 13"),
    ("lockstep", "buckets.0.cost", 0, "buckets.0.cost=0.0: expected 1e-100 to 1e+100"),
    ("lockstep", "buckets.0.cost", "1", "buckets.0.cost='1': expected float"),
    ("lockstep", "buckets.0.over_budget", 1, "over_budget=1: expected bool"),
    ("lockstep", "num_replicas", 2**40, "num_replicas=1099511627776: expected 1 to"),
    ("lockstep", "accumulate", 2**63, "accumulate=9223372036854775808: expected int"),
    ("lockstep", "mesh.fsdp", 2, "buckets: expected the layout 2x1x1 of mesh.fsdp=2"),
    ("lockstep", "sources.memory", None, "sources.memory=None: expected str"),
    ("lockstep", "kept_content", float("nan"), "kept_content=nan: expected float"),
    ("lockstep", "left_out", 10**5 * [{}], "left_out.0: expected a value for reason"),
    ("lockstep", "balance.rule", 10**6 * "x", "balance.rule='xxx"),
]


@pytest.mark.parametrize(
    ("policy", "place", "value", "message"), FORGED, ids=[row[1] for row in FORGED]
)
def test_an_impossible_value_is_refused_by_name_in_little_memory(
    contents: dict[str, Any],
    tmp_path: Path,
    policy: str,
    place: str,
    value: Any,
    message: str,
):
    content = copy.deepcopy(contents[policy])
    *parents, name = [int(k) if k.isdecimal() else k for k in place.split(".")]
    functools.reduce(operator.getitem, parents, content)[name] = value
    path = tmp_path / "plan.json"
    path.write_bytes(as_bytes(content))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=re.escape(message)) as error:
            read_plan(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MAX_READ + 20 * path.stat().st_size
    assert_one_line(error.value, f"plan {path}: ", "; plan again with this version")


@pytest.mark.parametrize("place", [0, 1])
def test_a_bucket_is_listed_once(contents: dict[str, Any], tmp_path: Path, place: int):
    content = copy.deepcopy(contents["lockstep"])
    content["buckets"] += [copy.deepcopy(content["buckets"][0])]
    content["buckets"][-1]["program"]["batch"] += place
    path = tmp_path / "plan.json"
    path.write_bytes(as_bytes(content))
    with pytest.raises(InputError, match=r"buckets: expected each (program|form) on"):
        read_plan(path)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("count", "num_replicas", "max_tokens"),
    [(10**9, 4_096, 1 << 20), (3 * 10**6, 2**16, 256), (40, 2, 1 << 30)],
)
def test_a_plan_of_any_size_is_within_the_limits(
    plan_of: Callable[..., Plan],
    tmp_path: Path,
    policy: str,
    count: int,
    num_replicas: int,
    max_tokens: int,
):
    plan = plan_of(
        {shape: count // (i + 1) for i, shape in enumerate(COUNTS)},
        policy=policy,
        num_replicas=num_replicas,
        max_tokens=max_tokens,
        max_buckets=3,
    )
    path = tmp_path / "plan.json"
    path.write_text(to_json(plan))
    assert read_plan(path) == plan
