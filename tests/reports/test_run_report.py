"""Tests of jaxload.reports.run and jaxload.console."""

import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from jaxload.console import Console, phase
from jaxload.reports.run import draw_figure
from jaxload.training.events import Event


def step_event(step: int, **values) -> Event:
    return Event("step", step, {"loss": 2.0 / (step + 1), **values})


def timed_event(step: int, bucket: str) -> Event:
    return step_event(step, bucket=bucket, batch=2, tokens=32, seconds=0.1)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Draws events; returns both plots as they were saved."""
    figures: list[Figure] = []
    save = Figure.savefig

    def remember(figure: Figure, *args, **kwargs) -> None:
        figures.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", remember)

    def draw(events: list[Event]) -> list[Axes]:
        draw_figure(events, tmp_path / "figure.png")
        return figures[-1].axes

    return draw


def labels(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def test_the_figure_is_drawn_even_of_a_single_step(tmp_path: Path):
    for count in (1, 30):
        path = tmp_path / f"{count}.png"
        draw_figure([timed_event(i, f"{1 + i % 3}x4x4") for i in range(count)], path)
        with Image.open(path) as image:
            assert image.width > image.height > 300


def test_the_figure_shows_losses_and_step_times(drawn):
    left, right = drawn([timed_event(i, f"{1 + i % 2}x4x4") for i in range(40)])
    np.testing.assert_array_equal(left.lines[0].get_xdata(), range(40))
    np.testing.assert_allclose(
        left.lines[0].get_ydata(), 2.0 / np.arange(1, 41), rtol=1e-12
    )
    assert labels(right) == ["1x4x4  x2", "2x4x4  x2"]


def test_buckets_are_sorted_by_tokens_and_the_rarest_left_out(drawn):
    events = [
        step_event(i, bucket=f"{i % 18}x1x1", batch=1, tokens=90 - i % 18, seconds=1)
        for i in range(34)  # Buckets 16 and 17 once, the others twice.
    ]
    _, right = drawn(events)
    assert labels(right) == [f"{i}x1x1  x1" for i in reversed(range(16))]
    assert "2 rarer ones left out" in right.get_title()


def test_other_events_are_not_drawn(drawn):
    events = [
        Event("evaluation", 0, {"loss": 9.0, "bucket": "9x9x9", "seconds": 1.0}),
        timed_event(0, "1x4x4"),
        Event("evaluation", 1),
    ]
    left, right = drawn(events)
    np.testing.assert_array_equal(left.lines[0].get_ydata(), [2.0])
    assert labels(right) == ["1x4x4  x2"]


def test_steps_without_a_value_are_left_out_of_its_plot(drawn):
    events = [
        timed_event(0, "1x4x4"),
        step_event(1),
        Event("step", 2, {"bucket": "2x4x4", "seconds": 0.1}),
        step_event(3, loss=None, bucket=None, seconds=0.1),
    ]
    left, right = drawn(events)
    np.testing.assert_array_equal(left.lines[0].get_xdata(), [0, 1])
    assert labels(right) == ["2x4x4", "1x4x4  x2"]


def test_a_run_without_steps_has_an_empty_figure(drawn):
    left, right = drawn([])
    assert not left.lines
    assert not right.lines


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
