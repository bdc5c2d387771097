"""What the commands share: `--config`, `--set`, `--help` and exit codes."""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxload import config as config_lib
from jaxload.config import Config
from jaxload.errors import InputError

# Linked into the package, so that an installed jaxload has its presets with it.
DEMO = Path(__file__).parent / "configs" / "demo.py"


def make_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """A parser whose `--help` is left to `parse`, which knows the config's fields."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {name}", description=description, add_help=False
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this and exit")
    return parser


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--config` and `--set`."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a Python file with get_config(); the demo by default",
    )
    add_set_argument(parser)


def add_set_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `--set` alone, for commands whose config comes from a work directory."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.FIELD=VALUE",
        help="change a field of the config; may be repeated",
    )


def add_bad_share_argument(
    parser: argparse.ArgumentParser,
    what: str = "rows of the manifest that may make no sense",
) -> None:
    """Adds `--max-bad-share`."""
    parser.add_argument(
        "--max-bad-share",
        type=float,
        default=0.1,
        metavar="SHARE",
        help=f"share of {what} (default: %(default)s)",
    )


def parse(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    load: Callable[[argparse.Namespace], Config],
) -> tuple[argparse.Namespace, Config]:
    """Parses a command line and builds the config that it describes.

    `load` says which config the arguments start from. `--help` lists its fields.
    """
    args = parser.parse_args(argv)
    config = config_lib.override_all(load(args), args.set)
    if args.help:
        parser.print_help()
        print_fields(config)
        raise SystemExit(0)
    return args, config


def load_config(args: argparse.Namespace) -> Config:
    """The config of `--config`, or the demo."""
    return config_lib.load(args.config or DEMO)


def print_fields(config: Config) -> None:
    """Prints every field that `--set` can change."""
    print("\nfields for --set, with their defaults in this config:")
    for row in config_lib.describe(config):
        print(f"  {row.path} ({row.type}) = {row.value}\n        {row.meaning}")


def run(name: str, main: Callable[[], int], *, again: str = "start it again") -> None:
    """Exits with `main`'s code, or with 2 and one line where the input is wrong.

    `again` says after an interrupt how to go on.
    """
    # A scheduler's request to stop is an interrupt: checkpoints are finished first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = main()
    except InputError as error:
        print(f"{name}: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print(f"\n{name}: interrupted; {again}", file=sys.stderr)
        code = 130
    sys.exit(code)
