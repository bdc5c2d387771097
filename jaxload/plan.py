"""Plans a run without training it: `python -m jaxload.plan --config FILE`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from jaxload import command
from jaxload.balance.program import Layout
from jaxload.codecs.codec import is_causal, load_codec
from jaxload.config import Config
from jaxload.console import Console
from jaxload.data.manifest import read_manifest
from jaxload.data.workload import is_prepared
from jaxload.files import write_atomically
from jaxload.planning.plan import to_json
from jaxload.planning.samples import (
    Samples,
    prepared_samples,
    surveyed_samples,
)
from jaxload.planning.survey import survey_manifest
from jaxload.reports.plan import draw_plan, print_plan
from jaxload.reports.rows import draw_rows, has_rows
from jaxload.runs.dataset import geometry_of, open_if_there
from jaxload.runs.planned import find_samples
from jaxload.runs.sample_choice import settle_sample
from jaxload.runs.setup import find_hardware, make_planner

_SECTIONS = ("balance", "mesh", "shapes", "model")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    args, config = command.parse(
        _make_parser(), argv, command.load_config, sections=_SECTIONS
    )
    if args.out is not None:
        command.check_json_path(args.out)
    console = Console()
    config = settle_sample(config)
    hardware = find_hardware(config, target=args.target, num_devices=args.devices)
    replicas = hardware.mesh.replica if args.replicas is None else args.replicas
    samples = _samples(
        config,
        args.manifest,
        hardware.mesh.layout,
        num_replicas=replicas,
        max_bad_share=args.max_bad_share,
        console=console,
    )
    planner = make_planner(config, samples, hardware, console, num_replicas=replicas)
    plan = planner.plan(simulate=True)
    print_plan(plan, console)
    if args.out is not None:
        figures = [args.out.with_suffix(".png")]
        write_atomically(args.out, to_json(plan))
        draw_plan(plan, figures[0])
        if has_rows(plan):
            figures.append(args.out.with_suffix(".rows.png"))
            draw_rows(plan, samples, figures[1])
        console.say(f"plan {args.out}, figure {' and '.join(map(str, figures))}")
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = command.make_parser("jaxload.plan", __doc__)
    command.add_config_arguments(parser)
    parser.add_argument(
        "--manifest",
        type=Path,
        metavar="X",
        help="samples to plan for: CSV or Parquet (id, num_frames, height, width, "
        "fps), a histogram (num_frames, height, width, count) or a prepared dataset; "
        "by default, the config's dataset",
    )
    command.add_target_arguments(parser)
    parser.add_argument(
        "--replicas",
        type=int,
        metavar="R",
        help="logical replicas to plan for; by default, one for each group of devices",
    )
    command.add_bad_share_argument(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="JSON file to write the plan to, with a figure beside it and, by length, "
        "a figure of a micro-batch",
    )
    return parser


def _samples(
    config: Config,
    path: Path | None,
    layout: Layout,
    *,
    num_replicas: int,
    max_bad_share: float,
    console: Console,
) -> Samples:
    """Counts the samples of a dataset, or of a list that is not prepared yet."""
    if path is None:
        manifest = open_if_there(config, console, draw=True)
        return find_samples(config, manifest, layout, num_replicas)
    if is_prepared(path):
        return prepared_samples(read_manifest(path, geometry_of(config)))
    survey = survey_manifest(
        path,
        config.shapes,
        geometry_of(config),
        max_bad_share=max_bad_share,
        console=console,
    )
    return surveyed_samples(
        survey,
        config.shapes,
        may_cut=is_causal(load_codec(config.data.codec)),
        console=console,
    )


if __name__ == "__main__":
    command.run("jaxload.plan", main)
