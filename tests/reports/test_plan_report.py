"""Tests of jaxload.reports.plan."""

import dataclasses
import io
from pathlib import Path

import pytest
from PIL import Image

from jaxload.console import Console
from jaxload.parallel.config import MeshConfig
from jaxload.planning.plan import Plan
from jaxload.planning.samples import Samples
from jaxload.reports.plan import draw_plan, format_cost, print_plan
from jaxload.reports.rows import draw_rows, has_rows
from jaxload.shapes.shape import Shape

COUNTS = {Shape(1, 8, 8): 640, Shape(30, 8, 8): 32, Shape(2, 8, 8): 1}


def printed(plan: Plan, *, width: int = 160) -> str:
    out = io.StringIO()
    print_plan(plan, Console(file=out, width=width))
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
    assert text.count(" 123k ") == len(buckets)
    assert "predicted idle share: mixed 1.23%" in text


def test_tokens_in_memory_are_those_of_a_device(plan_of):
    mesh = MeshConfig(replica=1, fsdp=4)
    plan = plan_of(COUNTS, mesh=mesh, rule="equal-token")
    lines = printed(plan).splitlines()
    row = next(line.split() for line in lines if line.split()[:1] == ["1x8x8"])
    # 64 samples of 16 tokens, a quarter of them on each device.
    assert (row[3], row[6]) == ("64", "256")


def test_remat_is_shown_where_there_is_any_and_a_line_has_80_characters(plan_of):
    counts = {Shape(21, 60, 104): 9_999_999, Shape(1, 60, 104): 9_999_999}
    plan = plan_of(counts, max_tokens=32_760)
    assert "remat" not in printed(plan)
    buckets = tuple(
        dataclasses.replace(
            bucket,
            program=dataclasses.replace(bucket.program, remat=remat),
            num_bytes=72_898_123_456,
        )
        for bucket, remat in zip(plan.buckets, ("none", "attention"), strict=True)
    )
    text = printed(dataclasses.replace(plan, buckets=buckets), width=80)
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert rows["1x60x104"][4] == "none"
    assert rows["21x60x104"][1] == "81x480x832"
    assert rows["21x60x104"][4] == "attention"
    assert " 72.9G 9,999,999 " in " ".join(rows["21x60x104"])


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


def test_rows_of_any_length_are_described(plan_of):
    counts = {Shape(1, 12, 8): 31, Shape(2, 6, 8): 9, Shape(3, 6, 8): 7}  # 24, 24, 36.
    plan = plan_of(counts, form="length", max_buckets=1)
    lines = [line.split() for line in printed(plan, width=80).splitlines()]
    header = next(line for line in lines if "grids" in line)
    (row,) = (line for line in lines if line[:2] == ["36", "24"])
    cells = dict(zip(header, row, strict=False))
    assert cells["mean"] == f"{(40 * 24 + 7 * 36) / 47:.0f}"
    assert cells["pad"] == "28%"
    assert cells["grids"] == "3"
    assert (row[-3], row[-2]) == ("31", "16")


def test_a_row_of_a_large_plan_has_80_characters(plan_of):
    counts = {Shape(21, 60, 104): 99_999, Shape(1, 60, 104): 999_999}
    plan = plan_of(counts, max_tokens=65_520, form="length")
    buckets = tuple(
        dataclasses.replace(
            bucket,
            program=dataclasses.replace(bucket.program, remat="attention"),
            num_bytes=72_898_123_456,
        )
        for bucket in plan.buckets
    )
    text = printed(dataclasses.replace(plan, buckets=buckets), width=80)
    rows = [line.split() for line in text.splitlines() if "attention" in line]
    assert len(rows) == 2
    assert all("72.9G" in row for row in rows)


def test_a_micro_batch_is_drawn(plan_of, tmp_path: Path):
    counts = {Shape(1, 12, 8): 31, Shape(2, 6, 8): 9, Shape(3, 6, 8): 7}
    plan = plan_of(counts, form="length", max_buckets=1)
    samples = Samples.of_counts(counts, may_cut=True, dataset="0123456789abcdef")
    assert has_rows(plan)
    assert not has_rows(plan_of(counts))
    draw_rows(plan, samples, tmp_path / "rows.png")
    with Image.open(tmp_path / "rows.png") as image:
        assert image.width > 600
