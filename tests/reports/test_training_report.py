"""Tests of jaxload.reports.training and jaxload.console."""

import io
from pathlib import Path

from PIL import Image
from rich.console import Console

from jaxload.console import phase
from jaxload.reports.training import draw_figure
from jaxload.training.events import StepMetrics


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
