"""Command lines: shared arguments, `--help` and exit codes of all commands."""

import argparse
import io
import os
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from jaxload import config as config_lib
from jaxload import interrupts
from jaxload.config import Config
from jaxload.console import visible
from jaxload.errors import InputError
from jaxload.field_help import FieldHelp
from jaxload.files import check_writable
from jaxload.models.presets import all_presets
from jaxload.targets.gpus import TARGETS

# The directory configs is linked into the package, so that an installed jaxload has it.
DEMO = Path(__file__).parent / "configs" / "demo.py"

START_AGAIN = "start it again"

_MIN_WIDTH = 40
_SHOW_CURSOR = "\x1b[?25h"


def program(name: str) -> str:
    """Returns the command line that started `jaxload.NAME`, for usage messages."""
    script = Path(sys.argv[0])
    if script.parts[-2:] == ("jaxload", "__main__.py"):
        return f"python -m {name.replace('.', ' ')}"
    return name.replace(".", " ") if script.name == "jaxload" else f"python -m {name}"


def make_parser(
    name: str, docstring: str | None, *, has_fields: bool = True
) -> argparse.ArgumentParser:
    """Builds the argument parser of a command.

    With `has_fields`, `parse` handles `--help` and lists the config's fields.
    """
    prog = program(name)
    parser = argparse.ArgumentParser(
        prog=prog,
        description=(docstring or "").replace(f"python -m {name}", prog),
        add_help=not has_fields,
    )
    if has_fields:
        parser.add_argument(
            "-h", "--help", action="store_true", help="show this and exit"
        )
    return parser


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--config` and `--set`."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a Python file with get_config(); the demo by default",
    )
    names = ", ".join(all_presets())
    add_set_argument(parser, f"change a field, or choose a model, model=NAME: {names}")


def add_set_argument(
    parser: argparse.ArgumentParser, what: str = "change a field"
) -> None:
    """Adds `--set`, which overrides fields of the config, but not `--config`.

    For commands that read the config of a run. `what` begins the help text.
    """
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.FIELD=VALUE",
        help=f"{what}; may be repeated; applied in order",
    )


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--target` and `--devices`."""
    parser.add_argument(
        "--target",
        metavar="GPU",
        help=f"type of GPU to compile for, present or not: {', '.join(TARGETS)} "
        "(default: the devices of this machine)",
    )
    parser.add_argument(
        "--devices",
        type=int,
        metavar="N",
        help="number of devices; all of this machine, or one replica of a target, by "
        "default",
    )


def add_bad_share_argument(
    parser: argparse.ArgumentParser,
    what: str = "rows of the manifest that may be invalid",
) -> None:
    """Adds `--max-bad-share`."""
    parser.add_argument(
        "--max-bad-share",
        type=float,
        default=0.1,
        metavar="SHARE",
        help=f"share of {what} (default: %(default)s)",
    )


def check_json_path(path: Path) -> None:
    """Checks that `--out` ends in .json, so that the figure's name can differ."""
    if path.suffix != ".json" or path.is_dir():
        raise InputError(
            f"--out {path}: expected a file that ends in .json; its figure gets the "
            "same name"
        )
    check_writable(path)


def parse(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    load: Callable[[argparse.Namespace], Config],
    *,
    sections: Sequence[str],
    has_others: bool = True,
) -> tuple[argparse.Namespace, Config]:
    """Parses a command line and builds the config that it describes.

    `load` returns the config that `--set` changes. `--help` lists the fields of this
    config. Fields of `sections`, which may also name single fields, come first; all
    other fields follow if `has_others` is set.
    """
    args = parser.parse_args(argv)
    if not args.help:
        return args, config_lib.override_all(load(args), args.set)
    parser.print_help()
    try:
        config, which = config_lib.override_all(load(args), args.set), "this config"
    except InputError as error:
        config, which = config_lib.load(DEMO), f"the demo ({error})"
    heading = f"fields for --set, with their values in {which}:"
    print("\n" + textwrap.fill(heading, _terminal_width(), break_long_words=False))
    _print_fields(config, sections, has_others=has_others)
    raise SystemExit(0)


def load_config(args: argparse.Namespace) -> Config:
    """Returns the config of `--config`, or the demo."""
    return config_lib.load(args.config or DEMO)


def run(name: str, main: Callable[[], int], *, again: str = START_AGAIN) -> NoReturn:
    """Exits with `main`'s code, or with 2 and a one-line message for invalid input.

    `again` is the hint that is printed after an interrupt.
    """

    is_said = threading.Lock()

    def say_interrupted() -> None:
        if not is_said.acquire(blocking=False):  # By the other thread.
            return
        if sys.stdout.isatty():  # A progress bar may have hidden the cursor.
            print(_SHOW_CURSOR, end="", flush=True)
        print(f"\n{name}: interrupted; {again}", file=sys.stderr, flush=True)

    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the output's encoding lacks must not end the command. Python does
        # the same for stderr.
        sys.stdout.reconfigure(errors="backslashreplace")
    # A scheduler's SIGTERM is an interrupt, too, so that checkpoints are finished.
    with interrupts.ending_on_signals(say_interrupted):
        try:
            code = main()
        except InputError as error:
            print(f"{name}: {visible(str(error))}", file=sys.stderr)
            code = 2
        except BrokenPipeError:  # Such as `--help | head`.
            # Otherwise Python would fail when it flushes the remaining output.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        except KeyboardInterrupt:
            say_interrupted()
            code = interrupts.EXIT_CODE
        except Exception:
            # XLA turns an interrupt of its callbacks into an error of its own.
            if not interrupts.received():
                raise
            say_interrupted()
            code = interrupts.EXIT_CODE
        sys.exit(code)


def _print_fields(config: Config, sections: Sequence[str], *, has_others: bool) -> None:
    rows = config_lib.describe(config)
    first = [
        row
        for section in sections
        for row in rows
        if f"{row.path}.".startswith(f"{section}.")
    ]
    others = [row for row in rows if row not in first]
    _print_rows(first)
    if others and has_others:
        print("\nfields that this command uses less, or not at all:")
        _print_rows(others)


def _print_rows(rows: Iterable[FieldHelp]) -> None:
    for row in rows:
        print(row.format(_terminal_width()))


def _terminal_width() -> int:
    # Output to a pipe or a file is not wrapped, so that it can be searched by line.
    columns = shutil.get_terminal_size(fallback=(sys.maxsize, 0)).columns
    return max(_MIN_WIDTH, columns)
