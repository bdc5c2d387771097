"""Measures data loading: throughput, start-up time, memory and time by stage.

    python -m benchmarks.data_loading [--quick] [--only SECTION]

| section | measures | goal |
|---|---|---|
| throughput | samples per second | 0.8 times ArrayRecord, 2 times PyTorch |
| startup | time from ten million rows to the first micro-batch | 2 s |
| memory | resident memory over many epochs | flat within 5% or 20 MB |
| stages | loading time per sample, by stage | |
| training | share of time that the demo waits for data | 1% |

Goals are reported, not asserted, because other work on the machine affects them.
PyTorch runs in a separate environment, and is skipped if that does not exist.
"""

import argparse
import dataclasses
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.data_loading import memory, stages, startup, throughput, training
from benchmarks.data_loading.many_rows import write_many
from benchmarks.data_loading.samples import SCALES, Dataset, Scale, write_dataset
from benchmarks.data_loading.torch_process import VARIABLE, TorchProcess, find_python
from jaxload.console import Console, phase

SECTIONS = ("throughput", "startup", "memory", "stages", "training")
_MEMORY_SCALE = "small clips"
_STAGE_SCALES = ("demo", "image 480p", "clip 480p, 17 frames")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """Amount of work in a benchmark run."""

    scales: tuple[Scale, ...]
    workers: tuple[int, ...]
    num_rounds: int
    num_rows: int
    num_starts: int
    num_epochs: int
    num_steps: int
    config: str


FULL = Size(
    scales=SCALES,
    workers=(0, 1, 2),
    num_rounds=5,
    num_rows=10_000_000,
    num_starts=3,
    num_epochs=20,
    num_steps=200,
    config="configs/demo.py",
)
QUICK = Size(
    scales=tuple(scale.fewer(10) for scale in SCALES[:2]),
    workers=(0, 1, 2),
    num_rounds=1,
    num_rows=200_000,
    num_starts=1,
    num_epochs=2,
    num_steps=8,
    config="configs/debug.py",
)


class Datasets:
    """Datasets by the name of their scale, written on first access."""

    def __init__(self, scales: Sequence[Scale], directory: Path, progress: Console):
        self._scales = {scale.name: scale for scale in scales}
        self._directory = directory
        self._progress = progress
        self._written: dict[str, Dataset] = {}

    def __getitem__(self, name: str) -> Dataset:
        if name not in self._written:
            scale = self._scales[name]
            total = len(scale.shapes) * scale.num_samples
            with phase(self._progress, f"writing {name!r}", total) as advance:
                directory = self._directory / str(len(self._written))
                self._written[name] = write_dataset(scale, directory, advance)
        return self._written[name]

    def names(self, among: Sequence[str] | None = None) -> list[str]:
        """Returns the names of all scales, or of those that are also in `among`."""
        return [name for name in self._scales if among is None or name in among]


def measure_throughput(
    datasets: Datasets, size: Size, console: Console, progress: Console
) -> None:
    """Measures throughput and prints samples per second."""
    python = find_python()
    torch = TorchProcess(python) if python else None
    rows = []
    for name in datasets.names():
        dataset = datasets[name]
        total = len(size.workers) * size.num_rounds
        with phase(progress, f"reading {name!r}, rounds", total) as advance:
            rows += [
                throughput.measure(dataset, workers, size.num_rounds, torch, advance)
                for workers in size.workers
            ]
    if torch:
        torch.close()
    throughput.print_table(rows, console)
    if not torch:
        console.say(
            f"No PyTorch to compare with: run `make torch`, or set {VARIABLE} to a "
            "Python that has torch and safetensors."
        )


def measure_startup(
    directory: Path, size: Size, console: Console, progress: Console
) -> None:
    """Measures and prints the time to the first micro-batch."""
    with phase(progress, "writing rows", size.num_rows) as advance:
        write_many(directory, size.num_rows, advance)
    total = size.num_starts * len(startup.WORKERS)
    with phase(progress, "starting", total) as advance:
        rows = startup.measure(directory, size.num_starts, advance)
    startup.print_table(rows, console)


def measure_memory(
    datasets: Datasets, size: Size, console: Console, progress: Console
) -> None:
    """Measures and prints memory over epochs."""
    (name,) = datasets.names([_MEMORY_SCALE])
    dataset, rows = datasets[name], []
    with phase(progress, "reading epochs", len(memory.WORKERS)) as advance:
        for workers in memory.WORKERS:
            rows.append(memory.measure(dataset, workers, size.num_epochs, every=2))
            advance()
    memory.print_table(rows, name, console)


def measure_stages(
    datasets: Datasets, size: Size, console: Console, progress: Console
) -> None:
    """Measures and prints the time of each loading stage."""
    names, rows = datasets.names(_STAGE_SCALES), []
    written = [datasets[name] for name in names]
    with phase(progress, "timing stages", len(names)) as advance:
        for dataset in written:
            rows.append(stages.measure(dataset, size.num_rounds))
            advance()
    stages.print_table(rows, console)


def measure_training(
    directory: Path, size: Size, console: Console, progress: Console
) -> None:
    """Measures and prints the share of time that the demo waits for data."""
    with phase(progress, "training the demo", 1) as advance:
        share = training.measure(directory, size.num_steps, size.config)
        advance()
    training.print_wait(share, size.num_steps, console)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m benchmarks.data_loading`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.data_loading",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument(
        "--quick", action="store_true", help="measure less of everything"
    )
    parser.add_argument("--only", choices=SECTIONS, help="measure only this section")
    args = parser.parse_args(argv)
    size = QUICK if args.quick else FULL
    sections = [args.only] if args.only else SECTIONS
    # Without a width, piped tables would be truncated to 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 140)
    progress = Console(stderr=True)
    console.say(
        f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the start"
    )
    with tempfile.TemporaryDirectory() as name:
        datasets = Datasets(size.scales, Path(name), progress)
        if "throughput" in sections:
            measure_throughput(datasets, size, console, progress)
        if "startup" in sections:
            measure_startup(Path(name) / "many", size, console, progress)
        if "memory" in sections:
            measure_memory(datasets, size, console, progress)
        if "stages" in sections:
            measure_stages(datasets, size, console, progress)
        if "training" in sections:
            measure_training(Path(name) / "training", size, console, progress)
    return 0


if __name__ == "__main__":
    sys.exit(main())
