"""Events of a run, and the sinks that record or show them.

`metrics.jsonl` holds one JSON object per line. The first line is
`{"event": "format", "version": 2}`; every other line is one event,
`{"event": NAME, "step": STEP, ...values}`. `STEP` is the number of steps that are done,
as on screen and in the names of checkpoints. New fields of an event do not change the
version; readers ignore unknown fields.
"""

import collections
import contextlib
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from rich.progress import BarColumn, Progress, TextColumn

from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.files import parse_json, write_atomically

STEP = "step"
"""Name of the event of an optimizer update, which has these values:

| value | meaning |
|---|---|
| epoch | passes over the dataset that are complete after the step |
| loss | mean over the samples of the step |
| learning_rate | learning rate of parameters that are in no group |
| grad_norm | norm of the gradients before they are clipped |
| bucket | shape of the step's micro-batch; several are joined by + |
| batch | samples of the step, over all replicas and micro-batches |
| tokens | latent tokens of the step |
| seconds | time from the end of the previous step to the end of this one |
| data_wait_seconds | upper bound on device idle time caused by data loading |
"""

MESSAGE = "message"
"""Name of the value that is printed on screen for events other than steps."""

_FORMAT = "format"
_VERSION = 2
_FROM_ZERO = 1  # Version in which the first step had the number 0.
_FEW_STEPS = 3  # Steps to time before the time left is estimated.
_RECENT_STEPS = 50
_MAX_STEP = 2**53  # Every step up to this one is a number of its own in a figure.


@dataclasses.dataclass(frozen=True)
class Event:
    """A named event at a step of a run, with its values."""

    name: str
    step: int
    """Number of steps done, with the event's own if it is a step."""

    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """JSON values by names other than `event` and `step`. NumPy scalars and arrays are
    converted; NaN and infinity become None."""

    def __post_init__(self):
        reserved = {"event", "step"} & self.values.keys()
        if reserved:
            raise ValueError(
                f"event {self.name!r}: expected values named neither event nor step, "
                f"got {', '.join(sorted(reserved))}"
            )
        where = f"event {self.name!r}"
        object.__setattr__(self, "values", _as_json(self.values, where))


@runtime_checkable
class Sink(Protocol):
    """Receiver of events, such as a file or a screen."""

    def write(self, event: Event) -> None:
        """Records or shows an event, or ignores it."""
        ...

    def close(self) -> None:
        """Closes the sink; called once."""
        ...


_Closable = TypeVar("_Closable")


class _Closing:
    """Base class of context managers that call `close` on exit."""

    def __enter__(self: _Closable) -> _Closable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError


class Sinks(_Closing):
    """Passes every event to several sinks, in order."""

    def __init__(self, sinks: Sequence[Sink]):
        self._sinks = tuple(sinks)

    def write(self, event: Event) -> None:
        """Writes an event to each sink."""
        for sink in self._sinks:
            sink.write(event)

    def close(self) -> None:
        """Closes all sinks, even if closing one of them fails."""
        with contextlib.ExitStack() as stack:
            for sink in reversed(self._sinks):
                stack.callback(sink.close)


class JsonlSink(_Closing):
    """Appends events to `metrics.jsonl`, one per line, and flushes each at once."""

    def __init__(self, path: Path, kept: Sequence[Event]):
        """Rewrites the file with the events kept from an earlier part of the run."""
        header = json.dumps({"event": _FORMAT, "version": _VERSION}) + "\n"
        write_atomically(path, [header, *map(_to_line, kept)])
        self._path = path
        self._file = path.open("ab", buffering=0)  # A crash loses no complete line.

    def write(self, event: Event) -> None:
        """Appends an event; raises InputError if the disk is full."""
        line = _to_line(event).encode()
        try:
            written = self._file.write(line)
        except OSError as error:
            raise self._error(str(error.strerror)) from error
        if written != len(line):
            raise self._error(f"{written} of {len(line)} bytes")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _error(self, reason: str) -> InputError:
        return InputError(
            f"{self._path}: cannot be written ({reason}); make room, then continue "
            "with --resume"
        )


