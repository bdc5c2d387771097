"""What the commands share: `--config`, `--set`, `--help` and exit codes."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxload import config as config_lib
from jaxload.config import Config
from jaxload.errors import InputError

# Linked into the package, so that an installed jaxload has its presets with it.
_DEMO = Path(__file__).parent / "configs" / "demo.py"


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--config` and `--set`; `--help` then also lists every field."""
    parser.add_argument(
        "--config",
        type=Path,
        default=_DEMO,
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


def parse(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None
) -> tuple[argparse.Namespace, Config]:
    """Parses a command line and builds the config that it describes."""
    argv = sys.argv[1:] if argv is None else list(argv)
    wants_help = {"-h", "--help"} & set(argv)
    args = parser.parse_args([arg for arg in argv if arg not in ("-h", "--help")])
    config = config_lib.load(args.config)
    for assignment in args.set:
        config = config_lib.override(config, assignment)
    if wants_help:
        parser.print_help()
        print_fields(config, args.config.name)
        raise SystemExit(0)
    return args, config


def print_fields(config: Config, name: str) -> None:
    """Prints every field that `--set` can change."""
    print(f"\nfields for --set, with the defaults of {name}:")
    for row in config_lib.describe(config):
        print(f"  {row.path} ({row.type}) = {row.value}\n        {row.meaning}")


def run(name: str, main: Callable[[], int]) -> None:
    """Exits with `main`'s code, or with 2 and one line where the input is wrong."""
    try:
        code = main()
    except InputError as error:
        print(f"{name}: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print(f"\n{name}: interrupted", file=sys.stderr)
        code = 130
    sys.exit(code)
