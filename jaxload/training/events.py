"""What a run tells while it runs: one row a step in a file, one live line on screen."""

import collections
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from jaxload.errors import InputError
from jaxload.files import write_atomically

_RECENT_STEPS = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """One object of `metrics.jsonl`."""

    step: int
    epoch: float
    """Passes over the data that are done after the step."""

    loss: float
    learning_rate: float
    grad_norm: float
    bucket: str
    """Shape of the step's micro-batch; several are joined by +."""

    batch: int
    """Samples of the step, over all replicas and micro-batches."""

    tokens: int
    """Latent tokens of the step."""

    seconds: float
    """From the end of the step before to the end of this one."""

    data_wait_seconds: float
    """What the devices waited for data, at most: when it came, they had no work."""


class MetricsFile:
    """Appends rows to `metrics.jsonl`, each one a line that is flushed at once."""

    def __init__(self, path: Path, kept: Sequence[StepMetrics]):
        """Starts the file with the rows that are kept of an earlier part of the run."""
        write_atomically(path, "".join(_line(row) for row in kept))
        self._file = path.open("a")

    def append(self, row: StepMetrics) -> None:
        """Writes one row."""
        self._file.write(_line(row))
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def read_metrics(path: Path) -> list[StepMetrics]:
    """Reads the rows of a metrics file; a last line that was torn off is left out."""
    if not path.exists():
        return []
    rows = []
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            break
        try:
            rows.append(StepMetrics(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise InputError(
                f"{path}, line {number}: not a row of metrics ({error}); remove the "
                "line, or choose another --workdir"
            ) from error
    return rows


def _line(row: StepMetrics) -> str:
    return json.dumps(dataclasses.asdict(row)) + "\n"


class ProgressLine:
    """One live line: a bar on a terminal, a line every so many steps in a log."""

    def __init__(self, console: Console, *, start: int, num_steps: int, every: int):
        self._console = console
        self._num_steps = num_steps
        self._every = every
        self._recent: collections.deque[StepMetrics] = collections.deque(
            maxlen=_RECENT_STEPS
        )
        self._bar = None
        if console.is_terminal:
            self._bar = Progress(
                BarColumn(bar_width=10),
                TextColumn("{task.description}"),
                console=console,
            )
            self._task = self._bar.add_task("", total=num_steps, completed=start)

    def __enter__(self) -> "ProgressLine":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_):
        if self._bar is not None:
            self._bar.stop()  # What it last said stays on screen.

    def update(self, row: StepMetrics) -> None:
        """Shows a step that has ended."""
        self._recent.append(row)
        done = row.step + 1
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=self._text(row))
        elif done % self._every == 0 or done == self._num_steps:
            self._console.print(self._text(row), soft_wrap=True, highlight=False)

    def _text(self, row: StepMetrics) -> str:
        # Steps differ by bucket, so both rates are means over the recent ones.
        seconds = sum(recent.seconds for recent in self._recent)
        tokens = sum(recent.tokens for recent in self._recent)
        per_step = seconds / len(self._recent)
        left = round(per_step * (self._num_steps - row.step - 1))
        return (
            f"step {row.step + 1}/{self._num_steps}  epoch {row.epoch:.1f}  "
            f"{left // 60}m{left % 60:02d}s left  loss {row.loss:.4f}  "
            f"lr {row.learning_rate:.1e}  grad {row.grad_norm:.2f}  "
            f"{per_step:.3f} s/step  {tokens / seconds:,.0f} tokens/s"
        )
