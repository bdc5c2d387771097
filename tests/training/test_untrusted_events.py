"""Tests of metrics files that were damaged, forged or edited by hand."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxload.errors import InputError
from jaxload.reports.run import draw_figure
from jaxload.training.events import STEP, Event, JsonlSink, read_events
from tests.json_edits import as_bytes, assert_one_line, damaged, edits, fewer

VALUES = {
    "epoch": 0.5,
    "loss": 1.5,
    "learning_rate": 1e-3,
    "grad_norm": None,
    "bucket": "1x4x4",
    "batch": 4,
    "tokens": 16,
    "seconds": 0.25,
    "data_wait_seconds": 0.0,
}
LINES: list[dict[str, Any]] = [
    {"event": "format", "version": 2},
    {"event": STEP, "step": 1, **VALUES},
    {"event": "resume", "step": 1, "message": "resuming at step 1"},
    {"event": STEP, "step": 2, **VALUES, "bucket": "1x4x4 + 2x4x4"},
    {"event": STEP, "step": 3, **VALUES},
]


def check(path: Path) -> list[Event]:
    """Reads events as a run does that resumes, or asserts that they are refused."""
    try:
        events = read_events(path)
    except InputError as error:
        assert_one_line(error, path)
        return []
    with JsonlSink(path, events):
        pass
    assert read_events(path) == events
    return events


def text(lines: list[Any]) -> bytes:
    return b"".join(as_bytes(line) + b"\n" for line in lines)


@pytest.mark.fuzz
@given(lines=edits(LINES))
def test_edited_metrics_are_read_or_one_line(tmp_path: Path, lines: Any):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(text(lines if isinstance(lines, list) else [lines]))
    check(path)


@pytest.mark.fuzz
@fewer(10)  # Drawing takes a while.
@given(values=edits(VALUES, most=5))
@example(values=VALUES | {"loss": 1e300, "bucket": []})
@example(values=VALUES | {"bucket": "$x^", "batch": {}, "tokens": "16"})
@example(values=VALUES | {"seconds": -1e29, "loss": True})
@example(values=VALUES | {"bucket": 1000 * "x\n"})
def test_metrics_of_any_values_are_drawn(tmp_path: Path, values: Any):
    path = tmp_path / "metrics.jsonl"
    values = values if isinstance(values, dict) else {"loss": values}
    step = {"event": STEP, "step": 2, **values}
    path.write_bytes(text([*LINES[:2], step | {"event": STEP}]))
    draw_figure(check(path), tmp_path / "figure.png")


@pytest.mark.fuzz
@given(content=damaged(text(LINES)))
@example(content=200_000 * b"[" + b"\n")
@example(content=text(LINES)[:-1] + b"\0\n")
@example(content=text([*LINES, {"event": STEP, "step": 2**60, "loss": 1.0}]))
def test_damaged_metrics_are_read_or_one_line(tmp_path: Path, content: bytes):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    check(path)


@pytest.mark.fuzz
@given(data=st.data())
def test_a_last_line_cut_anywhere_is_left_out(tmp_path: Path, data: st.DataObject):
    path = tmp_path / "metrics.jsonl"
    last = text(LINES[-1:])
    end = data.draw(st.binary(max_size=3)).replace(b"\n", b"")
    cut = last[: data.draw(st.integers(0, len(last) - 1))] + end.replace(b"\r", b"")
    path.write_bytes(text(LINES[:-1]) + cut)
    assert [event.step for event in check(path)] == [1, 1, 2]


def test_a_directory_in_place_of_metrics_is_one_line(tmp_path: Path):
    with pytest.raises(InputError, match=r"cannot be read \(Is a directory\)"):
        read_events(tmp_path)
