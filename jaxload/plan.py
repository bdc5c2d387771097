"""Plans a run without training it: `python -m jaxload.plan --config FILE`."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from jaxload import command
from jaxload.balance.plan import to_json
from jaxload.data.dataset import open_dataset
from jaxload.files import write_atomically
from jaxload.planning import plan_run
from jaxload.report import print_plan


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = command.make_parser("jaxload.plan", __doc__)
    command.add_config_arguments(parser)
    parser.add_argument(
        "--replicas", type=int, default=1, metavar="R", help="devices to plan for"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where the plan is written, as JSON"
    )
    args, config = command.parse(parser, argv, command.load_config)
    console = Console()
    manifest = open_dataset(config.data, config.synthetic, console)
    plan = plan_run(config, manifest, num_replicas=args.replicas)
    print_plan(plan, console)
    if args.out is not None:
        write_atomically(args.out, to_json(plan))
        console.print(f"plan {args.out}", highlight=False)
    return 0


if __name__ == "__main__":
    command.run("jaxload.plan", main)
