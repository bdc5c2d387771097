"""Converts a folder of images and videos to a dataset: `python -m jaxload.prepare`.

Worker processes import this module, too, so JAX and all that imports it is imported by
the functions that need it.
"""

import argparse
import dataclasses
import functools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxload import command
from jaxload.codecs.text_encoder import load_text_encoder, max_characters
from jaxload.config import Config
from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.media.folder import list_media
from jaxload.media.preparation import Conversion, Preparation
from jaxload.media.review import Review
from jaxload.media.runners import Run, check_processes, runner
from jaxload.media.stages import Share, prepare
from jaxload.planning.check import check_geometry
from jaxload.runs.dataset import geometry_of, make_preparation
from jaxload.shapes.size_cover import stills_of

AGAIN = "the same command continues"

_SECTIONS = ("data", "shapes", "model.text_dim")
_ONLY_PREPARING = (
    *("media", "plan", "captions", "text_encoder", "workers", "encoders", "ray"),
    *("shard", "retry_failed", "max_bad_share", "max_removed_share"),
)
_SHARE = re.compile(r"(\d+)/(\d+)")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    from jaxload.reports.prepare import (
        PREVIEW,
        REPORT,
        draw_preview,
        print_prepared,
        write_report,
    )

    parser = _make_parser()
    args, config = command.parse(parser, argv, command.load_config, sections=_SECTIONS)
    console = Console()
    if args.convert is not None:
        return _convert(parser, args, config, console)
    preparation = _preparation(args, config)
    run = _runner(args)
    _check_processes(args, preparation)
    review = Review(
        max_bad_share=args.max_bad_share,
        max_removed_share=args.max_removed_share,
        write_report=functools.partial(write_report, preparation.out),
    )
    encoder = load_text_encoder(preparation.text_encoder, preparation.text_dim)
    listing = list_media(
        preparation.media,
        args.captions,
        max_characters=max_characters(encoder),
        follow_links=config.data.follow_links,
    )
    prepared = prepare(
        preparation,
        listing,
        run=run,
        review=review,
        console=console,
        share=_share(args.shard),
        retry_failed=args.retry_failed,
    )
    if prepared is None:
        console.say(
            f"share {args.shard} is done, other shares are not; run this command again "
            "when they are done"
        )
        return 0
    print_prepared(prepared, console)
    out = preparation.out
    report, preview = out / REPORT, out / PREVIEW
    if prepared.is_changed:
        preview.unlink(missing_ok=True)  # So that an interrupted one is drawn later.
    if not preview.exists():
        draw_preview(out, preparation.geometry)
    console.say(f"dataset {out}, report {report}, preview {preview}")
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = command.make_parser("jaxload.prepare", __doc__)
    command.add_config_arguments(parser)
    parser.add_argument(
        "--media", type=Path, metavar="DIR", help="folder of images and videos"
    )
    parser.add_argument(
        "--convert",
        type=Path,
        metavar="DATASET",
        help="convert a dataset of an earlier version, or of a model with another "
        "patch, for the model of the config, without its media; it stays as it is",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DATASET",
        help="directory of the dataset (default: data.path of the config)",
    )
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="plan whose sizes to use; by default, sizes are chosen that keep the most "
        "pixels of the media",
    )
    parser.add_argument(
        "--captions",
        type=Path,
        metavar="FILE",
        help="table of captions (.csv, .jsonl or .parquet), used before tables in the "
        "folder",
    )
    parser.add_argument(
        "--codec",
        metavar="NAME",
        help="haar, or module:attribute (default: data.codec of the config)",
    )
    parser.add_argument(
        "--text-encoder",
        metavar="NAME",
        help="hashed-ngrams, or module:attribute (default: data.text_encoder of the "
        "config)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="worker processes that decode; more are faster, up to one per core, and "
        "each takes memory for a decoder, a clip and, unless the codec encodes "
        "batches, a codec; 0 runs everything in this process (default: one per core)",
    )
    parser.add_argument(
        "--encoders",
        type=int,
        metavar="N",
        help="encoder processes, for a codec that encodes batches; more encode faster, "
        "and each takes one GPU and a copy of the codec; 1 sees all GPUs (default: one "
        "per visible GPU)",
    )
    parser.add_argument(
        "--ray",
        action="store_true",
        help="run the workers on the Ray cluster at RAY_ADDRESS, or on a local one",
    )
    parser.add_argument(
        "--shard",
        default="0/1",
        metavar="I/N",
        help="run share I of N on this machine; I counts from 0 (default: 0/1)",
    )
    parser.add_argument(
        "--retry-failed",
        action="store_true",
        help="encode files again that failed before; by default, only if they changed",
    )
    command.add_bad_share_argument(parser, "files that may be bad")
    parser.add_argument(
        "--max-removed-share",
        type=float,
        default=0.5,
        metavar="SHARE",
        help="share of the dataset's files that may be missing in the folder, and are "
        "then removed from the dataset (default: %(default)s)",
    )
    return parser


