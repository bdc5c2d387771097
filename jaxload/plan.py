"""Plans a run without training it: `python -m jaxload.plan --config FILE`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from jaxload import command
from jaxload.balance.cost import CostModel
from jaxload.config import Config
from jaxload.data.manifest import read_manifest
from jaxload.data.workload import is_prepared
from jaxload.files import check_writable, write_atomically
from jaxload.planning.analytic_cost import cost_of
from jaxload.planning.costs import measured_fit
from jaxload.planning.memory import plan_within_memory
from jaxload.planning.plan import Plan, to_json
from jaxload.planning.planner import (
    MemoryLimit,
    cover_prepared,
    cover_survey,
    make_plan,
    make_setting,
    predicted_idle,
    read_fit,
    survey_digest,
)
from jaxload.planning.survey import survey_manifest
from jaxload.reports.plan import draw_plan, print_plan
from jaxload.runs.dataset import open_dataset

_CALIBRATION_SECONDS = 300.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = command.make_parser("jaxload.plan", __doc__)
    command.add_config_arguments(parser)
    parser.add_argument(
        "--manifest",
        type=Path,
        metavar="X",
        help="what to plan for: CSV or Parquet (id, num_frames, height, width, fps), a "
        "histogram (num_frames, height, width, count) or a prepared data set; the "
        "config's data set by default",
    )
    parser.add_argument(
        "--replicas", type=int, default=1, metavar="R", help="replicas to plan for"
    )
    parser.add_argument(
        "--costs",
        default="analytic",
        metavar="analytic|FIT|measure",
        help="where costs come from: the model's matmuls, a file of jaxload.calibrate, "
        "or steps that are timed here first; analytic by default",
    )
    command.add_bad_share_argument(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where the plan is written, as JSON, with a figure beside it",
    )
    args, config = command.parse(parser, argv, command.load_config)
    if args.out is not None:
        check_writable(args.out)
    console = Console()
    plan = _plan(
        config,
        args.manifest,
        num_replicas=args.replicas,
        costs=args.costs,
        max_bad_share=args.max_bad_share,
        console=console,
    )
    print_plan(plan, console)
    if args.out is not None:
        write_atomically(args.out, to_json(plan))
        draw_plan(plan, args.out.with_suffix(".png"))
        figure = args.out.with_suffix(".png")
        console.print(f"plan {args.out}, figure {figure}", highlight=False)
    return 0


def _plan(
    config: Config,
    path: Path | None,
    *,
    num_replicas: int,
    costs: str,
    max_bad_share: float,
    console: Console,
) -> Plan:
    # --- What the samples are, and the shapes for them ---
    if path is None or is_prepared(path):
        manifest = (
            open_dataset(config, console) if path is None else read_manifest(path)
        )
        chosen = cover_prepared(manifest, config.balance, num_replicas=num_replicas)
        dataset, rules = manifest.digest(), None
    else:
        survey = survey_manifest(
            path, config.shapes, max_bad_share=max_bad_share, console=console
        )
        chosen = cover_survey(
            survey, config.shapes, config.balance, num_replicas=num_replicas
        )
        dataset, rules = survey_digest(survey), config.shapes

    # --- Costs, memory, batches ---
    cost_model = _cost_model(costs, config, console)

    def make(memory: MemoryLimit) -> Plan:
        setting = make_setting(
            config,
            chosen,
            cost_model=cost_model,
            memory=memory,
            num_replicas=num_replicas,
        )
        plan = make_plan(setting, memory=memory, dataset=dataset, rules=rules)
        return dataclasses.replace(plan, idle_shares=predicted_idle(setting, plan))

    return plan_within_memory(config, chosen.shapes, make, console)


def _cost_model(costs: str, config: Config, console: Console) -> CostModel:
    match costs:
        case "analytic":
            return cost_of(config.model)
        case "measure":
            fit = measured_fit(config, seconds=_CALIBRATION_SECONDS, console=console)
            return fit.cost
    return read_fit(Path(costs)).cost


if __name__ == "__main__":
    command.run("jaxload.plan", main)
