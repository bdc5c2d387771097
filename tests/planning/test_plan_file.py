"""Tests of jaxload.planning.plan."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from jaxload.balance.form import Form
from jaxload.balance.program import Layout
from jaxload.errors import InputError
from jaxload.parallel.config import MeshConfig
from jaxload.planning.plan import Plan, from_dict, to_json
from jaxload.runs.planned import read_plan
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.shape import Shape

COUNTS = {Shape(1, 8, 8): 64, Shape(5, 8, 8): 32, Shape(9, 8, 8): 1}


@pytest.fixture
def plan(plan_of) -> Plan:
    return plan_of(COUNTS)


@pytest.mark.parametrize("policy", ["lockstep", "mixed"])
def test_round_trip(plan_of, policy):
    mesh = MeshConfig(replica=2, fsdp=2)
    plan = plan_of(COUNTS, policy=policy, num_replicas=2, accumulate=2, mesh=mesh)
    assert bool(plan.patterns or plan.rest) == (policy == "mixed")
    plan = dataclasses.replace(plan, rules=ShapeRules(), idle_shares={"mixed": 0.1})
    content = json.loads(to_json(plan))
    assert from_dict(content, name="plan.json") == plan
    assert content["format"] == 4
    assert content["mesh"] == {"replica": 2, "fsdp": 2, "tensor": 1}
    assert content["target"] == "cpu"
    assert plan.buckets[0].program.layout == Layout(batch=2)
    assert content["model"]["lora_targets"] == ["q", "k", "v", "out"]


def test_work_shares_follow_cost_and_samples(plan: Plan):
    small, large = plan.buckets
    shares = plan.work_shares()
    assert sum(shares) == pytest.approx(1.0)
    per_sample = [b.cost / b.batch for b in (small, large)]
    expected = per_sample[0] * 64 / (per_sample[0] * 64 + per_sample[1] * 32)
    assert shares[0] == pytest.approx(expected)


def test_work_shares_of_a_mixed_plan_add_up_over_its_patterns(plan_of):
    mixed = plan_of(COUNTS, policy="mixed")
    lockstep = plan_of(COUNTS)

    def by_form(plan: Plan) -> dict[Form, float]:
        shares = dict.fromkeys((b.form for b in plan.buckets), 0.0)
        for bucket, share in zip(plan.buckets, plan.work_shares(), strict=True):
            shares[bucket.form] += share
        return shares

    assert by_form(mixed) == pytest.approx(by_form(lockstep), abs=0.05)


def test_names_the_sources_of_its_numbers(plan: Plan):
    content = json.loads(to_json(plan))
    assert content["cost_model"]["source"].startswith("analytic")
    assert content["sources"]["batch"] == "by the rule dual-cost"
    assert content["sources"]["budget"] == "searched"
    assert "256 tokens" in content["sources"]["memory"]
    assert content["left_out"][0]["reason"]
    assert content["buckets"][1]["pixels"] == "17x64x64"


@pytest.mark.parametrize(
    "damage",
    [
        {"buckets": "x"},
        {"buckets": [{}]},
        {"balance": 3},
        {"left_out": None},
        {"patterns": [1]},
        {"mesh": {"ring": 2}},
        {"cost_model": {}},
        {"accumulate": 0},
        {"num_replicas": "x"},
        {"buckets": []},
        {"patterns": [{"counts": [1], "times": 1}]},
    ],
)
def test_rejects_damaged_plans(plan: Plan, damage):
    check_rejected(json.loads(to_json(plan)) | damage)


@pytest.mark.parametrize(
    ("section", "damage"),
    [
        ("balance", {"policy": "nope"}),
        ("balance", {"policy": "mixed"}),
        ("program", {"remat": "fulll"}),
        ("program", {"form": "abc"}),
        ("program", {"layout": {"batch": 0, "ring": 1, "heads": 1}}),
    ],
)
def test_rejects_invalid_values(plan: Plan, section: str, damage):
    content = json.loads(to_json(plan))
    parent = content["buckets"][0] if section == "program" else content
    parent[section] |= damage
    check_rejected(content)


def check_rejected(content: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"^x\.json: .*; plan again"):
        from_dict(content, name="x.json")


@pytest.mark.parametrize("number", [2, 99, None])
def test_rejects_another_format_in_one_line(plan: Plan, tmp_path: Path, number):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(json.loads(to_json(plan)) | {"format": number}))
    message = rf"^plan .*x\.json: expected plan format 4, got {number}; plan again"
    with pytest.raises(InputError, match=message) as error:
        read_plan(path)
    assert "\n" not in str(error.value)


def test_the_message_for_a_missing_file_names_the_command(tmp_path: Path):
    with pytest.raises(InputError, match=r"none\.json: cannot be read .*jaxload\.plan"):
        read_plan(tmp_path / "none.json")
