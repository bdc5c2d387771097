"""Tests of jaxload.balance.plan."""

import json

import pytest

from jaxload.balance.catalogue import BalanceConfig
from jaxload.balance.cost import analytic_cost
from jaxload.balance.plan import Plan, from_dict, make_plan, to_json
from jaxload.balance.shape import Shape
from jaxload.errors import InputError


@pytest.fixture
def plan() -> Plan:
    return make_plan(
        {Shape(1, 8, 8): 64, Shape(5, 8, 8): 32, Shape(9, 8, 8): 1},
        config=BalanceConfig(max_tokens=256, max_buckets=2),
        cost_model=analytic_cost(width=64, depth=2, mlp_width=128, num_text_tokens=4),
        num_replicas=1,
        dataset="0123456789abcdef",
    )


def test_round_trip(plan: Plan):
    assert from_dict(json.loads(to_json(plan)), name="plan.json") == plan


def test_work_shares_follow_cost_and_samples(plan: Plan):
    small, large = plan.buckets
    shares = plan.work_shares()
    assert sum(shares) == pytest.approx(1.0)
    per_sample = [b.cost / b.batch for b in (small, large)]
    expected = per_sample[0] * 64 / (per_sample[0] * 64 + per_sample[1] * 32)
    assert shares[0] == pytest.approx(expected)


def test_says_where_its_numbers_come_from(plan: Plan):
    content = json.loads(to_json(plan))
    assert content["cost_model"]["source"].startswith("analytic")
    assert content["budget"]["rule"] == "dual-cost"
    assert content["dropped"][0]["reason"]


@pytest.mark.parametrize("damage", [{"buckets": "x"}, {"budget": 3}, {"dropped": None}])
def test_rejects_what_is_no_plan(plan: Plan, damage):
    content = json.loads(to_json(plan)) | damage
    with pytest.raises(InputError, match=r"x\.json: not a plan"):
        from_dict(content, name="x.json")


def test_rejects_another_format(plan: Plan):
    content = json.loads(to_json(plan)) | {"format": 99}
    with pytest.raises(InputError, match="expected plan format 1, got 99"):
        from_dict(content, name="x.json")
