"""Tests of jaxload.reports.plan."""

import dataclasses
import io
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from jaxload.planning.plan import Plan
from jaxload.reports.plan import draw_plan, format_cost, print_plan
from jaxload.shapes.shape import Shape

COUNTS = {Shape(1, 8, 8): 640, Shape(30, 8, 8): 32, Shape(2, 8, 8): 1}


def printed(plan: Plan) -> str:
    out = io.StringIO()
    print_plan(plan, Console(file=out, width=160))
    return out.getvalue()


def test_the_table_shows_buckets_and_what_is_left_out(plan_of):
    text = printed(plan_of(COUNTS))
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert rows["1x8x8"].split()[1:4] == ["1x64x64", "16", "16"]
    assert rows["30x8x8"].split()[-1] == "over"
    assert "over budget at batch 1: 30x8x8; raise the budget, shard" in text
    assert "left out 1: not among the 2 shapes with the most content" in text
    assert "such as 2x8x8 (1)" in text
    assert "kept 672 samples" in text
    assert "256 tokens in a micro-batch" in text


def test_bytes_and_idle_shares_are_shown_where_they_are_known(plan_of):
    plan = plan_of(COUNTS)
    assert "predicted idle share" not in printed(plan)
    buckets = tuple(
        dataclasses.replace(bucket, num_bytes=123_456) for bucket in plan.buckets
    )
    text = printed(
        dataclasses.replace(plan, buckets=buckets, idle_shares={"mixed": 0.0123})
    )
    assert "123,456" in text
    assert "predicted idle share: mixed 1.23%" in text


def test_a_given_rule_is_named(plan_of):
    assert "by the rule dual, p = 1." in printed(plan_of(COUNTS, rule="dual"))
    assert "compute budget" not in printed(plan_of(COUNTS, rule="equal-token"))


@pytest.mark.parametrize(
    ("cost", "unit", "text"),
    [(4.2e9, "FLOP", "4.2 G"), (0.0123, "s", "0.0123"), (12.0, "FLOP", "12")],
)
def test_costs_have_three_digits(cost, unit, text):
    assert format_cost(cost, unit) == text


def test_the_figure_is_drawn(plan_of, tmp_path: Path):
    draw_plan(plan_of(COUNTS), tmp_path / "plan.png")
    with Image.open(tmp_path / "plan.png") as image:
        assert image.width > 600
