"""Writes a trained model's weights: `python -m jaxload.export --workdir DIR`."""

import typing
from collections.abc import Sequence
from pathlib import Path

from jaxload import command
from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.models.weights import Naming
from jaxload.runs.outputs import export
from jaxload.runs.workdir import WorkDir


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = command.make_parser("jaxload.export", __doc__, has_fields=False)
    parser.add_argument(
        "--workdir",
        type=Path,
        default=Path("runs/demo"),
        metavar="DIR",
        help="work directory of a run, whose newest checkpoint is exported",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="PATH",
        help="a .safetensors file, or a directory in the layout of diffusers (default: "
        "DIR/weights, which is always overwritten)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an existing --out"
    )
    parser.add_argument(
        "--names",
        default="diffusers",
        choices=typing.get_args(Naming),
        help="naming scheme of the tensors (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    config = WorkDir(args.workdir).read_config()
    out = args.out or args.workdir / "weights"
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: expected to be in a directory that exists")
    if args.out and not args.overwrite and _exists(out):
        raise InputError(
            f"--out {out}: already exists; add --overwrite to replace it, or choose "
            "another path"
        )
    console = Console()
    step = export(config, WorkDir(args.workdir), out, args.names, console)
    console.say(f"{out}: step {step}")
    return 0


def _exists(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


if __name__ == "__main__":
    command.run("jaxload.export", main)
