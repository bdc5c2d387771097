"""Measures step costs on this machine: `python -m jaxload.calibrate --config FILE`."""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

from jaxload import command
from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.files import write_atomically
from jaxload.planning.step_times import measure_costs
from jaxload.reports.calibration import draw_calibration, print_calibration
from jaxload.runs.setup import local_hardware, memory_budget, this_placement

_SECTIONS = ("balance", "mesh", "model")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = command.make_parser("jaxload.calibrate", __doc__)
    command.add_config_arguments(parser)
    parser.add_argument(
        "--seconds",
        type=float,
        default=300.0,
        metavar="T",
        help="approximate duration of the measurement, in seconds (default: 300)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("calibration.json"),
        metavar="FILE.json",
        help="file to write, with a figure beside it (default: calibration.json)",
    )
    args, config = command.parse(parser, argv, command.load_config, sections=_SECTIONS)
    _check_arguments(args)
    console = Console()
    hardware = local_hardware(config, this_placement(config))
    assert hardware.lowering is not None
    calibration = measure_costs(
        config,
        hardware.lowering,
        budget=memory_budget(config.balance, hardware.memory_bytes),
        seconds=args.seconds,
        console=console,
    )
    print_calibration(calibration, console)
    figure = args.out.with_suffix(".png")
    write_atomically(args.out, json.dumps(calibration.to_dict(), indent=2) + "\n")
    draw_calibration(calibration, figure)
    console.say(f"calibration {args.out}, figure {figure}")
    return 0


def _check_arguments(args: argparse.Namespace) -> None:
    """Refuses invalid arguments before the measurement starts."""
    if not 0 < args.seconds < math.inf:
        raise InputError(f"--seconds {args.seconds:g}: expected a positive number")
    command.check_json_path(args.out)


if __name__ == "__main__":
    command.run("jaxload.calibrate", main)
