"""Simulates the steps of each policy: `python -m jaxload.simulate --workload FILE`."""

import argparse
import json
import math
import typing
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from jaxload import command
from jaxload.balance.program import Remat
from jaxload.balance.simulation import POLICIES
from jaxload.errors import InputError
from jaxload.files import check_writable, write_atomically
from jaxload.models import PRESETS
from jaxload.planning.scenarios import SimulationOptions, simulate
from jaxload.reports.simulation import draw_simulation, print_simulation, to_dict
from jaxload.shapes.clips import ShapeRules


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    args = _parser().parse_args(argv)
    if not 0 < args.flops_per_second < math.inf:
        raise InputError(
            f"--flops-per-second {args.flops_per_second}: expected more than 0"
        )
    if args.out is not None:
        check_writable(args.out)
    # With --json, standard output has the JSON alone, so that programs can parse it.
    console = Console(stderr=args.json)
    options = SimulationOptions(
        workload=args.workload,
        model=args.model,
        remat=args.remat,
        costs=args.costs,
        num_replicas=args.replicas,
        accumulate=args.accumulate,
        memory_headroom=args.memory_headroom,
        policies=tuple(",".join(args.policies).split(",")),
        max_buckets=args.max_buckets,
        num_steps=args.steps,
        seed=args.seed,
        max_bad_share=args.max_bad_share,
        rules=ShapeRules(),
    )
    scenario, played = simulate(options, args.schedule_out, console)
    content = to_dict(scenario, played, flops_per_second=args.flops_per_second)
    title = (
        f"{args.workload.name}, {args.costs or args.model}, {args.replicas} replicas, "
        f"accumulate {args.accumulate}"
    )
    print_simulation(content, title, console)
    if args.json:
        print(json.dumps(content, indent=2))
    if args.out is not None:
        write_atomically(args.out, json.dumps(content, indent=2) + "\n")
        draw_simulation(played, title, args.out.with_suffix(".png"))
        console.print(f"figures {args.out}, figure {args.out.with_suffix('.png')}")
    if args.schedule_out is not None:
        console.print(f"schedule {args.schedule_out}", highlight=False)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command.make_parser("jaxload.simulate", __doc__, has_fields=False)
    add = parser.add_argument
    add(
        "--workload",
        type=Path,
        required=True,
        metavar="FILE",
        help="CSV or Parquet: id, num_frames, height, width, fps; or a histogram: "
        "num_frames, height, width, count",
    )
    add(
        "--model",
        default="wan2.1-t2v-14b",
        choices=tuple(PRESETS),
        help="whose matmuls are the cost (default: %(default)s)",
    )
    add(
        "--remat",
        default="none",
        choices=typing.get_args(Remat),
        help="what a block keeps: what its matmuls gave, its attention or its input "
        "alone; the rest of its forward pass runs twice (default: %(default)s)",
    )
    add("--costs", type=Path, metavar="FIT", help="a fit of jaxload.calibrate instead")
    add("--replicas", type=int, default=16, metavar="R", help="(default: 16)")
    add(
        "--accumulate",
        type=int,
        default=1,
        metavar="A",
        help="compute budgets that each replica gets in a step (default: 1)",
    )
    add(
        "--memory-headroom",
        type=float,
        default=2.0,
        metavar="H",
        help="tokens that fit into memory, in longest shapes (default: 2)",
    )
    add(
        "--policies",
        nargs="+",
        default=list(POLICIES),
        metavar="POLICY",
        help=f"some of {', '.join(POLICIES)} (default: all)",
    )
    add("--max-buckets", type=int, default=32, metavar="N", help="shapes (default: 32)")
    add("--steps", type=int, default=200, metavar="N", help="to play (default: 200)")
    add("--seed", type=int, default=0, help="of random draws and sample order")
    add(
        "--flops-per-second",
        type=float,
        default=4e14,
        metavar="F",
        help="that a replica reaches, to tell seconds from FLOPs (default: 4e14, 40%% "
        "of an H100's bfloat16 peak)",
    )
    command.add_bad_share_argument(parser)
    add("--json", action="store_true", help="print the figures as JSON")
    add("--out", type=Path, metavar="FILE", help="write the JSON, and a figure beside")
    add(
        "--schedule-out",
        type=Path,
        metavar="FILE",
        help="write what each replica runs at each step, one JSON object a line: of "
        "the mixed policy, or of lockstep if --policies has no mixed",
    )
    return parser


if __name__ == "__main__":
    command.run("jaxload.simulate", main)
