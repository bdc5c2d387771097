"""Measures the models: speed, compile time, memory, weights, and memory on H100s.

    python -m benchmarks.models [--only SECTION]

| section | what is measured | goal |
|---|---|---|
| speed | forward and backward on CPU, against diffusers | no slower |
| compile | seconds to compile, by the number of layers | 1.3 from fewest to most |
| attention | memory and time of attention, against the plain form | linear memory |
| loading | memory of loading and saving weights | 1.3 and 0.3 of the file |
| h100 | train steps compiled for H100s | fits in 80 GB; padding masks 1.02 |

Goals are reported, not asserted, because other work on the machine affects them. A
section whose tools are missing prints the make target that installs them.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.data_loading.torch_process import find_python
from benchmarks.models import (
    attention,
    compile_time,
    h100,
    loading,
    row_traffic,
    speed,
)
from jaxload.console import Console, phase


def measure_speed(console: Console, progress: Console) -> None:
    """Measures and prints times against diffusers."""
    what, python = speed.missing_tools(), find_python()
    if what or python is None:
        console.say(f"speed: {what}")
        return
    rows = []
    counts = speed.core_counts()
    with phase(progress, "running with diffusers", len(counts)) as advance:
        for num_cores in counts:
            rows += speed.measure(python, num_cores)
            advance()
    speed.print_table(rows, console)


def measure_compile(console: Console, progress: Console) -> None:
    """Measures and prints compile times."""
    total = compile_time.NUM_ROUNDS
    with phase(progress, "compiling, rounds", total) as advance:
        seconds = compile_time.measure(total, advance)
    compile_time.print_table(seconds, console)


def measure_attention(console: Console, progress: Console) -> None:
    """Measures and prints memory and time of attention."""
    del progress
    for table in attention.report():
        console.print(table)


def measure_loading(console: Console, progress: Console) -> None:
    """Measures and prints memory and time of loading and saving weights."""
    del progress
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "model.safetensors")
        loading.write_random(path, loading.CONFIG)
        rows = loading.measure(path, loading.CONFIG)
    loading.print_table(rows, console)


def measure_h100(console: Console, progress: Console) -> None:
    """Compiles for H100s; prints the memory of each case, and the cost of padding."""
    what = h100.missing_tools()
    if what:
        console.say(f"h100: {what}")
        return
    findings = []
    total = len(h100.CASES) * len(h100.REMATS) + len(row_traffic.GRIDS)
    with phase(progress, "compiling for H100s", total) as advance:
        for case in h100.CASES:
            for remat in h100.REMATS:
                findings.append(h100.measure(case, remat))
                advance()
        compared = []
        for batch in row_traffic.GRIDS:
            compared.append(row_traffic.measure(batch))
            advance()
    h100.print_table(findings, console)
    row_traffic.print_table(compared, console)


SECTIONS: Mapping[str, Callable[[Console, Console], None]] = {
    "speed": measure_speed,
    "compile": measure_compile,
    "attention": measure_attention,
    "loading": measure_loading,
    "h100": measure_h100,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m benchmarks.models`; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.models",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("--only", choices=SECTIONS, help="run only this section")
    args = parser.parse_args(argv)
    # Without a width, piped tables would be truncated to 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 140)
    progress = Console(stderr=True)
    console.say(
        f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the start"
    )
    for name in [args.only] if args.only else SECTIONS:
        SECTIONS[name](console, progress)
    return 0


if __name__ == "__main__":
    sys.exit(main())