class ScreenSink(_Closing):
    """Shows steps: as a live bar on a terminal, or as a log line every `every` steps.

    The value `message` of any other event is printed as a line of its own.
    """

    def __init__(self, console: Console, *, start: int, num_steps: int, every: int):
        self._console = console
        self._start = start
        self._num_steps = num_steps
        self._every = every
        # The first step waits for its data and is not timed.
        self._is_first = True
        self._timed: collections.deque[Mapping[str, Any]] = collections.deque(
            maxlen=_RECENT_STEPS
        )
        self._bar: Progress | None = None

    def write(self, event: Event) -> None:
        """Shows an event."""
        if event.name != STEP:
            if MESSAGE in event.values:
                self._console.say(str(event.values[MESSAGE]))
            return
        if self._is_first:
            self._is_first = False
        else:
            self._timed.append(event.values)
        if self._console.is_terminal:
            self._show_bar(event.step, self._text(event))
        elif event.step % self._every == 0 or event.step == self._num_steps:
            self._console.say(self._text(event))

    def close(self) -> None:
        """Stops the bar; its last state stays on screen."""
        if self._bar is not None:
            self._bar.stop()

    def _show_bar(self, done: int, text: str) -> None:
        if self._bar is None:  # Not in __init__: a started bar needs close().
            columns = (
                BarColumn(bar_width=10),
                TextColumn("{task.description}", markup=False),
            )
            self._bar = Progress(*columns, console=self._console)
            self._bar.add_task("", total=self._num_steps, completed=self._start)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done, description=text)

    def _text(self, event: Event) -> str:
        values = event.values
        # Step times differ by bucket, so both rates are means over recent steps.
        timed = self._timed or [values]
        seconds = sum(recent["seconds"] for recent in timed)
        tokens = sum(recent["tokens"] for recent in timed)
        per_step = seconds / len(timed)
        left = ""
        if len(self._timed) >= _FEW_STEPS:
            rest = round(per_step * (self._num_steps - event.step))
            left = f"{rest // 60}m{rest % 60:02d}s left  "
        loss, rate, norm = (
            math.nan if values[name] is None else values[name]
            for name in ("loss", "learning_rate", "grad_norm")
        )
        return (
            f"step {event.step}/{self._num_steps}  epoch {values['epoch']:.1f}  {left}"
            f"loss {loss:.4f}  lr {rate:.1e}  grad {norm:.2f}  "
            f"{per_step:.3f} s/step  {tokens / seconds:,.0f} tokens/s"
        )


def read_events(path: Path, name: str | None = None) -> list[Event]:
    """Reads the events of a file, optionally of one name; empty if there is no file.

    A last line that a crash left incomplete is skipped.

    Raises:
        InputError: The file has another format, or a line that is not an event.
    """
    if not path.exists():
        return []
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); remove it, or choose another "
            "--workdir"
        ) from error
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    first_step = 1
    if lines and _read_version(path, lines[0]) == _FROM_ZERO:
        first_step = 0
    events = [
        _from_line(path, number, line, first_step)
        for number, line in enumerate(lines[1:], start=2)
    ]
    return [event for event in events if name is None or event.name == name]


def _read_version(path: Path, line: bytes) -> int:
    content = _parse(path, 1, line)
    # Files of the oldest format have no header.
    version = content.get("version") if content.get("event") == _FORMAT else 0
    if version not in (_VERSION, _FROM_ZERO):
        raise InputError(
            f"{path}: expected metrics of format version {_VERSION}, got version "
            f"{version!r:.80}; train in another --workdir"
        )
    return version


def _from_line(path: Path, number: int, line: bytes, first_step: int) -> Event:
    content = _parse(path, number, line)
    name, step = content.pop("event", None), content.pop("step", None)
    is_step = type(step) is int and 0 <= step < _MAX_STEP
    if type(name) is not str or not is_step:
        raise _broken_line(path, number, f"event={name!r:.80}, step={step!r:.80}")
    return Event(name, step + 1 - first_step if name == STEP else step, content)


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        content = parse_json(line)
    except ValueError as error:  # Not UTF-8, not JSON, or too deep.
        raise _broken_line(path, number, str(error)) from error
    if not isinstance(content, dict):
        raise _broken_line(path, number, f"no object: {content!r:.80}")
    return content


def _broken_line(path: Path, number: int, found: str) -> InputError:
    return InputError(
        f"{path}, line {number}: expected an event, got {found}; remove the line, or "
        "choose another --workdir"
    )


def _to_line(event: Event) -> str:
    content = {"event": event.name, "step": event.step, **event.values}
    return json.dumps(content, allow_nan=False) + "\n"


def _as_json(value: Any, where: str) -> Any:
    """Converts a value to JSON types; `where` names the value in error messages."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_as_json(item, where) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _as_json(item, f"{where}, {key}") for key, item in value.items()}
    raise TypeError(
        f"{where}: expected numbers, strings, lists, dictionaries with string keys or "
        f"NumPy arrays, got {type(value).__name__}; convert it first"
    )
