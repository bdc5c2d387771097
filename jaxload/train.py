"""Trains a model: `python -m jaxload.train --config FILE --workdir DIR`."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxload import command
from jaxload.config import Config
from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.runs.dataset import check_sizes
from jaxload.runs.dry_run import dry_run
from jaxload.runs.planned import follow_plan
from jaxload.runs.run import train
from jaxload.runs.sample_choice import keep_sample, settle_sample
from jaxload.runs.setup import find_hardware
from jaxload.runs.workdir import WorkDir, claim_workdir, no_run

AGAIN = "a run continues with --resume"

_SECTIONS = ("train", "optimizer", "flow", "mesh", "balance", "data", "model", "sample")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = command.make_parser("jaxload.train", __doc__)
    command.add_config_arguments(parser)
    parser.add_argument(
        "--workdir",
        type=Path,
        metavar="DIR",
        help="directory of the run's files (default: runs/NAME for configs/NAME.py)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue a run from its newest checkpoint; --config may be left out",
    )
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="take programs, costs and budgets from a file that jaxload.plan wrote",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="plan and compile the run, print its memory and the first batch, then "
        "stop; allocates no model and writes no --workdir",
    )
    command.add_target_arguments(parser)
    args, config = command.parse(parser, argv, _load_config, sections=_SECTIONS)
    _check_arguments(args)
    console = Console()
    if args.plan is not None:
        config = follow_plan(config, args.plan, args.set, console)
    check_sizes(config)  # Refuses invalid sizes before anything is written.
    config = settle_sample(config)
    if args.dry_run:
        hardware = find_hardware(config, target=args.target, num_devices=args.devices)
        dry_run(config, hardware, console, plan_file=args.plan)
        return 0
    path = _workdir_path(args)
    with claim_workdir(path, config, resume=args.resume) as workdir:
        if workdir.is_finished(config):
            console.say(
                f"{path} already holds this run, which is finished; nothing to do"
            )
        else:
            train(config, workdir, console, plan_file=args.plan)
    _print_results(workdir, config, console)
    return 0


def _check_arguments(args: argparse.Namespace) -> None:
    if args.dry_run:
        if args.resume:
            raise InputError(
                "--dry-run --resume: expected one of them, got both; a dry run has no "
                "files to resume from"
            )
        return
    for name in ("target", "devices"):
        if getattr(args, name) is not None:
            raise InputError(
                f"--{name} {getattr(args, name)}: only a dry run can be for devices "
                "other than this machine's; add --dry-run"
            )


def _workdir_path(args: argparse.Namespace) -> Path:
    return args.workdir or Path("runs") / (args.config or command.DEMO).stem


def _load_config(args: argparse.Namespace) -> Config:
    workdir = WorkDir(_workdir_path(args))
    if not args.resume or args.dry_run:
        return command.load_config(args)
    if not workdir.config.is_file():
        raise no_run(workdir)
    begun = workdir.read_config()
    if args.config is None:
        return begun
    return keep_sample(command.load_config(args), begun)


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
        console.say(f"  {name:12} {path}")
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):  # Such as .venv/bin/python.
        python = python.relative_to(Path.cwd())
    program = shlex.quote(str(python))
    longer = 2 * config.train.num_steps
    module = type(config.model).__module__
    if not module.startswith("jaxload."):  # Commands without a config file import it.
        program = f"JAXLOAD_FAMILIES={module} {program}"
    path = shlex.quote(str(workdir.path))
    another = f"sample.seed={config.sample.seed + 1}"
    if config.synthetic is not None:
        another = "sample.caption='a small blue square moving up on a grey background'"
    console.say(
        "next: draw another sample, or train for more steps:\n"
        f"  {program} -m jaxload.sample --workdir {path} --set {another}\n"
        f"  {program} -m jaxload.train --workdir {path} --resume "
        f"--set train.num_steps={longer}"
    )


if __name__ == "__main__":
    command.run("jaxload.train", main, again=AGAIN)
