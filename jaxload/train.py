"""Trains a model: `python -m jaxload.train --config FILE --workdir DIR`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from jaxload import command
from jaxload.config import Config
from jaxload.runs.run import train
from jaxload.runs.workdir import WorkDir, claim_workdir


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = command.make_parser("jaxload.train", __doc__)
    command.add_config_arguments(parser)
    parser.add_argument(
        "--workdir",
        type=Path,
        metavar="DIR",
        help="where the run is written; runs/NAME for configs/NAME.py",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue from the newest checkpoint; --config may be left out",
    )
    args, config = command.parse(parser, argv, _load_config)
    console = Console()
    path = _workdir_path(args)
    with claim_workdir(path, config, resume=args.resume) as workdir:
        if workdir.is_finished(config):
            console.print(
                f"{path} already holds this run, finished; nothing was done again",
                highlight=False,
                soft_wrap=True,
            )
        else:
            train(config, workdir, console)
    _print_results(workdir, config, console)
    return 0


def _workdir_path(args: argparse.Namespace) -> Path:
    return args.workdir or Path("runs") / (args.config or command.DEMO).stem


def _load_config(args: argparse.Namespace) -> Config:
    workdir = WorkDir(_workdir_path(args))
    if args.resume and args.config is None and workdir.config.exists():
        return workdir.read_config()
    return command.load_config(args)


def _print_results(workdir: WorkDir, config: Config, console: Console) -> None:
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
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):  # Such as .venv/bin/python.
        python = python.relative_to(Path.cwd())
    longer = 2 * config.train.num_steps
    console.print(
        "next: draw another sample, or train on:\n"
        f"  {python} -m jaxload.sample --workdir {workdir.path} "
        '--set sample.caption="a small blue square moving up on a grey background"\n'
        f"  {python} -m jaxload.train --workdir {workdir.path} --resume "
        f"--set train.num_steps={longer}",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    command.run("jaxload.train", main, again="a run continues with --resume")
