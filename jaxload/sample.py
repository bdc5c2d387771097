"""Draws a clip from a trained model: `python -m jaxload.sample --workdir DIR`."""

import re
from collections.abc import Sequence
from pathlib import Path

from jaxload import command
from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.files import check_writable
from jaxload.runs.outputs import sample
from jaxload.runs.sample_choice import settle_sample
from jaxload.runs.workdir import WorkDir
from jaxload.sampling.config import SampleConfig

_MAX_NAME_BYTES = 100  # Of a caption in a file name; file systems allow 255.


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = command.make_parser("jaxload.sample", __doc__)
    parser.add_argument(
        "--workdir",
        type=Path,
        default=Path("runs/demo"),
        metavar="DIR",
        help="work directory of a run, whose newest checkpoint is used",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE.gif",
        help="file to write (default: a file in DIR, named for the caption)",
    )
    command.add_set_argument(parser)
    args, config = command.parse(
        parser,
        argv,
        lambda args: WorkDir(args.workdir).read_config(),
        sections=("sample",),
        has_others=False,
    )
    for assignment in args.set:
        if not assignment.startswith("sample."):
            raise InputError(
                f"--set {assignment}: expected a field of the section sample; all "
                "other fields are those of the trained model"
            )
    config = settle_sample(config)
    out = args.out or args.workdir / file_name(config.sample)
    if out.suffix != ".gif":
        raise InputError(f"--out {out}: expected a file that ends in .gif")
    check_writable(out)
    console = Console()
    sample(config, WorkDir(args.workdir), out, console)
    console.say(f"{out}")
    return 0


def file_name(sample: SampleConfig) -> str:
    """Returns a file name of the caption's first words and the seed."""
    words = re.findall(r"\w+", sample.caption.lower())
    while len("-".join(words).encode()) > _MAX_NAME_BYTES:
        words.pop()
    return "-".join([*(words or ["sample"]), str(sample.seed)]) + ".gif"


if __name__ == "__main__":
    command.run("jaxload.sample", main)
