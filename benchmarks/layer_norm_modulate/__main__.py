"""Measures layer_norm_modulate: time on the CPU, bytes and memory on a GPU.

    python -m benchmarks.layer_norm_modulate [--json] [--only SECTION] [--figure PNG]

The GPU sections need no GPU: the CUDA kernels are emulated on the CPU, and XLA compiles
for an H100 without one. Sections whose tools are missing are skipped with a message.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress

from benchmarks import h100
from benchmarks.layer_norm_modulate import timing, traffic
from jaxload.console import Console
from jaxload.ops import _ffi
from jaxload.targets.child_process import PLUGIN

SHAPES = (
    (1, 32760, 1536),
    (4, 7800, 1536),
    (16, 1560, 1536),
    (1, 8192, 5120),
    (1, 512, 1536),
)
DTYPES = ("float32", "bfloat16")

# Tokens and width of a block of Wan 2.1 1.3B at 81 frames of 480p.
BLOCK = (32760, 1536)

SECTIONS = ("timing", "traffic", "memory")

_Report = dict[str, Any]


def _time(progress: Progress, console: Console | None) -> _Report:
    cases = [(shape, dtype) for shape in SHAPES for dtype in DTYPES]
    task = progress.add_task("time on the CPU", total=len(cases))
    rows = []
    for case in cases:
        rows += timing.measure(*case)
        progress.advance(task)
    if console:
        timing.print_table(rows, console)
    return {
        "rows": [
            dataclasses.asdict(row) | {"speedup": row.speedup, "over_map": row.over_map}
            for row in rows
        ],
        "targets": timing.targets(rows),
    }


def _count(progress: Progress, console: Console | None, figure: Path | None) -> _Report:
    cases = [(shape, dtype) for shape in SHAPES for dtype in DTYPES]
    task = progress.add_task("bytes on an H100", total=len(cases))
    rows = []
    for case in cases:
        rows += traffic.measure(*case)
        progress.advance(task)
    if console:
        traffic.print_table(rows, console)
    if figure:
        first = [r for r in rows if (r.shape, r.dtype) == (SHAPES[0], "bfloat16")]
        traffic.draw([row for row in first if "gated" not in row.direction], figure)
    return {
        "rows": [
            dataclasses.asdict(row) | {"over_least": row.over_least} for row in rows
        ],
        "targets": traffic.targets(rows),
    }


def _weigh(progress: Progress, console: Console | None) -> _Report:
    if not PLUGIN.is_dir() or "cuda" not in _ffi.platforms():
        reason = "skipped: needs `make cuda` and JAX's CUDA plugin; run `make bench`"
        if console:
            console.say(f"temporary memory: {reason}")
        return {"skipped": reason}
    task = progress.add_task("memory on an H100", total=2)
    tokens, width = BLOCK
    report = {}
    for name, arguments in (
        ("layer_norm_modulate", ("pass", f"1x{tokens}x{width}", "bfloat16")),
        ("a transformer block", ("block", "1", str(tokens), str(width))),
    ):
        forms = h100.run(*arguments)
        report[name] = {form: forms[form]["temporary_bytes"] for form in forms}
        progress.advance(task)
        if console:
            sizes = {
                form: f"{size / 1e6:,.0f} MB" for form, size in report[name].items()
            }
            console.say(
                f"temporary memory of {name}, {tokens} tokens, width {width}, forward "
                f"and backward on one H100: {sizes['kernel']} with our kernels, "
                f"{sizes['plain']} with the plain forms"
            )
    return {"tokens": tokens, "width": width, "temporary_bytes": report}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m benchmarks.layer_norm_modulate`; returns 1 if a target fails."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.layer_norm_modulate",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("--json", action="store_true", help="print JSON, not tables")
    parser.add_argument("--only", choices=SECTIONS, help="run only this section")
    parser.add_argument(
        "--figure",
        type=Path,
        metavar="PNG",
        help="draw the bytes that each pass reads and writes",
    )
    args = parser.parse_args(argv)
    if "cpu" not in _ffi.platforms():
        sys.exit(
            "benchmarks.layer_norm_modulate: the extension was not built; build it "
            "with `make setup`"
        )

    # Without a width, piped tables would be truncated to 80 columns.
    width = None if sys.stdout.isatty() else 110
    console = None if args.json else Console(width=width)
    report: _Report = {}
    # On stderr, so that --json can be piped.
    with Progress(console=Console(stderr=True), transient=True) as progress:
        if args.only in (None, "timing"):
            report["timing"] = _time(progress, console)
        if args.only in (None, "traffic"):
            report["traffic"] = _count(progress, console, args.figure)
        if args.only in (None, "memory"):
            report["memory"] = _weigh(progress, console)
    if args.json:
        print(json.dumps(report, indent=2))
    met = [section.get("targets", {}) for section in report.values()]
    return 0 if all(all(targets.values()) for targets in met) else 1


if __name__ == "__main__":
    sys.exit(main())