def _convert(
    parser: argparse.ArgumentParser,
    args: argparse.Namespace,
    config: Config,
    console: Console,
) -> int:
    """Converts a dataset; other options of preparing have no effect and are refused."""
    from jaxload.media.conversion import convert

    for option in _ONLY_PREPARING:
        value = getattr(args, option)
        if value != parser.get_default(option):
            name = option.replace("_", "-")
            raise InputError(f"--{name}: has no effect with --convert; leave it out")
    if args.out is None:
        raise InputError("--out: expected a directory for the new dataset, got none")
    conversion = Conversion(
        codec=args.codec or config.data.codec,
        rules=config.shapes,
        geometry=geometry_of(_with_plugins(args, config)),
    )
    num_records = convert(args.convert, args.out, conversion, console)
    console.say(
        f"dataset {args.out}: {num_records:,} records; to update it, prepare its media "
        "with this --out"
    )
    return 0


def _with_plugins(args: argparse.Namespace, config: Config) -> Config:
    """Returns the config with the codec and the text encoder of the arguments."""
    data = dataclasses.replace(
        config.data,
        codec=args.codec or config.data.codec,
        text_encoder=args.text_encoder or config.data.text_encoder,
    )
    return dataclasses.replace(config, data=data)


def _preparation(args: argparse.Namespace, config: Config) -> Preparation:
    if args.media is None:
        raise InputError("--media: expected a folder of images and videos, got none")
    out = args.out or config.data.directory
    media, absolute = args.media.resolve(), out.resolve()
    if absolute == media or media in absolute.parents:
        raise InputError(
            f"--out {out}: expected a directory outside the media folder, whose files "
            "would be taken for media; choose another"
        )
    config = _with_plugins(args, config)
    planned: dict[str, Any] = {}
    if args.plan is not None:
        planned = _planned(args.plan, config)
    return make_preparation(config, media=args.media, out=out, **planned)


def _planned(path: Path, config: Config) -> dict[str, Any]:
    """Reads the fields of the preparation that a plan determines."""
    from jaxload.runs.planned import read_plan

    plan = read_plan(path)
    geometry = geometry_of(config)
    check_geometry(plan, geometry, name=f"plan {path}")
    return {
        "sizes": tuple(still.size for still in stills_of(plan.sizes, geometry)),
        "rules": plan.rules or config.shapes,
    }


def _runner(args: argparse.Namespace) -> Run:
    if args.workers is not None and args.workers < 0:
        raise InputError(f"--workers {args.workers}: expected 0 or more")
    if args.encoders is not None and args.encoders < 1:
        raise InputError(f"--encoders {args.encoders}: expected 1 or more")
    if args.ray:
        from jaxload.media.ray_workers import run_on_ray  # Ray is optional.

        return run_on_ray
    return runner(_num_workers(args), args.encoders)


def _num_workers(args: argparse.Namespace) -> int:
    return (os.cpu_count() or 1) if args.workers is None else args.workers


def _check_processes(args: argparse.Namespace, preparation: Preparation) -> None:
    """Refuses processes that cannot start or have nothing to do, before any work."""
    if not args.ray:
        num_workers = _num_workers(args)
        return check_processes(
            preparation, num_workers=num_workers, num_encoders=args.encoders
        )
    from jaxload.media.ray_workers import check_ray

    for option in ("workers", "encoders"):
        value = getattr(args, option)
        if value is not None:
            raise InputError(
                f"--{option} {value}: has no effect with --ray, which starts the "
                "processes; leave it out"
            )
    check_ray(preparation)


def _share(text: str) -> Share:
    match = _SHARE.fullmatch(text)
    index, of = map(int, match.groups()) if match else (0, 0)
    if not index < of:
        raise InputError(f"--shard {text}: expected I/N, with I from 0 to N - 1")
    return Share(index=index, of=of)


if __name__ == "__main__":
    command.run("jaxload.prepare", main, again=AGAIN)
