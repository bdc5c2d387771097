"""Measures the share of training time that the demo waits for data."""

import subprocess
import sys
from pathlib import Path

from jaxload.console import Console
from jaxload.training.events import STEP, read_events

MAX_WAIT = 0.01
_WARM_STEPS = 20
_ROOT = Path(__file__).parents[2]


def measure(directory: Path, num_steps: int, config: str = "configs/demo.py") -> float:
    """Trains for some steps; returns the share of time spent waiting for data."""
    assignments = [f"data.path={directory / 'set'}", f"train.num_steps={num_steps}"]
    subprocess.run(
        [
            *(sys.executable, "-m", "jaxload.train", "--config", str(_ROOT / config)),
            *("--workdir", str(directory / "run")),
            *(part for assignment in assignments for part in ("--set", assignment)),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=_ROOT,
    )
    events = read_events(directory / "run" / "metrics.jsonl", STEP)
    first = min(_WARM_STEPS, num_steps // 2)
    steps = [event.values for event in events if event.step > first]
    waited = sum(step["data_wait_seconds"] for step in steps)
    return waited / sum(step["seconds"] for step in steps)


def print_wait(share: float, num_steps: int, console: Console) -> None:
    """Prints the share, and whether the goal is met."""
    held = "held" if share <= MAX_WAIT else "[bold red]NOT HELD[/]"
    console.print(
        f"The demo waited for data {share:.2%} of {num_steps} steps' time. "
        f"Goal: at most {MAX_WAIT:.0%}, {held}"
    )
