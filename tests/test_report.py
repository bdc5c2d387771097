"""Tests of jaxload.report and jaxload.progress."""

import io
from pathlib import Path

from PIL import Image
from rich.console import Console

from jaxload.balance.catalogue import BalanceConfig
from jaxload.balance.cost import analytic_cost
from jaxload.balance.plan import make_plan
from jaxload.balance.shape import Shape
from jaxload.progress import phase
from jaxload.report import draw_figure, print_plan
from jaxload.training.telemetry import StepMetrics


def test_the_table_shows_buckets_and_what_was_dropped():
    plan = make_plan(
        {Shape(1, 8, 8): 640, Shape(30, 8, 8): 32, Shape(2, 8, 8): 1},
        config=BalanceConfig(max_tokens=256, max_buckets=2),
        cost_model=analytic_cost(width=64, depth=2, mlp_width=128, num_text_tokens=4),
        num_replicas=1,
        dataset="0",
    )
    out = io.StringIO()
    print_plan(plan, Console(file=out, width=120))
    text = out.getvalue()
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert rows["1x8x8"].split()[1:5] == ["16", "16", "256", "640"]
    assert "over budget at batch 1" in rows["30x8x8"]
    assert "dropped 1 of 2x8x8: not among the 2 shapes with the most content" in text
    assert "kept 672 samples, dropped 1" in text


def row(step: int, bucket: str) -> StepMetrics:
    return StepMetrics(
        step=step,
        epoch=step / 10,
        loss=2.0 / (step + 1),
        learning_rate=1e-3,
        grad_norm=1.0,
        bucket=bucket,
        batch=2,
        tokens=32,
        seconds=0.1,
        data_wait_seconds=0.0,
    )


def test_the_figure_is_drawn_even_of_a_single_step(tmp_path: Path):
    for count in (1, 30):
        path = tmp_path / f"{count}.png"
        draw_figure([row(i, f"{1 + i % 3}x4x4") for i in range(count)], path)
        with Image.open(path) as image:
            assert image.width > image.height > 300


def test_a_phase_ends_with_one_line_in_a_log():
    out = io.StringIO()
    with phase(Console(file=out), "counting", 3) as advance:
        for _ in range(3):
            advance()
    (line,) = out.getvalue().splitlines()
    assert line.startswith("counting: 3/3 in 0.")


def test_a_phase_is_a_bar_on_a_terminal():
    out = io.StringIO()
    with phase(Console(file=out, force_terminal=True), "counting", 3) as advance:
        advance()
    assert "\x1b[" in out.getvalue()
