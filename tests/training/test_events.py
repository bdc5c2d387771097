"""Tests of jaxload.training.events."""

import io
import json
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.training.events import (
    Event,
    JsonlSink,
    ScreenSink,
    Sink,
    Sinks,
    read_events,
)


def step_event(step: int, **values) -> Event:
    return Event(
        "step",
        step,
        {
            "epoch": step / 10,
            "loss": 1.0 / (step + 1),
            "learning_rate": 1e-3,
            "grad_norm": 0.5,
            "bucket": "1x4x4",
            "batch": 4,
            "tokens": 16,
            "seconds": 0.25,
            "data_wait_seconds": 0.0,
            **values,
        },
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def write(path: Path, steps: range, *, start: int) -> None:
    kept = [event for event in read_events(path) if event.step <= start]
    with JsonlSink(path, kept) as sink:
        for step in steps:
            sink.write(step_event(step))


# Events.


def test_numbers_of_numpy_become_plain():
    event = Event(
        "evaluation",
        3,
        {
            "loss": np.float32(0.5),
            "count": np.int32(7),
            "whole": np.bool_(True),
            "half": ml_dtypes.bfloat16(1.5),
            "by_level": np.array([1.0, np.nan, np.inf], np.float32),
            "nested": {"pair": (np.int64(1), "x"), "none": None},
        },
    )
    assert event.values == {
        "loss": 0.5,
        "count": 7,
        "whole": True,
        "half": 1.5,
        "by_level": [1.0, None, None],
        "nested": {"pair": [1, "x"], "none": None},
    }
    plain = [type(event.values[name]) for name in ("loss", "count", "whole", "half")]
    assert plain == [float, int, bool, float]


@pytest.mark.parametrize(
    ("value", "name"),
    [(jnp.zeros(()), "Array"), (Path("x"), "Path"), ({1: 2}, "dict")],
)
def test_values_that_json_does_not_have_are_refused(value, name: str):
    message = rf"event 'step', loss: expected .*, got \w*{name}\w*; convert"
    with pytest.raises(TypeError, match=message):
        Event("step", 0, {"loss": value})


@pytest.mark.parametrize("name", ["event", "step"])
def test_names_that_a_line_needs_itself_are_refused(name: str):
    with pytest.raises(ValueError, match=f"neither event nor step, got {name}"):
        Event("evaluation", 0, {name: 1})


# Files.


def test_one_object_a_line(path: Path):
    write(path, range(3), start=0)
    header, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert header == {"event": "format", "version": 2}
    assert [(row["event"], row["step"]) for row in rows] == [
        ("step", 0),
        ("step", 1),
        ("step", 2),
    ]
    assert set(rows[0]) >= {"loss", "bucket", "batch", "tokens", "seconds"}


def test_every_line_is_there_before_the_file_is_closed(path: Path):
    with JsonlSink(path, []) as sink:
        for step in range(3):
            sink.write(step_event(step))
            assert len(read_events(path)) == step + 1


FULL_DISK = """
import pathlib, resource, sys
from jaxload.training.events import Event, JsonlSink

with JsonlSink(pathlib.Path(sys.argv[1]), []) as sink:
    sink.write(Event("a", 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (70, 70))
    try:
        for step in range(9):
            sink.write(Event("b", step))
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_full_disk_is_one_line(path: Path):
    result = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stderr == ""
    assert result.stdout.startswith(f"InputError {path}: cannot be written (")
    assert result.stdout.endswith("; make room, then continue with --resume\n")
    assert [event.step for event in read_events(path)] == [1]


def test_a_number_that_is_none_is_null(path: Path):
    with JsonlSink(path, []) as sink:
        sink.write(step_event(0, by_level=np.array([np.nan, 1.0])))
    assert "NaN" not in path.read_text()
    assert read_events(path)[0].values["by_level"] == [None, 1.0]


def test_a_resume_drops_the_steps_that_run_again(path: Path):
    write(path, range(1, 7), start=0)
    write(path, range(5, 9), start=4)
    assert [event.step for event in read_events(path)] == list(range(1, 9))


def test_a_torn_last_line_is_left_out(path: Path):
    write(path, range(1, 4), start=0)
    path.write_text(path.read_text()[:-20])
    assert [event.step for event in read_events(path)] == [1, 2]
    write(path, range(3, 4), start=2)
    assert read_events(path) == [step_event(step) for step in (1, 2, 3)]


def test_steps_that_were_counted_from_zero_are_counted_from_one(path: Path):
    lines = [
        {"event": "format", "version": 1},
        {"event": "step", "step": 0, "loss": 2.0},
        {"event": "resume", "step": 1},
        {"event": "step", "step": 1, "loss": 1.0},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = [(event.name, event.step) for event in read_events(path)]
    assert found == [("step", 1), ("resume", 1), ("step", 2)]


def test_events_are_read_by_name_with_values_that_nobody_knows(path: Path):
    other = Event("evaluation", 0, {"loss": 0.5, "anything": [1, {"x": "y"}]})
    with JsonlSink(path, [other]) as sink:
        sink.write(step_event(0))
    assert read_events(path) == [other, step_event(0)]
    assert read_events(path, "evaluation") == [other]
    assert read_events(path, "step") == [step_event(0)]
    assert read_events(path, "stop") == []


@pytest.mark.parametrize("content", [None, "", '{"event": "form'])
def test_reading_what_is_not_there_yet(path: Path, content: str | None):
    if content is not None:
        path.write_text(content)
    assert read_events(path) == []


@pytest.mark.parametrize(
    "garbage",
    [
        b"garbage",
        b"[1]",
        b"\xff",
        b'{"step": 2}',
        b'{"event": "step"}',
        b'{"event": "step", "step": "2"}',
    ],
)
def test_a_garbled_line_is_named(path: Path, garbage: bytes):
    write(path, range(1), start=0)
    after = b'{"event": "step", "step": 3}\n'
    path.write_bytes(path.read_bytes() + garbage + b"\n" + after)
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 3: expected an event"):
        read_events(path)


def test_a_garbled_first_line_is_named(path: Path):
    path.write_text("garbage\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 1: expected an event"):
        read_events(path)


@pytest.mark.parametrize(
    ("header", "version"),
    [
        ({"step": 0, "loss": 1.0}, 0),
        ({"event": "step", "step": 0, "version": 1}, 0),
        ({"event": "format", "version": 3}, 3),
    ],
)
def test_another_format_is_refused(path: Path, header: dict, version: int):
    path.write_text(json.dumps(header) + "\n")
    message = rf"metrics\.jsonl: .* version 2, got version {version}; .* --workdir"
    with pytest.raises(InputError, match=message):
        read_events(path)


# The screen.


def show(console: Console, events: list[Event], *, num_steps: int) -> None:
    with ScreenSink(console, start=0, num_steps=num_steps, every=4) as sink:
        for event in events:
            sink.write(event)


def test_a_log_gets_a_line_at_an_interval():
    out = io.StringIO()
    steps = list(map(step_event, range(1, 11)))
    show(Console(file=out, width=200), steps, num_steps=10)
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["4/10", "8/10", "10/10"]
    for part in (
        "loss 0.2000",
        "lr 1.0e-03",
        "grad 0.50",
        "0.250 s/step",
        "64 tokens/s",
    ):
        assert part in lines[0]
    assert "0m02s left" in lines[0]  # 6 steps of 0.25 s.


def test_the_time_left_is_estimated_from_steps_after_the_first():
    out = io.StringIO()
    console = Console(file=out, width=200)
    with ScreenSink(console, start=0, num_steps=100, every=1) as sink:
        # The first step waits for data and takes long.
        for step, seconds in enumerate([60.0, *(6 * [2.0])], start=1):
            sink.write(step_event(step, seconds=seconds))
    lines = out.getvalue().splitlines()
    assert ["left" in line for line in lines] == 3 * [False] + 4 * [True]
    assert "3m12s left" in lines[3]  # 96 steps of 2 s.


def test_a_terminal_gets_one_live_line():
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=True)
    show(console, list(map(step_event, range(1, 11))), num_steps=10)
    assert "\x1b[" in out.getvalue()
    assert "step 10/10" in out.getvalue()
    assert out.getvalue().endswith("\x1b[?25h")  # The cursor is shown again.


@pytest.mark.parametrize("terminal", [False, True])
def test_other_events_are_shown_by_their_message(terminal: bool):
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=terminal)
    events = [
        Event("evaluation", 3, {"loss": 0.5}),
        Event("deal", 3, {"message": "dealt [anew] from step 40"}),
    ]
    show(console, [step_event(0), *events], num_steps=9)
    assert "dealt [anew] from step 40" in out.getvalue()
    assert "0.5" not in out.getvalue().replace("grad 0.50", "")


def test_a_number_that_is_none_is_shown_as_such():
    out = io.StringIO()
    show(Console(file=out, width=200), [step_event(0, loss=np.nan)], num_steps=1)
    assert "loss nan" in out.getvalue()


def test_a_screen_that_shows_no_step_ends_as_it_began():
    out = io.StringIO()
    show(Console(file=out, force_terminal=True), [], num_steps=9)
    assert out.getvalue() == ""


# Several sinks.


class FakeSink:
    """Records its calls in a list that several sinks share."""

    def __init__(self, name: str, done: list[str], *, fails: bool = False):
        self.name = name
        self.done = done
        self.fails = fails

    def write(self, event: Event) -> None:
        self.done.append(f"{self.name} {event.name} {event.step}")

    def close(self) -> None:
        self.done.append(f"{self.name} closed")
        if self.fails:
            raise OSError(f"{self.name} is full")


def test_every_sink_gets_every_event_in_order():
    done: list[str] = []
    sinks: list[Sink] = [FakeSink("a", done), FakeSink("b", done)]
    with Sinks(sinks) as sink:
        sink.write(step_event(0))
        sink.write(Event("evaluation", 1))
    assert done == [
        "a step 0",
        "b step 0",
        "a evaluation 1",
        "b evaluation 1",
        "a closed",
        "b closed",
    ]


def test_a_sink_that_fails_to_close_keeps_no_other_from_it():
    done: list[str] = []
    sinks = [FakeSink("a", done, fails=True), FakeSink("b", done)]
    with pytest.raises(OSError, match="a is full"), Sinks(sinks):
        pass
    assert done == ["a closed", "b closed"]
