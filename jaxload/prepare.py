"""Turns a folder of images and videos into a dataset: `python -m jaxload.prepare`."""

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from jaxload import command
from jaxload.config import Config
from jaxload.errors import InputError
from jaxload.media.preparation import Preparation
from jaxload.media.preparing import Share, prepare, runner
from jaxload.media.walking import list_media
from jaxload.reports.prepare import draw_preview, print_prepared, write_report
from jaxload.runs.dataset import make_preparation
from jaxload.runs.planned import read_plan

AGAIN = "the same command continues"

_SECTIONS = ("data", "shapes", "model.text_dim", "balance.max_buckets")
_SHARE = re.compile(r"(\d+)/(\d+)")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = _make_parser()
    args, config = command.parse(parser, argv, command.load_config, sections=_SECTIONS)
    console = Console()
    preparation = _preparation(args, config)
    listing = list_media(preparation.media, args.captions)
    prepared = prepare(
        preparation,
        listing,
        run=_runner(args),
        max_bad_share=args.max_bad_share,
        console=console,
        share=_share(args.shard),
    )
    if prepared is None:
        console.print(
            f"share {args.shard} is done, and others are not; run this command again "
            "when they are",
            highlight=False,
        )
        return 0
    report = write_report(prepared, preparation.out)
    print_prepared(prepared, console)
    preview = draw_preview(preparation.out)
    console.print(
        f"data set {preparation.out}, report {report}, preview {preview}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = command.make_parser("jaxload.prepare", __doc__)
    command.add_config_arguments(parser)
    parser.add_argument(
        "--media", type=Path, metavar="DIR", help="the folder of images and videos"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DATASET",
        help="directory of the data set; the config's data.path by default",
    )
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="take the shapes of a plan; by default those that keep the most of the "
        "media are chosen",
    )
    parser.add_argument(
        "--captions",
        type=Path,
        metavar="FILE",
        help="a table of captions (.csv, .jsonl, .parquet) besides those in the folder",
    )
    parser.add_argument(
        "--codec",
        metavar="NAME",
        help="haar, or module:attribute; the config's data.codec by default",
    )
    parser.add_argument(
        "--text-encoder",
        metavar="NAME",
        help="hashed-ngrams, or module:attribute; data.text_encoder by default",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes that decode; 0 uses none (default: one for each core)",
    )
    parser.add_argument(
        "--ray",
        action="store_true",
        help="run the workers on a Ray cluster: that of RAY_ADDRESS, or a local one",
    )
    parser.add_argument(
        "--shard",
        default="0/1",
        metavar="I/N",
        help="do the I-th of N shares of the work, counted from 0, on this machine",
    )
    command.add_bad_share_argument(parser, "files that may be bad")
    return parser


def _preparation(args: argparse.Namespace, config: Config) -> Preparation:
    if args.media is None:
        raise InputError("--media: expected the folder of images and videos, got none")
    out = args.out or config.data.directory
    media, absolute = args.media.resolve(), out.resolve()
    if absolute == media or media in absolute.parents:
        raise InputError(
            f"--out {out}: lies in the folder of media, and would be taken for some; "
            "choose another"
        )
    shapes, rules = None, config.shapes
    if args.plan is not None:
        plan = read_plan(args.plan)
        found = {bucket.shape for bucket in plan.buckets}
        shapes = tuple(sorted(found, key=lambda shape: (shape.tokens, shape)))
        rules = plan.rules or rules
    return make_preparation(
        config,
        media=args.media,
        out=out,
        shapes=shapes,
        rules=rules,
        codec=args.codec or config.data.codec,
        text_encoder=args.text_encoder or config.data.text_encoder,
    )


def _runner(args: argparse.Namespace):
    if args.workers < 0:
        raise InputError(f"--workers {args.workers}: expected 0 or more")
    if args.ray:
        from jaxload.media.ray_workers import run_on_ray  # Ray is optional.

        return run_on_ray
    return runner(args.workers)


def _share(text: str) -> Share:
    match = _SHARE.fullmatch(text)
    index, of = map(int, match.groups()) if match else (0, 0)
    if not index < of:
        raise InputError(
            f"--shard {text}: expected I/N, a share from 0/N to one below N/N"
        )
    return Share(index=index, of=of)


if __name__ == "__main__":
    command.run("jaxload.prepare", main, again=AGAIN)
