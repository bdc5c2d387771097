"""Trains a model: `python -m jaxload.train --config FILE --workdir DIR`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from jaxload import command
from jaxload.training.run import train
from jaxload.training.workdir import WorkDir, claim_workdir


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxload.train", description=__doc__
    )
    command.add_config_arguments(parser)
    parser.add_argument(
        "--workdir",
        type=Path,
        metavar="DIR",
        help="where the run is written; runs/NAME for configs/NAME.py",
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue from the newest checkpoint"
    )
    args, config = command.parse(parser, argv)
    console = Console()
    path = args.workdir or Path("runs") / args.config.stem
    workdir = claim_workdir(path, config, resume=args.resume)
    if workdir.is_finished(config):
        console.print(
            f"{path} already holds this run, finished; nothing was done again",
            highlight=False,
            soft_wrap=True,
        )
    else:
        train(config, workdir, console)
    _print_results(workdir, console)
    return 0


def _print_results(workdir: WorkDir, console: Console) -> None:
    files = {
        "config": workdir.config,
        "plan": workdir.plan,
        "metrics": workdir.metrics,
        "checkpoints": workdir.checkpoints,
        "sample": workdir.sample,
        "figure": workdir.figure,
    }
    for name, path in files.items():
        console.print(f"  {name:12} {path}", highlight=False, soft_wrap=True)
    console.print(
        "next: draw another sample with\n"
        f"  python -m jaxload.sample --workdir {workdir.path} "
        '--set sample.caption="a large blue circle moving up on a grey background"\n'
        "or train on with\n"
        f"  python -m jaxload.train --config CONFIG --workdir {workdir.path} --resume "
        "--set train.num_steps=N",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    command.run("jaxload.train", main)
