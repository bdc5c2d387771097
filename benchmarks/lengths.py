"""Compares buckets by length with buckets by grid, on lists of samples.

    python -m benchmarks.lengths [FILE...]

For each workload of `benchmarks/workloads`, or for the given lists, 16 replicas with 4
micro-batches per step run Wan 2.1 14B under its cost model, with at most 32 programs by
length or 32 shapes by grid. The goals for lists by length:

| figure | goal |
|---|---|
| content kept | 99.5% for videos, 98% for mixtures of images and videos |
| samples left out | no more than by grid, and fewer if any are |
| lost to padding and idle time, lockstep and mixed | 1%, or 3% for images |
| shapes in a step of lockstep | twice those by grid, if the list has as many |
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.progress import track
from rich.table import Table

from benchmarks import scenario
from jaxload.balance.config import FormChoice
from jaxload.balance.simulation import SimulationResult, simulate_policy
from jaxload.console import Console
from jaxload.planning.scenarios import Workload

_WORKLOADS = Path(__file__).with_name("workloads")
_REPLICAS, _ACCUMULATE, _NUM_STEPS = 16, 4, 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of one list in one form."""

    workload: Workload
    lockstep: SimulationResult
    mixed: SimulationResult

    @property
    def num_left_out(self) -> int:
        """Number of samples that no program runs."""
        return sum(out.count for out in self.workload.chosen.left_out)

    @property
    def num_shapes(self) -> int:
        """Number of distinct latent shapes that run."""
        return len({s for c in self.workload.chosen.classes for s in c.shapes})

    @property
    def share_of_images(self) -> float:
        """Share of the samples that are images."""
        classes = self.workload.chosen.classes
        images = sum(samples.lengths.num_images for samples in classes)
        return images / sum(samples.num_samples for samples in classes)


def measure(path: Path, form: FormChoice) -> Figures:
    """Plans a list in one form, and simulates both schedules."""
    workload = scenario.read(
        path, num_replicas=_REPLICAS, accumulate=_ACCUMULATE, form=form
    )
    lockstep, mixed = (
        simulate_policy(policy, workload.scenario, num_steps=_NUM_STEPS)
        for policy in ("lockstep", "mixed")
    )
    return Figures(workload=workload, lockstep=lockstep, mixed=mixed)


def missed_goals(length: Figures, grid: Figures) -> list[str]:
    """Returns the goals that a list misses."""
    is_images = length.share_of_images == 1.0
    least = 0.0 if is_images else (0.98 if length.share_of_images else 0.995)
    most_lost = 0.03 if is_images else 0.01
    lost = max(length.lockstep.lost, length.mixed.lost)
    distinct = length.lockstep.distinct_shapes / grid.lockstep.distinct_shapes
    enough = length.num_shapes >= 2 * grid.lockstep.distinct_shapes
    goals = {
        "content": length.workload.chosen.kept >= least,
        "left out": length.num_left_out < max(grid.num_left_out, 1),
        "lost": lost <= most_lost,
        "distinct": distinct >= 2 or not enough,
        "programs": len(length.mixed.buckets) <= 64,
    }
    return [name for name, reached in goals.items() if not reached]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m benchmarks.lengths`; returns 1 if a goal is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lengths",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="lists or histograms of samples (default: all of benchmarks/workloads)",
    )
    paths = parser.parse_args(argv).files or sorted(_WORKLOADS.glob("*.csv"))
    # Without a width, piped tables would be truncated to 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 140)
    table = Table(
        title=f"By length (by grid), {_REPLICAS} replicas, A = {_ACCUMULATE}", box=None
    )
    for name in (
        *("", "content", "left out", "programs", "sizes", "lost, lockstep"),
        *("lost, mixed", "padding", "shapes a step", "missed"),
    ):
        table.add_column(name, justify="left" if name in ("", "missed") else "right")
    any_missed = False
    for path in track(paths, "simulating", console=Console(stderr=True)):
        length, grid = measure(path, "length"), measure(path, "grid")
        missed = missed_goals(length, grid)
        any_missed |= bool(missed)
        table.add_row(path.stem, *_cells(length, grid), ", ".join(missed))
    console.print(table)
    return 1 if any_missed else 0


def _cells(length: Figures, grid: Figures) -> list[str]:
    """Returns the figures by length, with those by grid in brackets."""

    def both(show: str, *values: float) -> str:
        one, other = (format(value, show) for value in values)
        return f"{one} ({other})"

    sizes = {shape.size for shape in length.workload.samples.cover.shapes}
    return [
        both(".2%", length.workload.chosen.kept, grid.workload.chosen.kept),
        both(",", length.num_left_out, grid.num_left_out),
        both(",", len(length.mixed.buckets), len(grid.mixed.buckets)),
        str(len(sizes)),
        both(".2%", length.lockstep.lost, grid.lockstep.lost),
        both(".2%", length.mixed.lost, grid.mixed.lost),
        f"{length.mixed.padding:.2%}",
        both(".1f", length.lockstep.distinct_shapes, grid.lockstep.distinct_shapes),
    ]


if __name__ == "__main__":
    sys.exit(main())
