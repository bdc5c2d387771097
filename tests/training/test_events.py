"""Tests of jaxload.training.events."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from jaxload.errors import InputError
from jaxload.training.events import (
    MetricsFile,
    ProgressLine,
    StepMetrics,
    read_metrics,
)


def row(step: int) -> StepMetrics:
    return StepMetrics(
        step=step,
        epoch=step / 10,
        loss=1.0 / (step + 1),
        learning_rate=1e-3,
        grad_norm=0.5,
        bucket="1x4x4",
        batch=4,
        tokens=16,
        seconds=0.25,
        data_wait_seconds=0.0,
    )


def write(path: Path, steps: range, *, start: int) -> None:
    kept = [row for row in read_metrics(path) if row.step < start]
    metrics = MetricsFile(path, kept)
    for step in steps:
        metrics.append(row(step))
    metrics.close()


def test_one_object_a_line(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    write(path, range(3), start=0)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [r["step"] for r in rows] == [0, 1, 2]
    assert set(rows[0]) >= {"loss", "bucket", "batch", "tokens", "seconds"}


def test_a_resume_drops_the_steps_that_run_again(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    write(path, range(6), start=0)
    write(path, range(4, 8), start=4)
    assert [r.step for r in read_metrics(path)] == list(range(8))


def test_a_torn_last_line_is_left_out(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    write(path, range(3), start=0)
    path.write_text(path.read_text()[:-20])
    assert [r.step for r in read_metrics(path)] == [0, 1]
    write(path, range(2, 3), start=2)
    assert read_metrics(path) == [row(step) for step in range(3)]


def show(console: Console, steps: range) -> None:
    with ProgressLine(console, start=0, num_steps=len(steps), every=4) as line:
        for step in steps:
            line.update(row(step))


def test_a_log_gets_a_line_at_an_interval():
    out = io.StringIO()
    show(Console(file=out, width=200), range(10))
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["4/10", "8/10", "10/10"]
    for part in (
        "loss 0.2500",
        "lr 1.0e-03",
        "grad 0.50",
        "0.250 s/step",
        "64 tokens/s",
    ):
        assert part in lines[0]
    assert "0m02s left" in lines[0]  # 6 steps of 0.25 s.


def test_a_terminal_gets_one_live_line():
    out = io.StringIO()
    show(Console(file=out, width=200, force_terminal=True), range(10))
    assert "\x1b[" in out.getvalue()
    assert "step 10/10" in out.getvalue()


@pytest.mark.parametrize("num_rows", [0, 1])
def test_reading_what_is_not_there_yet(tmp_path: Path, num_rows):
    path = tmp_path / "metrics.jsonl"
    if num_rows:
        write(path, range(num_rows), start=0)
    assert len(read_metrics(path)) == num_rows


def test_a_garbled_line_is_named(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    write(path, range(2), start=0)
    path.write_text(path.read_text() + "garbage\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 3: not a row"):
        read_metrics(path)
