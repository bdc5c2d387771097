"""Draws a clip from a trained model: `python -m jaxload.sample --workdir DIR`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from jaxload import command
from jaxload import config as config_lib
from jaxload.training.run import sample
from jaxload.training.workdir import WorkDir


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxload.sample", description=__doc__
    )
    parser.add_argument(
        "--workdir",
        type=Path,
        default=Path("runs/demo"),
        metavar="DIR",
        help="a run; its newest checkpoint is used",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="a GIF; DIR/sample.gif by default"
    )
    command.add_set_argument(parser)
    args = parser.parse_args(argv)
    workdir = WorkDir(args.workdir)
    config = workdir.read_config()
    for assignment in args.set:
        config = config_lib.override(config, assignment)
    console = Console()
    out = args.out or workdir.sample
    sample(config, workdir, out, console)
    console.print(f"{config.sample.caption!r}: {out}", highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    command.run("jaxload.sample", main)
