"""Simulates the steps of each policy: `python -m jaxload.simulate --workload FILE`."""

import argparse
import json
import math
import typing
from collections.abc import Sequence
from pathlib import Path

from jaxload import command
from jaxload.balance.config import FormChoice
from jaxload.balance.program import Remat
from jaxload.balance.simulation import POLICIES
from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.files import check_writable, write_atomically
from jaxload.models import all_presets
from jaxload.planning.scenarios import SimulationOptions, simulate
from jaxload.reports.simulation import draw_simulation, print_simulation, to_dict
from jaxload.shapes.config import ShapeRules


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    args = _parser().parse_args(argv)
    if not 0 < args.flops_per_second < math.inf:
        raise InputError(
            f"--flops-per-second {args.flops_per_second}: expected more than 0"
        )
    if args.out is not None:
        check_writable(args.out)
    # With --json, standard output has only the JSON, so that programs can parse it.
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
        form=args.form,
        max_buckets=args.max_buckets,
        num_steps=args.steps,
        seed=args.seed,
        max_bad_share=args.max_bad_share,
        rules=ShapeRules(),
    )
    workload, results = simulate(options, args.schedule_out, console)
    content = to_dict(workload, results, flops_per_second=args.flops_per_second)
    title = (
        f"{args.workload.name}, {args.costs or args.model}, {args.replicas} replicas, "
        f"accumulate {args.accumulate}"
    )
    print_simulation(content, title, console)
    if args.json:
        print(json.dumps(content, indent=2))
    if args.out is not None:
        write_atomically(args.out, json.dumps(content, indent=2) + "\n")
        draw_simulation(results, title, args.out.with_suffix(".png"))
        console.say(f"results {args.out}, figure {args.out.with_suffix('.png')}")
    if args.schedule_out is not None:
        console.say(f"schedule {args.schedule_out}")
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
        choices=tuple(all_presets()),
        help="model whose FLOPs are the cost (default: %(default)s)",
    )
    add(
        "--remat",
        default="none",
        choices=typing.get_args(Remat),
        help="activations that a block keeps for its backward pass: most of them, only "
        "those of attention, or only its input; the others are recomputed (default: "
        "%(default)s)",
    )
    add(
        "--costs",
        type=Path,
        metavar="FILE",
        help="measured costs to use instead of FLOPs, from jaxload.calibrate",
    )
    add(
        "--replicas",
        type=int,
        default=16,
        metavar="R",
        help="number of replicas (default: 16)",
    )
    add(
        "--accumulate",
        type=int,
        default=1,
        metavar="A",
        help="compute budgets that each replica may spend in a step (default: 1)",
    )
    add(
        "--memory-headroom",
        type=float,
        default=2.0,
        metavar="H",
        help="memory budget, as a multiple of the longest sample's tokens (default: 2)",
    )
    add(
        "--policies",
        nargs="+",
        default=list(POLICIES),
        metavar="POLICY",
        help=f"some of {', '.join(POLICIES)} (default: all)",
    )
    add(
        "--form",
        default="auto",
        choices=typing.get_args(FormChoice),
        help="form of the rows: samples of any shape padded to one length, or samples "
        "of one grid (default: as the model trains)",
    )
    add(
        "--max-buckets",
        type=int,
        default=32,
        metavar="N",
        help="maximum number of lengths, or of shapes by grid (default: 32)",
    )
    add(
        "--steps",
        type=int,
        default=200,
        metavar="N",
        help="steps to simulate (default: 200)",
    )
    add(
        "--seed",
        type=int,
        default=0,
        help="seed of random draws and of the sample order (default: 0)",
    )
    add(
        "--flops-per-second",
        type=float,
        default=4e14,
        metavar="F",
        help="FLOP/s of a replica, to convert FLOPs to seconds (default: 4e14, 40%% of "
        "an H100's bfloat16 peak)",
    )
    command.add_bad_share_argument(parser)
    add("--json", action="store_true", help="print the results as JSON")
    add(
        "--out",
        type=Path,
        metavar="FILE",
        help="JSON file to write the results to, with a figure beside it",
    )
    add(
        "--schedule-out",
        type=Path,
        metavar="FILE",
        help="file to write the schedule to, one JSON object per step and replica: the "
        "schedule of mixed, or of lockstep if --policies does not have mixed",
    )
    return parser


if __name__ == "__main__":
    command.run("jaxload.simulate", main)
